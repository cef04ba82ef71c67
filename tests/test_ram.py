"""Snapshots in shared memory outlive their process: the next start finds, proves and places them, or frees them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from deaths import die, hold_disk, left, steps_left
from mementum import draining, ram, slotting
from mementum.background import Background
from mementum.clock import SystemClock
from mementum.errors import StateMismatch, StoreError, TaskInUse
from mementum.events import Committed, Failed, Note, PassedOver
from mementum.execute.leftovers import Left
from mementum.execute.memory_slots import MemorySlots
from mementum.execute.room import Room, look
from mementum.execute.slot_file import FLAG_AT, VALID, render_page, render_tail
from mementum.execute.slots import Slots, name_of
from mementum.execute.snapshot import Snapshot
from mementum.storage.local import LocalStore
from trips import Told, bits

TASK = "t"
DISK_STEPS = 2  # reach the disk; the steps after them stay in memory


class Made:
    """A model and its optimizer, the same for the same seed."""

    def __init__(self, width: int = 8) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(width, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, self.model.in_features)).pow(2).mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, object]:
        return bits([self.model.state_dict(), self.optimizer.state_dict()])


def open_run(root: Path, made: Made, **wishes: Any) -> mementum.Run:
    wishes = {"task": TASK, "every_steps": 1, "keep_last": None, **wishes}
    return mementum.open_run(root, model=made.model, optimizer=made.optimizer, **wishes)


def steps_on_disk(root: Path) -> list[int]:
    return [int(path.parent.name[5:15]) for path in sorted(root.rglob("meta.json"))]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "root"
    made.mkdir()
    yield made
    for one in left(made, TASK):
        one.remove()


def kill_after(root: Path, steps: int, made: Made | None = None, **wishes: Any) -> Made:
    """Train, with the disk held back after DISK_STEPS, and die."""
    made = made or Made()
    run = open_run(root, made, **wishes)
    for number in range(1, steps + 1):
        if number == DISK_STEPS + 1:
            hold_disk(run)
        made.step()
        run.record()
        if number <= DISK_STEPS:
            run.wait()
    die(run)
    return made


def test_a_start_comes_back_from_memory_and_makes_it_durable(root: Path) -> None:
    dead = kill_after(root, 4)
    assert steps_left(root, TASK)[0] == 4
    fresh, told = Made(), Told()
    with open_run(root, fresh, resume="must", on_event=told) as run:
        assert (run.step, run.resumed.step, run.resumed.tier, run.resumed.rung) == (4, 4, "ram", "exact")
        assert fresh.state() == dead.state()
        assert run.wait()
        assert steps_on_disk(root) == [1, 2, 4]
        assert steps_left(root, TASK) == []  # given back as soon as it is durable
    assert [event.step for event in told.of(Committed)] == [4]
    again = Made()
    with open_run(root, again, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (4, "ssd")
        assert again.state() == dead.state()
    assert list(left(root, TASK)) == []


def test_a_first_snapshot_that_never_reached_the_disk_is_enough(root: Path) -> None:
    made = Made()
    run = open_run(root, made)
    hold_disk(run)
    made.step()
    run.record()
    die(run)
    assert steps_on_disk(root) == []
    fresh = Made()
    with open_run(root, fresh, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (1, "ram")
        assert fresh.state() == made.state()
    assert steps_on_disk(root) == [1]


def test_a_start_that_dies_before_it_has_placed_it_loses_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = kill_after(root, 4)
    for _ in range(2):
        held: list[Snapshot] = []
        with monkeypatch.context() as patch:
            patch.setattr(Background, "submit", lambda self, snapshot, describe=None, to=held: to.append(snapshot))
            run = open_run(root, Made())
        assert run.resumed.step == 4
        assert list(left(root, TASK)) == []  # this start has them
        die(run)
        run._background.ending = True
        held[0].release()
        assert steps_left(root, TASK) == [4, 3]  # the older one too, which no disk has
        assert steps_on_disk(root) == [1, 2]
    fresh = Made()
    with open_run(root, fresh) as run:
        assert run.resumed.tier == "ram"
        assert fresh.state() == dead.state()


def test_a_disk_that_fails_while_it_is_placed_leaves_it_for_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = kill_after(root, 4)
    told = Told()

    put = LocalStore.put

    def full(store: LocalStore, key: str, chunks: Any) -> Any:
        if key.startswith("step_"):
            raise StoreError(key, f"{key}: no space is left on the disk")
        return put(store, key, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", full)
        run = open_run(root, Made(), on_event=told)
        assert run.resumed.tier == "ram"
        run.close(why="stopped")
    assert [event.what for event in told.of(Failed)] == ["the save of step 4"]
    assert steps_left(root, TASK) == [4, 3]
    fresh = Made()
    with open_run(root, fresh) as run:
        assert (run.resumed.step, run.resumed.tier) == (4, "ram")
        assert fresh.state() == dead.state()
    assert steps_on_disk(root) == [1, 2, 4]


def test_a_state_that_does_not_fit_leaves_it_where_it_lies(root: Path) -> None:
    kill_after(root, 3)
    with pytest.raises(StateMismatch):
        open_run(root, Made(width=4))
    assert steps_left(root, TASK)[0] == 3
    with open_run(root, Made()) as run:
        assert run.resumed.step == 3


def test_beginning_anew_keeps_it_as_a_checkpoint(root: Path) -> None:
    dead = kill_after(root, 4)
    fresh = Made()
    with open_run(root, fresh, resume="never") as run:
        assert (run.step, run.resumed) == (0, None)
        run.wait()
        assert steps_on_disk(root) == [1, 2, 4]
    with mementum.open_run(root, task="other", state={"s": {}}):
        pass
    again = Made()
    with open_run(root, again) as run:
        assert run.resumed.step == 4
        assert again.state() == dead.state()


def test_what_is_on_the_disk_already_comes_from_memory_and_is_not_written_again(root: Path) -> None:
    dead = kill_after(root, DISK_STEPS)
    assert steps_left(root, TASK)[0] == DISK_STEPS
    fresh, told = Made(), Told()
    with open_run(root, fresh, on_event=told) as run:
        assert (run.resumed.step, run.resumed.tier) == (DISK_STEPS, "ram")
        assert fresh.state() == dead.state()
    assert list(left(root, TASK)) == []
    assert told.of(Committed) == []
    assert steps_on_disk(root) == [1, 2]


def test_what_a_later_attempt_has_left_behind_is_freed(root: Path) -> None:
    """The memory's branch ended when another attempt went on from an older checkpoint, on another machine."""
    kill_after(root, 5)
    paths = [one.path for one in left(root, TASK)]
    held = {path: Path(path).read_bytes() for path in paths}
    for path in paths:
        os.unlink(path)
    made = Made()
    with open_run(root, made) as run:
        assert run.resumed.step == DISK_STEPS
        made.step()
        run.record()
    for path, data in held.items():
        Path(path).write_bytes(data)
        os.chmod(path, 0o600)
    with open_run(root, Made()) as run:
        assert (run.resumed.step, run.resumed.tier) == (DISK_STEPS + 1, "ssd")
    assert not any(map(os.path.exists, held))


