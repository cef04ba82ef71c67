"""Disks that fill up under a run: what is worth least goes, what others have and what must stay does not, and the
training goes on."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from disks import WAIT_S, Quota
from mementum.catalog.noted import ROOM
from mementum.cli.pinning import pin
from mementum.errors import StoreError
from mementum.events import Committed, Failed, NoRoom, Removed, RoomMade, SaveSkipped, Settled
from mementum.records import Entry
from mementum.recover.load import Loaded, load
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mounts import Mounted
from trips import Told

MB = 1 << 20
SIZE = 40 * MB
STATE = 2 * MB
Mount = Callable[[int], Mounted]


class Training:
    """Saves 2 MB at each step, which say its number."""

    def __init__(self) -> None:
        self.held, self.told = torch.zeros(STATE // 4), Told()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        config = {"scrub": "off", "slots": 0, **wishes.pop("config", {})}
        state = {"s": {"t": self.held}}
        wishes = {"keep_last": None, "every_steps": 1, "on_event": self.told, **wishes}
        return mementum.open_run(root, task="t", state=state, config=config, **wishes)

    def steps(self, run: mementum.Run, count: int) -> None:
        for _ in range(count):
            self.held.fill_(run.step + 1)
            run.record(loss=1 / (run.step + 1))
            assert run.wait()

    def of(self, kind: type) -> list[Any]:
        return self.told.of(kind)


@pytest.fixture
def training() -> Training:
    return Training()


def kept(run: mementum.Run) -> dict[int, Entry]:
    """Whole checkpoints by step, each of which holds the state of its step."""
    found = {entry.manifest.step: entry for entry in run._opened.catalog.entries(run._opened.home)}
    for step, entry in found.items():
        assert verify(run._opened.store, entry.folder, entry.manifest, deep=True) == ()
        loaded = load(run._opened.store, entry.folder, entry.manifest)
        assert isinstance(loaded, Loaded)
        assert torch.equal(loaded.tensors["s"]["t"], torch.full((STATE // 4,), float(step)))
    return found


def removals(run: mementum.Run) -> dict[str, str]:
    """By whom each was removed, as the facts say."""
    lines = bytes(run._opened.store.get(run._opened.journal)).splitlines()
    said = [json.loads(line) for line in lines if line]
    return {fact["checkpoint"]: fact["values"]["by"] for fact in said if fact["kind"] == "removed"}


def test_somebody_else_fills_the_disk(mount: Mount, training: Training) -> None:
    disk = mount(SIZE)
    with training.open(disk.folder / "root") as run, disk.watched() as seen:
        training.steps(run, 10)
        assert sorted(kept(run)) == list(range(1, 11))  # 22 MB of 40: nothing has to go
        assert training.of(RoomMade) == []
        disk.fill(0.88)
        training.steps(run, 2)
        few = kept(run)
        assert {12} < set(few) < set(range(1, 13))
        assert training.of(NoRoom) == training.of(SaveSkipped) == []
        assert set(removals(run).values()) == {ROOM}
        while not training.of(SaveSkipped):
            disk.fill(0.95)
            training.steps(run, 1)  # what may go makes room for one more, as long as there is any
        (newest,) = kept(run)
        training.steps(run, 2)
        assert [event.step for event in training.of(SaveSkipped)] == [newest + 1, newest + 2, newest + 3]
        assert set(kept(run)) == {newest}
        (told,) = [event for event in training.of(NoRoom) if not event.saves]
        assert told.place == str(disk.folder / "root")
        assert f"df -h {disk.folder / 'root'}" in told.next_command
        disk.fill(0.30)
        training.steps(run, 2)
        assert set(kept(run)) == {newest, newest + 4, newest + 5}
    assert training.of(Failed) == []
    assert max(seen) < 0.97  # what others have, and nothing of ours on top


def test_a_disk_that_is_full_at_the_start(mount: Mount, training: Training) -> None:
    disk = mount(SIZE)
    disk.fill(0.93)
    with training.open(disk.folder / "root") as run:
        training.steps(run, 3)
        assert kept(run) == {}
        assert [event.step for event in training.of(SaveSkipped)] == [1, 2, 3]
        assert len(training.of(NoRoom)) == 1
    assert [event.step for event in training.of(Committed)] == [3]  # the run's end is tried, and fits
    assert training.of(Failed) == []


def test_a_disk_without_a_byte_left_at_the_start_is_told_at_once(mount: Mount, training: Training) -> None:
    disk = mount(SIZE)
    disk.fill(0.99)
    with (disk.folder / "the rest").open("wb", buffering=0) as file:
        rest = itertools.repeat(bytes(4096))
        with pytest.raises(OSError, match="No space left"):
            file.writelines(rest)
    with pytest.raises(StoreError, match="the disk is full") as caught:
        training.open(disk.folder / "root")
    assert "df -h" in str(caught.value.next_command)


def test_pins_protect_everything_until_a_listener_expands_the_disk(mount: Mount, training: Training) -> None:
    disk = mount(SIZE // 2)
    if not disk.in_memory:
        pytest.skip("only a file system in memory can be expanded by a remount")
    root, heard = disk.folder / "root", list[NoRoom]()

    def expand(event: object) -> None:
        if isinstance(event, NoRoom):
            heard.append(event)
            if not event.saves:
                disk.grow(SIZE)

    with training.open(root, on_event=[training.told, expand]) as run:
        for _ in range(10):
            training.steps(run, 1)
            pin(str(root), f"@{run.step}", why="all of them", by=None, as_json=False)
        assert sorted(kept(run)) == list(range(1, 11))
    assert [event.saves for event in heard] == [True, False]
    assert heard[1].missing > 0
    assert training.of(SaveSkipped) == training.of(RoomMade) == training.of(Removed) == training.of(Failed) == []


class FilledInTheMiddle(PosixDisk):
    """When a part of the checkpoint of `step` is made, somebody takes all that is left."""

    def __init__(self, disk: Mounted, step: int) -> None:
        self._fill, self._part = disk.fill, f"/step_{step:010d}/"

    def create(self, path: str) -> Any:
        if self._part in path:
            self._part = "never again"
            self._fill(0.999)
        return super().create(path)


def test_no_space_is_left_in_the_middle_of_a_save(
    mount: Mount, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = mount(SIZE)
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: FilledInTheMiddle(disk, 6))
    with training.open(disk.folder / "root") as run:
        training.steps(run, 6)
        assert training.of(Failed) == training.of(SaveSkipped) == []
        assert {6} <= set(kept(run)) < set(range(1, 7))
        assert not list(disk.folder.rglob("*.tmp"))


def test_no_space_is_left_in_the_middle_and_nothing_may_go(
    mount: Mount, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = mount(SIZE)
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: FilledInTheMiddle(disk, 2))
    with training.open(disk.folder / "root") as run:
        training.steps(run, 2)
        assert set(kept(run)) == {1}
        (failed,) = training.of(Failed)
        assert "the save of step 2" in failed.what
        assert "the disk is full" in failed.error
        (told,) = training.of(NoRoom)
        assert not told.saves
        assert not list(disk.folder.rglob("*.tmp"))
        os.unlink(disk.folder / "of somebody else")
        training.steps(run, 1)
        assert set(kept(run)) == {1, 3}
    assert len(training.of(Failed)) == 1


def test_a_quota_that_the_file_system_does_not_tell_of(
    fast_path: Path, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Quota(7 * MB)
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    with training.open(fast_path / "root") as run:
        training.steps(run, 8)
        assert sorted(kept(run)) == [7, 8]
        assert set(removals(run).values()) == {ROOM}
    assert len(training.of(RoomMade)) == 3
    assert [event.step for event in training.of(Committed)] == list(range(1, 9))
    assert training.of(NoRoom) == []
    assert training.of(Failed) == []


def test_off_is_off(mount: Mount, training: Training) -> None:
    disk = mount(SIZE // 2)
    with training.open(disk.folder / "root", config={"watermarks": "off"}) as run:
        training.steps(run, 9)
        assert sorted(kept(run)) == list(range(1, 10))
        assert disk.used > 0.9


def test_marks_of_ones_own(mount: Mount, training: Training) -> None:
    disk = mount(SIZE)
    marks = {"clean_from": "40%", "clean_to": "20%", "emergency": "50%"}
    with disk.watched() as seen, training.open(disk.folder / "root", config={"watermarks": marks}) as run:
        training.steps(run, 20)
    assert max(seen) < 0.5
    assert len(training.of(Committed)) == 20


def test_nothing_is_compressed_where_two_copies_do_not_fit(mount: Mount, training: Training) -> None:
    """Until it is done the old bytes lie there beside the new ones."""
    disk = mount(SIZE)
    wishes = {"codec": "planes+zstd:1", "config": {"watermarks": {"clean_from": "95%", "emergency": "95%"}}}
    with training.open(disk.folder / "root", **wishes) as run:
        disk.fill(0.88)
        for settled in (0, 1):
            training.steps(run, 1)
            assert run._background._compressing._settler.drain(WAIT_S)
            assert len(training.of(Settled)) == settled
            assert set(kept(run)) == set(range(1, run.step + 1))
            disk.fill(0.10)
    assert training.of(Failed) == []
