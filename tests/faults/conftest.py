"""Lets the files of this folder import one another by name, and gives tests a root on a fast disk."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
MEMORY = Path("/dev/shm")


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """As `tmp_path`, where there is one in memory: hundreds of runs wait for thousands of fsyncs."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="mementum-test-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder)
