"""Plans as facts: written at once or not at all, read again as they were, and done or not by what was saved since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mementum.catalog import facts, plans
from mementum.catalog.plans import Cancelled, Plan
from mementum.errors import KeyTaken
from mementum.records import Detour, Fact
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

PLAN = Plan(
    target="c1",
    step=40,
    from_step=70,
    onset=50,
    seen=52,
    number=2,
    skips=(Detour(at_step=50, groups=3), Detour(at_step=60, groups=1)),
    lr_scale=0.5,
    after_seq=7,
    attempt=3,
    behind=("c3", "c4"),
    why="the loss rose",
    time="2026-01-01T00:00:01.000000Z",
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(PosixDisk(), str(tmp_path / "home"))


def test_a_plan_comes_back_with_what_was_written_beside_it(store: LocalStore) -> None:
    fact = Fact(kind="health", time=PLAN.time, checkpoint="c2", step=50, values={"health": "suspect"})
    plans.write(store, "r1", PLAN, (fact,))
    assert plans.newest(store) == PLAN
    assert facts.parse(store.get("facts/r1.json"))[1] == fact


def test_one_by_hand_knows_less(store: LocalStore) -> None:
    plan = Plan(target="c1", step=0, after_seq=0, attempt=1, by_hand=True, why="", time=PLAN.time)
    plans.write(store, "r1", plan)
    assert plans.newest(store) == plan


def test_the_newest_holds_and_can_be_taken_back(store: LocalStore) -> None:
    later = replace(PLAN, target="c0", time="2026-01-01T00:00:02.000000Z")
    plans.write(store, "r2", later)
    plans.write(store, "r3", PLAN)
    assert plans.newest(store) == later
    taken_back = Cancelled(attempt=3, time="2026-01-01T00:00:03.000000Z")
    plans.write(store, "r1", taken_back)
    assert plans.newest(store) is None
    assert plans.plans(store) == (PLAN, later, taken_back)
    # An attempt is later than the one before it, whatever the clock of its machine says.
    plans.write(store, "r4", replace(later, attempt=4, time="2020-01-01T00:00:00.000000Z"))
    assert plans.newest(store) is not None


@pytest.mark.parametrize(
    ("own_attempt", "taken_back", "holds"),
    [
        (3, None, True),  # what a process does that was there already is not what the next start was asked for
        (3, False, True),
        (3, True, False),
        (4, None, False),  # of one that has begun with it
        (4, False, True),
    ],
)
def test_one_by_hand_holds_whatever_those_plan_that_were_there(
    own_attempt: int, taken_back: bool | None, holds: bool
) -> None:
    by_hand = replace(PLAN, by_hand=True, target="c0")
    own = replace(PLAN, attempt=own_attempt, time="2026-01-01T00:00:02.000000Z")
    told: list[Plan | Cancelled] = [by_hand, own]
    if taken_back is not None:
        told.append(Cancelled(attempt=own_attempt, by_hand=taken_back, time="2026-01-01T00:00:03.000000Z"))
    assert plans.newest_of(told) == (by_hand if holds else own)


def test_nothing_is_written_over(store: LocalStore) -> None:
    plans.write(store, "r1", PLAN)
    with pytest.raises(KeyTaken):
        plans.write(store, "r1", PLAN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"skips": [[1]]},
        {"skips": [[1, -1]]},
        {"skips": 3},
        {"lr_scale": 0},
        {"lr_scale": "half"},
        {"lr_scale": float("inf")},
        {"attempt": "3"},
        {"after_seq": None},
        {"number": True},
    ],
)
def test_what_is_no_plan_is_passed_over(store: LocalStore, wrong: dict[str, object]) -> None:
    plans.write(store, "r1", PLAN)
    (good,) = facts.parse(store.get("facts/r1.json"))
    bad = replace(good, time="2026-01-01T00:00:09.000000Z", values={**good.values, **wrong})
    assert plans.plan_of(good) == PLAN
    assert plans.plan_of(bad) is None
    store.put("facts/r2.json", [facts.render(bad)])
    assert plans.newest(store) == PLAN


@pytest.mark.parametrize(
    ("saved", "by_hand", "pending"),
    [
        ([], False, True),
        ([(7, 3)], False, True),  # saved before it
        ([(8, 3)], False, False),  # by the attempt that has done it itself
        ([(8, 3)], True, True),  # by one that went on, the plan being for the next
        ([(8, 4)], True, False),
        ([(8, 2)], False, True),  # by an older attempt that did not know that it was left behind
    ],
)
def test_a_plan_is_pending_until_something_is_saved_after_it(
    saved: list[tuple[int, int]], by_hand: bool, pending: bool
) -> None:
    assert plans.is_pending(replace(PLAN, by_hand=by_hand), saved) is pending