def test_of_a_torn_one_the_older_whole_one_is_used(root: Path) -> None:
    kill_after(root, 4)
    newest, older, *_ = [one.path for one in left(root, TASK)]
    with open(newest, "r+b") as file:
        file.seek(8)
        file.write(bytes(8))
    steps = steps_left(root, TASK)
    assert 4 not in steps
    with open_run(root, Made()) as run:
        assert (run.resumed.step, run.resumed.tier) == (steps[0], "ram")
    assert not os.path.exists(newest)
    assert not os.path.exists(older)


def _other_task(one: Left, file: Any) -> None:
    assert one.stamp is not None
    _rewrite(one, one.stamp.head.replace(b'"task":"t"', b'"task":"u"'))


def _other_version(one: Left, file: Any) -> None:
    assert one.stamp is not None
    _rewrite(one, one.stamp.head.replace(b'"format":1', b'"format":9'))


def _no_head(one: Left, file: Any) -> None:
    _rewrite(one, b"garbage")


def _rewrite(one: Left, head: bytes) -> None:
    assert one.stamp is not None
    assert head != one.stamp.head
    stamp = replace(one.stamp, head=head)
    tail = render_tail(stamp)
    with open(one.path, "r+b") as file:
        file.seek(stamp.layout.end)
        file.write(tail)
        file.seek(0)
        file.write(render_page(stamp, tail))
        file.seek(FLAG_AT)
        file.write(VALID)


@pytest.mark.parametrize("spoil", [_other_task, _other_version, _no_head])
def test_one_that_is_not_ours_to_read_is_passed_over_and_stays(root: Path, spoil: Callable[..., None]) -> None:
    kill_after(root, 3)
    newest, *_ = left(root, TASK)
    for one in left(root, TASK):
        if one.path == newest.path:
            spoil(one, None)
        else:
            one.remove()
    told = Told()
    with open_run(root, Made(), on_event=told) as run:
        assert (run.resumed.step, run.resumed.tier) == (DISK_STEPS, "ssd")
        assert [newest.path in event.what for event in told.of(PassedOver)] == [True]
        assert os.path.exists(newest.path)
    assert os.path.exists(newest.path)


