"""Disks that refuse, fill up or vanish under a run: training goes on, and older checkpoints stay whole."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TASK, damage_of, folders_of, live, things, tiny_run, train_once, unfinished

import mementum
from mementum.errors import StoreError
from mementum.events import Committed, Failed
from mementum.storage.disk import PosixDisk
from mementum.testing.faults import FailingDisk
from trips import Told, files

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EACCES)
SAVES = 3
KEPT = 2  # so that the last of them removes the first
EVERY_OPERATION, EVERY_THIRD = 1, 3
OPERATIONS_OF_A_RUN = 120  # at least; a test that stops before has tested little
BROKEN_STEP = 15  # every so many operations the disk breaks for good

REOPENED = 8  # of so many runs one is resumed

Under = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a start asks git and the packages, which is no disk's matter and takes half of its time."""
    monkeypatch.setattr("mementum.doors.origin.versions", dict)
    monkeypatch.setattr("mementum.doors.origin.code", dict)


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> Under:
    """Puts a disk under the runs that are opened from now on."""

    def put(disk: Any) -> Any:
        monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
        return disk

    return put


def run_or_error(root: Path) -> tuple[Told, None] | tuple[None, BaseException | None]:
    """What was told, or the cause for which there was no run."""
    try:
        return tiny_run(root, SAVES, keep_last=KEPT), None
    except StoreError as error:
        return None, error.__cause__


def resumes_at(root: Path) -> int:
    """The step at which a run on a healthy disk goes on. It sweeps, saves once more, and leaves the root in order."""
    given = things(5)
    with mementum.open_run(root, task=TASK, on_error="raise", keep_last=KEPT, **given) as run:
        step = run.step
        train_once(given)
        run.record()
    assert unfinished(root) == []
    assert [damage_of(folder) for folder in folders_of(root)] == [()] * len(folders_of(root))
    assert all((path / "meta.json").exists() for path in root.glob("*/*/step_*"))
    return step


@pytest.mark.parametrize(
    ("number", "stride"),
    [
        pytest.param(errno.ENOSPC, EVERY_OPERATION, id="ENOSPC"),
        # Which error it is matters to what is told, not to which way is taken: a sample shows that.
        pytest.param(errno.EIO, EVERY_THIRD, id="EIO"),
        pytest.param(errno.EACCES, EVERY_THIRD, id="EACCES"),
        pytest.param(errno.EIO, EVERY_OPERATION, id="EIO, every operation", marks=pytest.mark.soak),
        pytest.param(errno.EACCES, EVERY_OPERATION, id="EACCES, every operation", marks=pytest.mark.soak),
    ],
)
def test_whatever_operation_fails_the_run_goes_on(fast_path: Path, under: Under, number: int, stride: int) -> None:
    runs = refused = at = 0
    for at in itertools.count(number % stride, stride):
        runs += 1
        root = fast_path / str(at)
        disk = under(FailingDisk(PosixDisk(), at, OSError(number, "planted")))
        told, error = run_or_error(root)
        if told is None:  # the start was refused: nothing is trained yet
            refused += 1
            assert isinstance(error, OSError)
            assert error.errno == number
            assert folders_of(root) == unfinished(root) == []
            told = tiny_run(root, SAVES, keep_last=KEPT)
        if not disk.failed:
            break
        saved = [event.step for event in told.of(Committed)]
        lost = {step for step in range(1, SAVES + 1) if step not in saved}
        assert len(lost) <= 1
        assert not lost or told.of(Failed)
        assert [damage_of(folder) for folder in folders_of(root)] == [()] * len(folders_of(root))
        assert unfinished(root) == []
        assert {f"step_{step:010d}" for step in saved[-KEPT:]} <= {path.name for path in folders_of(root)}
        if runs % REOPENED == 0:
            assert resumes_at(root) == saved[-1]
        shutil.rmtree(root)
    assert refused < runs / 4
    assert at >= OPERATIONS_OF_A_RUN


@pytest.mark.parametrize("number", [*NUMBERS, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_stays_broken_costs_saves_and_no_training(fast_path: Path, under: Under, number: int) -> None:
    for at in itertools.count(0, BROKEN_STEP):
        root = fast_path / str(at)
        disk = under(FailingDisk(PosixDisk(), at, OSError(number, "planted"), then_heal=False))
        told, error = run_or_error(root)
        if told is None:
            assert isinstance(error, OSError)
            assert folders_of(root) == []
            assert resumes_with_a_healthy_disk(root, under) == 0
            continue
        if not disk.failed:
            break
        saved = [event.step for event in told.of(Committed)]
        assert told.of(Failed)
        assert all(f"step_{step:010d}" in {path.name for path in folders_of(root)} for step in saved[-KEPT:])
        assert [damage_of(folder) for folder in folders_of(root)] == [()] * len(folders_of(root))
        # One more may be there, whole, of which only the last fsync failed: a broken disk does not let us take it away.
        assert resumes_with_a_healthy_disk(root, under) >= max(saved, default=0)
        shutil.rmtree(root)


def resumes_with_a_healthy_disk(root: Path, under: Under) -> int:
    under(PosixDisk())
    return resumes_at(root)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_root_that_cannot_be_written_is_told_at_once(fast_path: Path, under: Under, number: int) -> None:
    words = {errno.EROFS: "the file system is read-only", errno.EACCES: "no permission", errno.EDQUOT: "quota"}
    under(FailingDisk(PosixDisk(), 0, OSError(number, "planted"), then_heal=False))
    given = things(1)
    before = live(given)
    with pytest.raises(StoreError, match=words[number]) as caught:
        mementum.open_run(fast_path / "root", task=TASK, **given)
    assert caught.value.next_command
    assert live(given) == before
    assert list(fast_path.iterdir()) == []


def test_a_disk_that_vanishes_costs_saves_and_is_told(fast_path: Path) -> None:
    root, told, given = fast_path / "root", Told(), things(1)
    with mementum.open_run(root, task=TASK, every_steps=1, on_event=told, **given) as run:
        train_once(given)
        run.record()
        assert run.wait()
        assert not told.of(Failed)
        shutil.rmtree(root)
        for _ in range(3):
            train_once(given)
            run.record()
            assert run.wait()
    (failed,) = told.of(Failed)
    assert "was removed, moved or unmounted" in failed.error
    assert [event.step for event in told.of(Committed)] == [1, 2, 3, 4]
    assert resumes_at(root) == 4


def test_a_folder_that_cannot_be_made_again_costs_the_saves_and_not_the_training(fast_path: Path) -> None:
    root, told, given = fast_path / "root", Told(), things(1)
    with mementum.open_run(root, task=TASK, every_steps=1, on_event=told, **given) as run:
        run.record()
        assert run.wait()
        shutil.rmtree(root)
        root.write_text("a file in its place")
        for _ in range(3):
            train_once(given)
            run.record()
            assert run.wait()
    assert [event.step for event in told.of(Committed)] == [1]
    assert {event.what for event in told.of(Failed)} >= {"the save of step 2", "the save of step 3"}
    assert root.read_text() == "a file in its place"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_a_root_that_cannot_be_read_is_told_at_once(fast_path: Path, under: Under, number: int) -> None:
    class Unreadable(PosixDisk):
        def listdir(self, folder: str) -> list[str]:
            raise OSError(number, os.strerror(number), folder)

    tiny_run(fast_path)
    before = files(fast_path)
    under(Unreadable())
    with pytest.raises(StoreError):
        mementum.open_run(fast_path, task=TASK, **things(1))
    assert files(fast_path) == before
