"""Whatever fails while a state is taken and written, training goes on, an event says what, and the next save works."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from deaths import die, hold_disk, left, steps_left
from disks import FullDisk
from mementum import ram, slotting
from mementum.errors import StoreError
from mementum.events import Committed, Failed, Note, SaveSkipped
from mementum.execute import shared_file, slots
from mementum.execute.room import look
from mementum.once import Once
from mementum.records import Save
from mementum.storage.local import LocalStore
from mementum.taking import Moment
from trips import Told, bits

TASK = "t"
SMALL = 64 << 20  # bytes: what many containers have as /dev/shm


class Made:
    """A training of 800 kB of state, with a listener."""

    def __init__(self, width: int = 256) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(width, width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.told = Told()

    def step(self, run: mementum.Run) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, self.model.in_features)).pow(2).mean().backward()
        self.optimizer.step()
        run.record()
        assert run.wait()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        opening = {"model": self.model, "optimizer": self.optimizer, "every_steps": 1, "keep_last": None, **wishes}
        return mementum.open_run(root, task=TASK, on_event=self.told, **opening)

    def state(self) -> dict[str, object]:
        return bits([self.model.state_dict(), self.optimizer.state_dict()])

    @property
    def committed(self) -> list[int]:
        return [event.step for event in self.told.of(Committed)]

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.told.of(Note)]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Shared memory of this test's own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as path:
        monkeypatch.setattr(ram, "FOLDER", path)
        monkeypatch.setattr(slotting, "SHM", path)
        yield Path(path)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A /dev/shm of 64 MB."""
    path = tmp_path / "shm"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a file system")
    monkeypatch.setattr(ram, "FOLDER", str(path))
    monkeypatch.setattr(slotting, "SHM", str(path))
    yield path
    subprocess.run(["umount", str(path)], check=True)


def slot_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("mementum-*-*-*"))


def assert_comes_back(root: Path, made: Made, step: int) -> None:
    fresh = Made(made.model.in_features)
    with fresh.open(root, resume="must") as run:
        assert run.resumed.step == step
        assert fresh.state() == made.state()


