"""Files in shared memory: grown whole or not at all, and made by one of two who want the name."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.execute import shared_file
from mementum.execute.shared_file import CHUNK, FLAGS, create, let_go, take


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as folder:
        yield os.path.join(folder, "slot")


def test_a_name_is_given_once(path: str) -> None:
    file = create(path)
    assert file is not None
    assert create(path) is None
    assert take(path) is None
    file.close()
    again = take(path)
    assert again is not None
    again.close()
    os.unlink(path)
    assert take(path) is None


def test_the_mode_does_not_depend_on_the_umask(path: str) -> None:
    before = os.umask(0o277)
    try:
        file = create(path)
    finally:
        os.umask(before)
    assert file is not None
    assert os.stat(path).st_mode & 0o7777 == 0o600
    file.close()


def test_a_growth_that_fails_half_way_changes_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = create(path)
    assert file is not None
    file.reserve(4096)
    real = os.posix_fallocate

    def full(descriptor: int, at: int, size: int) -> None:
        if at > CHUNK:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, at, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        file.reserve(3 * CHUNK)
    assert (file.size, os.stat(path).st_blocks) == (4096, 8)
    assert file.fault(4096) is None
    file.reserve(100)  # never shorter
    assert file.size == 4096
    file.close()


def test_whoever_looks_for_the_dead_may_be_quicker_than_the_lock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, others = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not others:
            others.append(os.open(path, FLAGS))
            real(others[0], how)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert create(path) is None
    assert not os.path.exists(path)
    os.close(others[0])


def test_one_that_was_removed_before_it_was_locked_is_not_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def removed(descriptor: int, how: int) -> None:
        os.unlink(path)
        Path(path).write_text("another's")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed)
    assert create(path) is None
    assert Path(path).read_text() == "another's"


def test_no_locks_here(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match="No locks"):
        create(path)
    assert not os.path.exists(path)
    Path(path).touch(mode=0o600)
    with pytest.raises(OSError, match="No locks"):
        take(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_is_replaced_between_look_and_open_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(path).touch(mode=0o600)
    real = shared_file.what_is_wrong
    answers = [None, "belongs to user 1"]
    monkeypatch.setattr(shared_file, "what_is_wrong", lambda status: real(status) or answers.pop(0))
    with pytest.raises(PermissionError, match="belongs to user 1"):
        take(path)


def test_another_file_of_its_name_is_not_mapped(path: str) -> None:
    file = create(path)
    assert file is not None
    file.reserve(4096)
    os.unlink(path)
    Path(path).write_bytes(bytes(4096))
    with pytest.raises(FileNotFoundError, match="another file has taken its name"):
        file.map(4096, writable=True)
    file.remove()
    assert os.path.exists(path)
    file.close()


def test_the_lock_ends_with_the_file_though_a_mapping_lives(path: str) -> None:
    file = create(path)
    assert file is not None
    file.reserve(4096)
    mapping = file.map(4096, writable=True)
    file.close()
    again = take(path)
    assert again is not None
    again.close()
    view = memoryview(mapping)
    let_go(mapping)  # still looked at: it stays
    assert bytes(view[:4]) == bytes(4)
    view.release()
    let_go(mapping)
    assert mapping.closed