PLANTED: dict[str, Callable[[Path], object]] = {
    "another mode": lambda path: (path.write_bytes(b"x" * 8192), path.chmod(0o644)),
    "another name too": lambda path: (path.write_bytes(b"x"), path.chmod(0o600), os.link(path, f"{path}.link")),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path, 0o600),
    "another user": lambda path: (path.write_bytes(b"x" * 8192), path.chmod(0o600), os.chown(path, 65534, 65534)),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_somebody_planted_under_our_names_is_refused_and_stays(root: Path, what: str) -> None:
    if what == "another user" and os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    path = Path(ram.FOLDER, name_of(ram.key_of(root.resolve(), TASK), 0))
    PLANTED[what](path)
    before = path.lstat()
    told = Told()
    try:
        with open_run(root, made := Made(), on_event=told) as run:
            for _ in range(3):
                made.step()
                run.record()
                run.wait()
            mine = [one.name for one in Path(ram.FOLDER).glob(f"{path.name[:-2]}*") if one.name[-2:] in ("-1", "-2")]
            assert mine
        after = path.lstat()
        assert (after.st_ino, after.st_mode, after.st_uid, after.st_size) == (
            before.st_ino,
            before.st_mode,
            before.st_uid,
            before.st_size,
        )
        notes = [event.text for event in told.of(Note) if str(path) in event.text]
        assert len(notes) == 1
        assert notes[0].endswith("it is not used, and stays as it is")
        assert [event.step for event in told.of(Committed)] == [1, 2, 3]
        assert [one.path for one in left(root, TASK)] == []
    finally:
        if stat.S_ISDIR(before.st_mode):
            path.rmdir()
        else:
            path.unlink()
            Path(f"{path}.link").unlink(missing_ok=True)


def test_drain_places_the_newest_and_frees_all(root: Path) -> None:
    dead = kill_after(root, 5)
    assert ram.tasks_with_leftovers(root) == (TASK,)
    assert len(ram.left_of(root.resolve(), TASK)) >= 2
    told = Told()
    drained = draining.drain(root, TASK, clock=SystemClock(), emit=told)
    assert drained.placed is not None
    assert drained.placed.step == 5
    assert steps_on_disk(root) == [1, 2, 5]
    assert ram.tasks_with_leftovers(root) == ()
    fresh = Made()
    with open_run(root, fresh) as run:
        assert (run.resumed.step, run.resumed.tier) == (5, "ssd")
        assert fresh.state() == dead.state()
        with pytest.raises(TaskInUse):
            draining.drain(root, TASK, clock=SystemClock(), emit=told)
    nothing = draining.drain(root, TASK, clock=SystemClock(), emit=told)
    assert (nothing.placed, nothing.why, nothing.removed) == (None, "no process has left a snapshot in memory", 0)


def test_the_key_is_of_root_and_task() -> None:
    keys = {ram.key_of(Path(root), task) for root in ("/a", "/b") for task in ("s", "t")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {ram.KEY_LENGTH}


def test_slots_are_of_the_kind_that_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = look(shm=ram.FOLDER)

    def kind(room: Room, wanted: int) -> tuple[type | None, int]:
        monkeypatch.setattr(slotting, "look", lambda *, shm: room)
        slots = slotting.ChosenSlots("abcd", wanted=wanted, emit=Told())
        slots.warm([10_000])
        try:
            return (type(slots._slots) if slots._slots is not None else None), slots._count
        finally:
            slots.close()

    assert kind(real, 3) == (Slots, 3)
    assert kind(real, 2) == (Slots, 2)
    assert kind(real, 0) == (MemorySlots, slotting.IN_PROCESS)
    assert kind(replace(real, shm_usable=False), 3) == (MemorySlots, 3)
    assert kind(replace(real, shm_size=600_000, shm_free=600_000), 3)[0] is MemorySlots
    assert kind(replace(real, host_available=0), 3) == (None, 0)
    assert not list(Path(ram.FOLDER).glob("mementum-*-abcd-*"))


def test_a_snapshot_of_another_folder_at_the_same_place_is_passed_over_and_stays(root: Path) -> None:
    kill_after(root, 4)
    shutil.rmtree(root)
    told = Told()
    with open_run(root, Made(), on_event=told) as run:
        assert run.resumed is None
        assert len(steps_left(root, TASK)) > 0
    assert all("another folder stood here" in event.what for event in told.of(PassedOver))
    assert len(told.of(PassedOver)) > 0
    drained = draining.drain(root, TASK, clock=SystemClock(), emit=told)
    assert (drained.placed, drained.removed) == (None, 0)
    assert "and stays: /dev/shm/mementum-" in (drained.why or "")