# The writer.


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        RuntimeError("of somebody else's"),
        MemoryError(),
        StoreError("k", "k: no space is left on the disk"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_put_that_raises_costs_one_save(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    put, at = LocalStore.put, [2]

    def fail(store: LocalStore, key: str, chunks: Any) -> Any:
        if key.startswith(f"step_{at[0]:010d}/"):
            raise error
        return put(store, key, chunks)

    monkeypatch.setattr(LocalStore, "put", fail)
    with made.open(tmp_path) as run:
        for _ in range(4):
            made.step(run)
    assert made.committed == [1, 3, 4]
    (failed,) = made.told.of(Failed)
    assert (failed.what, failed.kept) == ("the save of step 2", "older checkpoints")
    assert type(error).__name__ in failed.error
    assert_comes_back(tmp_path, made, 4)


def test_a_full_disk_that_is_emptied_again(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    with made.open(tmp_path) as run:
        made.step(run)
        disk.full = "/step_"
        made.step(run)
        made.step(run)
        disk.full = ""
        made.step(run)
    assert made.committed == [1, 4]
    assert [event.what for event in made.told.of(Failed)] == ["the save of step 2", "the save of step 3"]
    assert all("disk is full" in event.error or "space" in event.error for event in made.told.of(Failed))
    assert_comes_back(tmp_path, made, 4)


def test_with_a_full_disk_the_newest_state_is_in_memory(
    tmp_path: Path, made: Made, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    run = made.open(tmp_path)
    made.step(run)
    disk.full = "/step_"
    for _ in range(5):
        made.step(run)
    assert made.committed == [1]
    die(run)
    disk.full = ""
    assert steps_left(tmp_path, TASK)[0] == 6
    assert_comes_back(tmp_path, made, 6)


# The slots.


def test_slots_removed_from_outside_between_saves(tmp_path: Path, made: Made, folder: Path) -> None:
    with made.open(tmp_path) as run:
        for number in range(1, 6):
            made.step(run)
            if number == 2:
                for path in slot_files(folder):
                    path.unlink()
        assert slot_files(folder) != []  # new ones
    assert made.committed == [1, 2, 3, 4, 5]
    assert "was removed from outside: another one takes its place" in "".join(made.notes)
    assert slot_files(folder) == []
    assert_comes_back(tmp_path, made, 5)


def test_slots_removed_from_outside_while_one_is_written(
    tmp_path: Path, made: Made, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalStore.put

    def remove_too(store: LocalStore, key: str, chunks: Any) -> Any:
        if key.startswith("step_0000000002/"):
            for path in slot_files(folder):
                path.unlink()
        return put(store, key, chunks)

    monkeypatch.setattr(LocalStore, "put", remove_too)
    with made.open(tmp_path) as run:
        for _ in range(5):
            made.step(run)
    assert made.committed == [1, 2, 3, 4, 5]
    assert made.told.of(Failed) == []
    assert_comes_back(tmp_path, made, 5)


@pytest.mark.parametrize("size", [0, 4096, 500_000])
def test_a_slot_cut_off_from_outside(tmp_path: Path, made: Made, folder: Path, size: int) -> None:
    """A touch beyond its end would kill the process."""
    with made.open(tmp_path) as run:
        for number in range(1, 6):
            made.step(run)
            if number == 2:
                for path in slot_files(folder):
                    os.truncate(path, size)
    assert made.committed == [1, 2, 3, 4, 5]
    assert f"was cut off from outside, to {size} of " in "".join(made.notes)
    assert_comes_back(tmp_path, made, 5)


@pytest.mark.parametrize("after", [0, 1])
def test_a_slot_that_cannot_have_memory(
    tmp_path: Path, made: Made, folder: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The file system is full: ENOSPC when memory is asked for, never a signal at a touch."""
    real, given = os.posix_fallocate, [after]

    def full(descriptor: int, at: int, size: int) -> None:
        if given[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        given[0] -= 1
        real(descriptor, at, size)

    monkeypatch.setattr(shared_file.os, "posix_fallocate", full)
    with made.open(tmp_path) as run:
        for _ in range(4):
            made.step(run)
        if after == 0:
            assert slot_files(folder) == []
    assert made.committed == [1, 2, 3, 4]
    assert any("fewer slots in shared memory than planned" in note for note in made.notes)
    assert_comes_back(tmp_path, made, 4)


def test_a_shared_memory_of_64_mb(tmp_path: Path, made: Made, small: Path) -> None:
    """A small state has its slots there; a large one has them in private memory, and none of both ends the process."""
    with made.open(tmp_path) as run:
        for _ in range(3):
            made.step(run)
        assert len(slot_files(small)) == 3
    assert made.committed == [1, 2, 3]
    large = Made(1800)  # 39 MB of state: two slots of it do not fit
    with large.open(tmp_path / "large") as run:
        for _ in range(3):
            large.step(run)
        assert slot_files(small) == []
    assert large.committed == [1, 2, 3]
    assert_comes_back(tmp_path / "large", large, 3)


def test_a_shared_memory_that_others_fill_up(tmp_path: Path, small: Path) -> None:
    """It was free when the number of slots was chosen, and a loader's workers have it now."""
    made = Made(1000)  # 12 MB of state: three slots fit
    with made.open(tmp_path) as run:
        made.step(run)
        (small / "batches").write_bytes(bytes(os.statvfs(small).f_bavail * 4096 - (1 << 20)))
        for _ in range(4):
            made.step(run)
    assert made.committed == [1, 2, 3, 4, 5]
    assert_comes_back(tmp_path, made, 5)


def test_the_memory_limit_is_reached_while_slots_are_made(
    tmp_path: Path, made: Made, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was room for three when they were chosen; with the first one made there is none for more."""
    room = look(shm=ram.FOLDER)

    def shrunk(**_: object) -> Any:
        return replace(room, host_available=0) if slot_files(folder) else room

    monkeypatch.setattr(slots, "look", shrunk)
    with made.open(tmp_path) as run:
        for _ in range(4):
            made.step(run)
        assert len(slot_files(folder)) == 1
    assert made.committed == [1, 2, 3, 4]
    assert [note for note in made.notes if "fewer slots" in note] != []
    assert_comes_back(tmp_path, made, 4)


@pytest.mark.parametrize("way", ["overlapped", "blocking"])
def test_with_no_memory_at_all_the_loop_stands_still_and_the_checkpoint_is_right(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    room = replace(look(shm=ram.FOLDER), host_available=0)
    monkeypatch.setattr(slotting, "look", lambda *, shm: room)
    with made.open(tmp_path, capture=way) as run:
        for number in range(1, 4):
            made.optimizer.zero_grad()
            made.model(torch.ones(1, made.model.in_features)).pow(2).mean().backward()
            made.optimizer.step()
            run.record()
            assert made.committed[-1] == number  # durable before the loop goes on
    assert made.notes == ["there is no memory for a copy of the state: the loop stands still while it is written"]
    assert made.told.of(Failed) == made.told.of(SaveSkipped) == []
    assert_comes_back(tmp_path, made, 3)


# Forked workers.


def test_forked_workers_hold_no_lock_and_no_slot(tmp_path: Path, made: Made, folder: Path) -> None:
    class Data(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> int:
            return index

    run = made.open(tmp_path)
    made.step(run)
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    batches = iter(loader)  # the workers are forks of a process that holds slots
    next(batches)
    hold_disk(run)
    for _ in range(2):
        made.optimizer.step()
        run.record()
    die(run)
    assert steps_left(tmp_path, TASK)[0] == 3  # though the workers live
    assert_comes_back(tmp_path, made, 3)
    assert list(left(tmp_path, TASK)) == []
    del batches, loader


# The moment.


def test_once_makes_a_thing_once() -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"made"

    once = Once(make)
    assert made == []
    assert (once(), once(), made) == (b"made", b"made", [1])


def test_a_moment_knows_the_metrics_of_its_own_step_only() -> None:
    moment = Moment(
        step=3,
        epoch=0,
        values={},
        rng={},
        iterating=False,
        feed=None,
        recent=({"step": 2, "loss": 2.0}, {"step": 3, "loss": 1.0}),
        exactness=(),
    )
    assert moment.metrics == {"loss": 1.0}
    assert replace(moment, step=4).metrics == {}
    assert replace(moment, recent=()).metrics == {}


def test_a_state_that_cannot_be_captured_costs_one_save(tmp_path: Path, made: Made) -> None:
    state: dict[str, Any] = {"s": {}}
    with made.open(tmp_path, state=state) as run:
        made.step(run)
        run.values["bad"] = object()
        made.step(run)
        del run.values["bad"]
        made.step(run)
        run._taker.take(Save(reason="asked"), run._moment, 3)
    assert made.committed == [1, 3, 3]
    assert [event.what for event in made.told.of(Failed)] == ["the capture of step 2"]
