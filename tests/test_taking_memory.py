"""Snapshots that stay in memory: the newest outlives the process, none takes the place of what a disk still reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mementum
from deaths import die, left, steps_left
from mementum import draining, ram, slotting
from mementum.clock import SystemClock
from mementum.events import CameToNothing, Committed, Cost, Failed, Note, SaveSkipped, SnapshotKept
from mementum.execute import copying
from mementum.execute.slots import Slot
from mementum.format import manifest as manifests
from mementum.records import Decision, Granularity, Reach, Save, Situation
from snapshots import TASK, WAIT_S, Made, Stuck, copied
from trips import Told


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck(monkeypatch)
    yield made
    made.let.set()


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for one in left(path, TASK):
        one.remove()


def steps_on_disk(root: Path) -> list[int]:
    return [int(path.parent.name[5:15]) for path in sorted(root.rglob("meta.json"))]


def assert_comes_back(root: Path, made: Made, step: int, tier: str) -> None:
    fresh = Made(made.width)
    with fresh.open(root, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (step, tier)
        assert fresh.state() == made.state()


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("way", ["overlapped", "blocking"])
def test_the_newest_snapshot_is_what_a_start_comes_back_from(root: Path, made: Made, slots: int, way: str) -> None:
    run = made.open(root, 2, slots=slots, capture=way)
    for _ in range(5):
        made.step(run)
        run.wait()
    assert made.steps(Committed) == [2]
    die_of(run, way)
    assert made.steps(SnapshotKept) == [1, 3, 4, 5]
    assert steps_on_disk(root) == [2]
    assert steps_left(root, TASK)[0] == 5
    assert_comes_back(root, made, 5, "ram")
    assert steps_on_disk(root) == [2, 5]  # made durable by the start
    for manifest in root.rglob("meta.json"):
        decision = manifests.parse(manifest.read_bytes(), "meta.json").decision
        assert decision["cause"] == "interval"
        assert 0 < decision["blocked_s"] < WAIT_S


def die_of(run: mementum.Run, way: str) -> None:
    if way == "overlapped":
        die(run)
        return
    run.wait()
    slots = run._taker._capture._slots._slots
    for slot in slots._slots:
        slot.close(keep=True)
    run._closed = True
    run._background.close(WAIT_S)
    run._opened.close()


@pytest.mark.parametrize("slots", [2, 3])
def test_work_at_risk_stays_small_while_the_disk_is_stuck(root: Path, made: Made, stuck: Stuck, slots: int) -> None:
    """The slot that the disk reads is touched by nobody: what it writes in the end is step 1, bit for bit."""
    run = made.open(root, 1, slots=slots)
    made.step(run)
    first = made.state()
    assert stuck.reached.wait(WAIT_S)
    for _ in range(2, 12):
        made.step(run)
        copied(run)
    assert made.steps(SnapshotKept) == list(range(2, 12))
    assert made.steps(SaveSkipped) == []
    stuck.let.set()
    assert run.wait()
    die(run)
    assert steps_left(root, TASK)[0] == 11
    shutil.copytree(root, root.parent / "copy")
    fresh = Made()
    with fresh.open(root.parent / "copy", resume="must") as run:  # other slots: another root
        assert (run.resumed.step, run.resumed.tier) == (1, "ssd")
        assert fresh.state() == first
    assert_comes_back(root, made, 11, "ram")


@pytest.mark.parametrize("slots", [2, 3])
def test_a_save_to_the_disk_right_after_one_in_memory_while_the_disk_is_stuck(
    root: Path, made: Made, stuck: Stuck, slots: int
) -> None:
    run = made.open(root, 1, 3, 5, slots=slots)
    for _ in range(6):
        made.step(run)
        copied(run)
    assert stuck.reached.is_set()
    assert made.steps(SnapshotKept) == [2, 4, 6]
    stuck.let.set()
    assert run.wait()
    committed, nothing = made.steps(Committed), made.steps(CameToNothing)
    assert sorted(committed + nothing) == [1, 3, 5]
    assert committed[0] == 1
    assert run._background.saved_seq == committed[-1]
    die(run)
    assert_comes_back(root, made, 6, "ram")


def test_a_clean_end_carries_the_newest_state_to_the_disk_and_frees_the_memory(root: Path, made: Made) -> None:
    with made.open(root, 1) as run:
        for _ in range(3):
            made.step(run)
    assert made.steps(Committed) == [1, 3]
    assert steps_left(root, TASK) == []
    assert_comes_back(root, made, 3, "ssd")


def test_an_end_by_an_error_leaves_the_newest_snapshot_to_a_drain(root: Path, made: Made) -> None:

    def fail() -> None:
        with made.open(root, 1) as run:
            for _ in range(4):
                made.step(run)
            raise RuntimeError("of the training")

    with pytest.raises(RuntimeError, match="of the training"):
        fail()
    assert "`mementum drain ROOT` carries it there" in made.told.of(Note)[-1].text
    assert steps_left(root, TASK) == [4]
    drained = draining.drain(root, TASK, clock=SystemClock(), emit=made.told)
    assert drained.placed is not None
    assert (drained.placed.step, drained.placed.reason) == (4, "alternating")
    assert steps_left(root, TASK) == []
    assert_comes_back(root, made, 4, "ssd")


def test_a_snapshot_has_a_cost_and_no_manifest(root: Path, made: Made) -> None:
    run = made.open(root)
    for _ in range(12):
        made.step(run)
        copied(run)
    assert run.wait()
    costs = {event.step: event for event in made.told.of(Cost)}
    assert sorted(costs) == list(range(1, 12))  # the twelfth is known when a step has gone by
    assert {event.written for event in costs.values()} == {0}
    assert all(0 < event.blocked_s <= event.snapshot_s == event.durable_s for event in costs.values())
    assert made.told.of(Committed) == []
    assert steps_on_disk(root) == []
    journal = b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if b'"cost"' in read(path))
    assert journal.count(b'"kind":"cost"') == 11
    die(run)


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_a_snapshot_beside_plain_steps_has_its_lost_time_measured(root: Path, made: Made) -> None:
    class Sixth:
        def decide(self, situation: Situation) -> Decision | None:
            return Save(reason="sixth", reach=Reach.PROCESS) if situation.step % 6 == 0 else None

    run = made.open(root, policy=Sixth())
    for _ in range(20):
        made.step(run)
        copied(run)
    die(run)
    measured = [event.lost_s for event in made.told.of(Cost)]
    assert len(measured) == 3
    assert all(isinstance(lost_s, float) for lost_s in measured[1:])


def test_a_torn_copy_is_told_and_taken_again(root: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = iter(("weight was written during the copy",))
    monkeypatch.setattr(copying, "what_happened", lambda *given: next(torn, None))

    class Once:
        def decide(self, situation: Situation) -> Decision | None:
            return Save(reason="once", reach=Reach.PROCESS) if situation.step == 2 else None

    run = made.open(root, policy=Once())
    for _ in range(4):
        made.step(run)
        copied(run)
    assert made.steps(CameToNothing) == [2]
    assert made.steps(SnapshotKept) == [3]
    assert [event.reason for event in made.told.of(SaveSkipped)] == [
        "weight was written during the copy: it is taken again after the next step"
    ]
    die(run)
    assert steps_left(root, TASK) == [3]


def test_a_copy_that_fails_comes_to_nothing_and_the_next_one_works(
    root: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, times = copying.copy_in_chunks, [0]

    def fail(name: str, source: Any, target: Any) -> None:
        times[0] += 1
        if times[0] == 1:
            raise RuntimeError("the memory is broken")
        real(name, source, target)

    monkeypatch.setattr(copying, "copy_in_chunks", fail)
    run = made.open(root)
    for _ in range(3):
        made.step(run)
        copied(run)
    assert made.steps(CameToNothing) == [1]
    assert made.steps(SnapshotKept) == [2, 3]
    (failed,) = made.told.of(Failed)
    assert "the memory is broken" in failed.error
    die(run)


def test_a_slot_that_is_removed_during_the_copy_counts_for_nothing(
    root: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = Slot.validate

    def removed(slot: Slot, head: bytes, **label: Any) -> None:
        if label["step"] == 2:
            Path(slot.path).unlink()
        validate(slot, head, **label)

    monkeypatch.setattr(Slot, "validate", removed)
    run = made.open(root)
    for _ in range(3):
        made.step(run)
        copied(run)
    assert made.steps(CameToNothing) == [2]
    assert made.steps(SnapshotKept) == [1, 3]
    assert "its slot cannot outlive the process" in made.told.of(SaveSkipped)[0].reason
    die(run)
    assert steps_left(root, TASK)[0] == 3


def test_without_shared_memory_a_snapshot_in_memory_counts_for_nothing(root: Path, made: Made) -> None:
    with made.open(root, slots=0) as run:
        for _ in range(3):
            made.step(run)
            copied(run)
    assert made.steps(CameToNothing) == [1, 2, 3]
    assert made.told.of(SnapshotKept) == []
    assert made.steps(Committed) == [3]  # the end


def test_one_that_is_less_than_full_goes_to_the_disk(root: Path, made: Made) -> None:
    class Weights:
        def decide(self, situation: Situation) -> Decision:
            return Save(reason="weights", reach=Reach.PROCESS, granularity=Granularity.WEIGHTS)

    with made.open(root, policy=Weights()) as run:
        made.step(run)
        assert run.wait()
        assert made.steps(Committed) == [1]
    assert made.told.of(SnapshotKept) == []


def test_slots_that_hold_a_number(root: Path) -> None:
    told = Told()
    slots = slotting.ChosenSlots(ram.key_of(root.resolve(), TASK), wanted=2, emit=told)
    assert not slots.holds(0)
    slot = slots.acquire([64])
    assert not slots.holds(1)
    slot.validate(b"{}", seq=1, attempt=1, id="a", step=1)
    assert slots.holds(1)
    assert not slots.holds(2)
    slot.release()
    assert slots.holds(1)
    slots.close()
    assert not slots.holds(1)
    private = slotting.ChosenSlots("abcd", wanted=0, emit=told)
    slot = private.acquire([64])
    slot.validate(b"{}", seq=1, attempt=1, id="a", step=1)
    assert not private.holds(1)
    private.close()


def test_a_wish_for_the_disk_is_never_changed(root: Path, made: Made) -> None:
    save = Save(reason="r", reach=Reach.REBOOT)
    with made.open(root) as run:
        assert run._taker.possible(save) is save
        run._taker._frozen = "missing"
        assert run._taker.possible(save) is save
        memory = replace(save, reach=Reach.PROCESS)
        assert run._taker.possible(memory).reach is Reach.REBOOT
        assert run._taker.possible(memory) is memory  # that save is over
