"""A local file gives the bytes of any range, whether its file system reads directly or refuses to."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mementum.storage.reading import ALIGNMENT, LocalFile, aligned_buffer

SIZE = 3 * ALIGNMENT + 1001
DIRECT = getattr(os, "O_DIRECT", 0)


@pytest.fixture
def content() -> bytes:
    return random.Random(3).randbytes(SIZE)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


def refuse_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def refusing(path: Path, flags: int) -> int:
        if flags & DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really(path, flags)

    monkeypatch.setattr(os, "open", refusing)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    really, asked = os.preadv, []

    def refusing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(descriptor)
        if len(asked) == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", refusing)


def read_short(monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, views, at: really(file, [views[0][: min(700, len(views[0]))]], at))


def do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the file system has it."""


@pytest.mark.parametrize("harm", [do_nothing, refuse_to_open, refuse_to_read], ids=lambda harm: harm.__name__)
def test_any_range_comes_back(
    path: Path, content: bytes, harm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    harm(monkeypatch)
    buffer, seeded = aligned_buffer(SIZE), random.Random(5)
    ranges = [
        (0, SIZE),
        (0, 0),
        (1, 1),
        (ALIGNMENT, ALIGNMENT),
        (SIZE - 1, 1),
        (SIZE - 1, 50),
        (SIZE, 9),
        (SIZE * 2, 9),
    ]
    ranges += [(seeded.randrange(SIZE), seeded.randrange(SIZE)) for _ in range(50)]
    with LocalFile(path) as file:
        for start, size in ranges:
            assert bytes(file.read(start, size, buffer)) == content[start : start + size], (start, size)
        assert harm is do_nothing or not file.is_direct


def test_short_reads_are_gone_on_with(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_open(monkeypatch)
    read_short(monkeypatch)
    with LocalFile(path) as file:
        assert bytes(file.read(5, SIZE, aligned_buffer(SIZE))) == content[5:]


def test_an_error_of_the_disk_is_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with LocalFile(path) as file, pytest.raises(OSError, match="Input/output"):
        file.read(0, SIZE, aligned_buffer(SIZE))


def test_what_is_no_regular_file_is_refused(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("link", "pipe", "none", "."):
        with pytest.raises(OSError, match=re.escape(str(tmp_path))):
            LocalFile(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == before
