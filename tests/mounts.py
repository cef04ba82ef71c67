"""File systems of a size of their own, mounted for a test and watched while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services import missing

LOOK_S = 0.002  # from one look at a file system to the next: a write of 8 MB takes longer


class Mounted:
    """A file system of its own in `folder`. `in_memory`: only then it can grow."""

    def __init__(self, folder: Path, size: int, *, in_memory: bool) -> None:
        self.folder, self.in_memory, self._size = folder, in_memory, size

    @property
    def used(self) -> float:
        """The part of it that is used, as the system tells."""
        told = os.statvfs(self.folder)
        return (told.f_blocks - told.f_bfree) / told.f_blocks

    def grow(self, size: int) -> None:
        """Give it this size, as somebody does who expands a volume."""
        _run("mount", "-o", f"remount,size={size}", str(self.folder))

    def fill(self, share: float) -> None:
        """Have somebody else's file take so much of it that this share is used in all; less than now takes it away."""
        other = self.folder / "of somebody else"
        other.unlink(missing_ok=True)
        missing_bytes = round((share - self.used) * self._size)
        if missing_bytes > 0:
            with other.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, missing_bytes)

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """What was used, at each of many looks from another thread."""
        seen, over = [self.used], threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_S):
                seen.append(self.used)

        thread = threading.Thread(target=watch, name="watches-the-disk")
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()
            seen.append(self.used)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[int], Mounted]]:
    """Mounts an empty file system of so many bytes: in memory, else in a file."""
    made: list[Path] = []

    def make(size: int) -> Mounted:
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        in_memory = os.geteuid() == 0 and _in_memory(folder, size)
        if not in_memory and not (os.geteuid() == 0 and _in_a_file(folder, size)):
            missing("a file system of the test's own, which root may mount")
        made.append(folder)
        return Mounted(folder, size, in_memory=in_memory)

    yield make
    for folder in made:
        _run("umount", "--lazy", str(folder))


def _in_memory(folder: Path, size: int) -> bool:
    return _done("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder))


def _in_a_file(folder: Path, size: int) -> bool:
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(size)
    return _done("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and _done(
        "mount", "-o", "loop", str(image), str(folder)
    )


def _done(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
