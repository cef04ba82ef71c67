"""Older snapshots of a killed run: they stay until newer ones take their places, or a later diagnosis needs one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mementum
from deaths import die, left, steps_left
from mementum import ram
from mementum.catalog import plans
from mementum.catalog.plans import Plan
from mementum.clock import ManualClock
from mementum.errors import StateMismatch
from mementum.events import Committed, Cost, Kept
from mementum.format import manifest as manifests
from mementum.perceive.budgets import Budgets
from mementum.perceive.costs import SaveCost
from mementum.records import Diagnosis, Health, Manifest
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from snapshots import TASK, Made, copied


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "root"
    made.mkdir()
    yield made
    for one in left(made, TASK):
        one.remove()


def killed(root: Path, steps: int, *disk: int, **wishes: Any) -> None:
    """A run that saved at each step, those in `disk` to the disk, and died with the last ones in memory alone."""
    made = Made()
    run = made.open(root, *disk, **wishes)
    for _ in range(steps):
        made.step(run)
        copied(run)
        run.wait()
    die(run)


def slots_of(root: Path) -> list[str]:
    """Names of all slots of the task, whoever has them."""
    beginning = f"{ram.key_of(root.resolve(), TASK)}-"
    return sorted(path.name for path in Path(ram.FOLDER).iterdir() if beginning in path.name)


def whole(run: mementum.Run) -> list[int]:
    """Steps of the whole snapshots that the run would leave."""
    slots = run._taker._capture._whole._slots._slots
    return sorted(slot.stamp.step for slot in slots._slots if slot.restorable is not None)


def written(root: Path) -> dict[int, Manifest]:
    found = [manifests.parse(path.read_bytes(), "meta") for path in root.rglob("meta.json")]
    return {one.step: one for one in found if isinstance(one, Manifest)}


def test_they_take_the_places_of_slots_and_go_as_newer_ones_come(root: Path) -> None:
    killed(root, 5, 1)
    assert steps_left(root, TASK) == [5, 4, 3]
    made = Made()
    run = made.open(root, 6)
    assert (run.resumed.step, run.resumed.tier) == (5, "ram")
    run.wait()
    assert whole(run) == [3, 4]
    assert len(slots_of(root)) == 2  # 5 is durable, and its memory given back
    for kept in ([3, 4, 6], [4, 6, 7], [6, 7, 8]):
        made.step(run)
        copied(run)
        run.wait()
        assert whole(run) == kept
        assert len(slots_of(root)) == 3
    run.close()
    assert slots_of(root) == []


def test_to_make_ready_for_the_first_save_takes_none_of_them(root: Path) -> None:
    killed(root, 4, 1)
    made = Made()
    run = made.open(root)
    run.wait()
    run._taker.warm()
    copied(run)
    assert whole(run) == [2, 3]
    assert len(slots_of(root)) == 3
    die(run)
    assert steps_left(root, TASK) == [3, 2]  # once more for the next start
    made.open(root).close()


def test_with_two_slots_one_of_them_stays(root: Path) -> None:
    killed(root, 4, 1)
    made = Made()
    run = made.open(root, slots=2)
    run.wait()
    assert (run.resumed.step, whole(run)) == (4, [3])
    run.close()
    assert slots_of(root) == []


@pytest.mark.parametrize(
    "wishes",
    [{"slots": 0}, {"config": {"on_divergence": "ignore"}}, {"config": {"observe": True}}, {"resume": "never"}],
    ids=str,
)
def test_who_has_no_use_for_them_gives_them_back(root: Path, wishes: dict[str, Any]) -> None:
    killed(root, 4, 1)
    run = Made().open(root, **wishes)
    run.wait()
    assert slots_of(root) == []
    run.close(why="looked")


def test_a_start_that_fails_leaves_them_all(root: Path) -> None:
    killed(root, 4, 1)
    with pytest.raises(StateMismatch):
        Made(width=4).open(root)
    assert steps_left(root, TASK) == [4, 3, 2]
    with pytest.raises(mementum.errors.UsageError):
        Made().open(root, config={"expected": {"checkpoint_size": "1 GB"}, "policy": [{"plugin": "not.there"}]})
    assert steps_left(root, TASK) == [4, 3, 2]


@pytest.mark.parametrize(("after_seq", "by_hand", "began"), [(4, True, 1), (3, False, 4)], ids=["to do", "done"])
def test_those_of_a_branch_that_was_left_are_given_back(root: Path, after_seq: int, by_hand: bool, began: int) -> None:
    """By a plan that is still to be done; and by one after which the run has made its newest snapshot."""
    killed(root, 4, 1)
    (home,) = {path.parent.parent for path in root.rglob("meta.json")}
    plan = Plan(
        target=written(root)[1].id,
        step=1,
        after_seq=after_seq,
        attempt=1,
        by_hand=by_hand,
        why="w",
        time="2026-11-30T10:00:00Z",
    )
    plans.write(LocalStore(PosixDisk(), str(home)), "c1", plan)
    run = Made().open(root)
    run.wait()
    assert run.step == began
    assert slots_of(root) == []
    run.close(why="looked")


def test_a_diagnosis_keeps_one_of_them_and_its_bytes_are_charged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(root, 4, 1)
    charged: list[tuple[str, int, str]] = []
    spent, corrected = Budgets.spent, Budgets.corrected

    def noting(self: Budgets, at_s: float, cost: SaveCost, *, cause: str = "interval", id: str = "") -> None:
        charged.append(("spent", cost.size, cause))
        spent(self, at_s, cost, cause=cause, id=id)

    def correcting(
        self: Budgets, at_s: float, cost: SaveCost, *, lost_s: float, written: int, cause: str, id: str = ""
    ) -> None:
        charged.append(("corrected", written, cause))
        corrected(self, at_s, cost, lost_s=lost_s, written=written, cause=cause, id=id)

    monkeypatch.setattr(Budgets, "spent", noting)
    monkeypatch.setattr(Budgets, "corrected", correcting)
    made = Made()
    run = made.open(root)
    run.wait()
    doubt = Diagnosis(health=Health.SUSPECT, onset=4, seen=5, why="w", hold=20, episode=1)
    run._deciding._watchers.quarantine.look(doubt, 5)
    run.wait()
    run._deciding._watchers.quarantine.look(doubt, 5)
    run._deciding._watchers.perception.take_in()
    (kept,) = made.told.of(Kept)
    assert (kept.step, kept.onset) == (3, 4)
    entry = written(root)[3]
    assert (entry.attempt, entry.health, entry.decision["cause"]) == (1, Health.CLEAN, "kept")
    ours = [one for one in charged if one[2] == "kept"]
    assert [one[0] for one in ours] == ["spent", "corrected"]
    assert ours[1][1] == entry.size
    (cost,) = [event for event in made.told.of(Cost) if event.id == entry.id]
    assert cost.written == entry.size
    run.close(why="looked")
    lines = [json.loads(line) for path in root.rglob("journal/*") for line in path.read_text().splitlines()]
    told = [fact["values"]["bytes"] for fact in lines if fact["kind"] == "cost" and fact["checkpoint"] == entry.id]
    assert told == [0, entry.size]  # in memory first; a later attempt counts them too
    assert run._background.parent == written(root)[4].id  # not the older one


def test_one_beside_which_a_run_begins_anew_is_none_of_its_own(root: Path) -> None:
    killed(root, 4, 1)
    made = Made()
    run = made.open(root, resume="never")
    run.wait()
    assert sorted(written(root)) == [1, 4]
    assert (run._background.parent, run._background.saved_step) == (None, None)
    for _ in range(4):
        made.step(run)
    run.close()  # with a save of step 4, which the other run has too
    both = [manifests.parse(path.read_bytes(), "meta") for path in root.rglob("meta.json")]
    (newest,) = [one for one in both if isinstance(one, Manifest) and one.attempt == 2]
    assert (newest.step, newest.parent) == (4, None)


def test_how_long_it_took_to_become_durable_is_from_its_placing_on(root: Path) -> None:
    killed(root, 4, 1)
    made, clock = Made(), ManualClock()
    clock.advance(5000.0)
    run = made.open(root, clock=clock)
    run.wait()
    assert [(event.step, event.durable_s) for event in made.told.of(Committed)] == [(4, 0.0)]
    run.close(why="looked")
