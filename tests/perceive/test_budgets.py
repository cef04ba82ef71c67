"""Budgets hold under any sequence of times, costs and alarms."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mementum.perceive.budgets import GB, LOST_SHARE, Budget, Budgets
from mementum.perceive.costs import SaveCost
from mementum.perceive.day import ALARM_SHARE, DAY_S
from mementum.records import Allowance, Reach

BEGAN_S = 1_700_000_000.0
FIRST_S = 10.0
DAY_BYTES = {Reach.REBOOT: 50e9, Reach.MACHINE: 20e9}


def cost(reach: Reach = Reach.REBOOT, lost_s: float = 1.0, size: int = 10**9) -> SaveCost:
    size = 0 if reach is Reach.PROCESS else size
    return SaveCost(
        reach=reach, lost_s=lost_s, snapshot_s=lost_s, durable_s=lost_s, size=size, memory=2 * 10**9, measured=1
    )


def allowed(allowances: tuple[Allowance, ...], *, alarm: bool) -> bool:
    return all(each.per_save <= (each.for_alarms if alarm else each.left) for each in allowances)


class Asked(NamedTuple):
    after_s: float
    reach: Reach
    lost_s: float
    size: int
    alarm: bool
    resumed: bool


ASKED = st.builds(
    Asked,
    st.sampled_from([0.0, 1.0, 30.0, 600.0, 599.9, 3600.0, 20_000.0, DAY_S, DAY_S - 1]) | st.floats(0, 2 * DAY_S),
    st.sampled_from(Reach),
    st.floats(0, 600),
    st.integers(0, 30 * 10**9),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(ASKED, max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_sequence_exceeds_any_budget(sequence: list[Asked]) -> None:
    budget = Budget(
        bytes_a_day=DAY_BYTES, network_bytes_per_s=1e6, money_a_day=2.0, prices={Reach.MACHINE: 0.2, Reach.REBOOT: 0.01}
    )
    began_s, budgets = BEGAN_S, Budgets(budget, began_s=BEGAN_S, first_s=FIRST_S)
    now_s, made = BEGAN_S, list[tuple[float, Asked, SaveCost]]()
    for asked in sequence:
        now_s += asked.after_s
        if asked.resumed:  # training stood still; the wall clock did not
            state = json.loads(json.dumps(budgets.state()))
            began_s, budgets = now_s, Budgets(budget, began_s=now_s, first_s=FIRST_S)
            budgets.apply(state)
        wanted = cost(asked.reach, asked.lost_s, asked.size)
        if allowed(budgets.allowances(now_s - began_s, [wanted]), alarm=asked.alarm):
            budgets.spent(now_s - began_s, wanted, cause="alarm" if asked.alarm else "interval")
            made.append((now_s, asked, wanted))
    for index, (first_s, _, _) in enumerate(made):
        window = [(asked, saved) for at_s, asked, saved in made[index:] if at_s - first_s < DAY_S]
        for reach, limit in DAY_BYTES.items():
            sizes = [(asked.alarm, saved.size) for asked, saved in window if saved.reach >= reach]
            assert sum(size for _, size in sizes) <= limit
            assert sum(size for alarm, size in sizes if alarm) <= ALARM_SHARE * limit
        prices = {Reach.PROCESS: 0.0, Reach.REBOOT: 0.01, Reach.MACHINE: 0.21}
        assert sum(saved.size * prices[saved.reach] for _, saved in window) <= 2.0 * GB * (1 + 1e-9)
    lost = [(at_s - BEGAN_S, asked.alarm, saved.lost_s) for at_s, asked, saved in made]
    for at_s, _, _ in lost:
        bound = LOST_SHARE * at_s + FIRST_S
        so_far = [(alarm, lost_s) for then_s, alarm, lost_s in lost if then_s <= at_s]
        assert sum(lost_s for _, lost_s in so_far) <= bound + 1e-6
        assert sum(lost_s for alarm, lost_s in so_far if alarm) <= ALARM_SHARE * bound + 1e-6


@pytest.mark.parametrize("alarm", [False, True])
def test_any_save_is_possible_after_a_wait(alarm: bool) -> None:
    """Even one that takes more than an hour earns: 400 s are earned in 8000, for alarms in 16000."""
    budgets = Budgets(Budget(), began_s=BEGAN_S, first_s=FIRST_S)
    dear = cost(lost_s=400.0)
    assert not allowed(budgets.allowances(0.0, [dear]), alarm=alarm)
    assert not allowed(budgets.allowances(7700.0, [dear]), alarm=alarm)
    wait_s = 15_900.0 if alarm else 7900.0
    assert allowed(budgets.allowances(wait_s, [dear]), alarm=alarm)


def test_the_first_save_is_possible_at_once_and_a_second_is_not() -> None:
    budgets = Budgets(Budget(), began_s=BEGAN_S, first_s=2.0)
    first = cost(lost_s=2.0)
    assert allowed(budgets.allowances(0.0, [first]), alarm=False)
    budgets.spent(0.0, first)
    assert not allowed(budgets.allowances(39.0, [first]), alarm=False)
    assert allowed(budgets.allowances(40.1, [first]), alarm=False)


def test_what_each_save_takes_of_each_budget() -> None:
    budget = Budget(bytes_a_day=DAY_BYTES, network_bytes_per_s=1e8, money_a_day=3.0, prices={Reach.MACHINE: 0.5})
    budgets = Budgets(budget, began_s=BEGAN_S, first_s=FIRST_S)
    costs = [cost(reach) for reach in Reach]
    budgets.spent(0.0, costs[2])
    found = budgets.allowances(0.0, costs)
    told = {(each.reach, each.name, each.unit): (each.left, each.per_save, each.limit) for each in found}
    assert len(told) == len(found)
    assert {key: value for key, value in told.items() if key[0] is Reach.MACHINE} == {
        (Reach.MACHINE, "lost time", "s"): (9.0, 1.0, 180.0),
        (Reach.MACHINE, "bytes a day", "bytes to the ssd"): (49e9, 1e9, 50e9),
        (Reach.MACHINE, "bytes a day", "bytes to the store"): (19e9, 1e9, 20e9),
        (Reach.MACHINE, "money", "a day"): (2.5, 0.5, 3.0),
        (Reach.MACHINE, "network", "bytes"): (5e9, 1e9, 6e9),
    }
    assert {name for reach, name, _ in told if reach is Reach.PROCESS} == {"lost time"}
    assert (Reach.REBOOT, "network", "bytes") not in told


def test_measured_costs_correct_what_was_expected() -> None:
    budgets = Budgets(Budget(bytes_a_day={Reach.REBOOT: 10e9}), began_s=BEGAN_S, first_s=FIRST_S)
    expected = cost(lost_s=4.0)
    budgets.spent(0.0, expected)
    budgets.corrected(0.0, expected, lost_s=1.0, written=3 * 10**9)
    time, day = budgets.allowances(0.0, [expected])
    assert (time.left, day.left) == (9.0, 7e9)
    budgets.corrected(0.0, expected, lost_s=30.0, written=0)
    time, day = budgets.allowances(0.0, [expected])
    assert (time.left, day.left) == (-17.0, 7e9)


def test_a_day_goes_on_through_a_resume_and_a_wall_clock_that_is_set_back() -> None:
    budget = Budget(bytes_a_day={Reach.REBOOT: 1e9})
    before = Budgets(budget, began_s=BEGAN_S, first_s=FIRST_S)
    before.spent(0.0, cost())
    for began_s, left in ((BEGAN_S - 7200, 0.0), (BEGAN_S + DAY_S - 1, 0.0), (BEGAN_S + DAY_S, 1e9)):
        after = Budgets(budget, began_s=began_s, first_s=FIRST_S)
        after.apply(before.state())
        assert after.allowances(0.0, [cost()])[1].left == left
        assert after.allowances(0.0, [cost()])[0].left == 9.0
    fresh = Budgets(Budget(), began_s=BEGAN_S, first_s=FIRST_S)
    fresh.apply(before.state())
    fresh.apply({})
    assert [each.name for each in fresh.allowances(0.0, [cost()])] == ["lost time"]


def test_what_the_journals_tell_counts_and_nothing_counts_twice() -> None:
    budget = Budget(bytes_a_day={Reach.REBOOT: 10e9})
    before = Budgets(budget, began_s=BEGAN_S, first_s=FIRST_S)
    before.spent(100.0, cost(size=10**9), cause="alarm")
    written = [(BEGAN_S + 100.0, Reach.REBOOT, 1e9), (BEGAN_S + 5000.0, Reach.REBOOT, 2e9)]
    for state, left, for_alarms in ((None, 7e9, 5e9), (before.state(), 7e9, 4e9)):
        after = Budgets(budget, began_s=BEGAN_S + 6000.0, first_s=FIRST_S)
        after.written_before(written)
        if state is not None:
            after.apply(state)
        _, day = after.allowances(0.0, [cost()])
        assert (day.left, day.for_alarms) == (left, for_alarms)


def test_what_the_tolerance_takes_is_counted_apart() -> None:
    budgets = Budgets(Budget(bytes_a_day={Reach.REBOOT: 10e9}), began_s=BEGAN_S, first_s=FIRST_S)
    for cause in ("tolerance", "interval", "alarm"):
        budgets.spent(0.0, cost(size=10**9), cause=cause)
    _, day = budgets.allowances(0.0, [cost()])
    assert (day.left, day.others) == (7e9, 2e9)


def test_an_overdrawn_budget_does_not_concern_a_save_that_takes_nothing_of_it() -> None:
    budget = Budget(bytes_a_day={Reach.REBOOT: 1e9}, money_a_day=0.5, prices={Reach.REBOOT: 1.0})
    budgets = Budgets(budget, began_s=BEGAN_S, first_s=FIRST_S)
    budgets.spent(0.0, cost(size=5 * 10**9), cause="notice")
    assert [each.name for each in budgets.allowances(0.0, [cost(Reach.PROCESS)])] == ["lost time"]
