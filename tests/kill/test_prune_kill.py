"""Removals and ageings that are killed at any operation leave what is kept whole, and the next sweep finishes.

kill -9 proves process death only, never power loss: that is the matter of tests/crash."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
WAIT_S = 120.0  # for a machine where ten processes fight over two cores


def test_killed_at_every_operation(tmp_path: Path) -> None:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else tmp_path  # what is synced does not matter here
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "pruner.py"), folder],
            env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE.parent / 'crash'}"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    deaths = {name: int(count) for name, _, count in (line.rpartition(": ") for line in done.stdout.splitlines())}
    assert deaths.keys() == {"retention", "whose files are needed", "ageing", "ageing to a record"}
    assert all(count > 10 for count in deaths.values()), deaths
