"""Test that the benchmark of watching runs, and that it finds what it times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_watching(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH / "overhead.py"), "--quick", "--json", str(out), "--size", "tiny"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told = json.loads(out.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]  # nothing else is left
    for name, steps in (("demo", 20), ("big", 40)):
        assert 0 < told[f"{name}_ms_mean"] <= told[f"{name}_ms_p99"] < told[f"{name}_step_ms"] * 50
        assert 0 < told[f"{name}_part"] < 1
        assert told[f"{name}_norm_error"] >= 0
        assert len(told["samples"][name]["wall_s"]) == len(told["samples"][name]["step_s"]) == steps
        parts = told["samples"]["parts_ms_mean"][name]
        assert all(ms > 0 for part, ms in parts.items() if part != "gradients, moments"), parts
        assert parts["gradients, sample"] < parts["gradients, hook"]
    assert told["big_share"] == pytest.approx(told["big_ms_mean"] / told["big_step_ms"])
