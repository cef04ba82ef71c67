"""What a save costs: planned, then measured."""

from __future__ import annotations

import math

import pytest

from mementum.perceive.costs import KEPT, SLOWED_PART, Costs, Planned, SaveCost
from mementum.records import Reach

GB = 10**9
PLANS = {
    Reach.REBOOT: Planned(lost_s=3.6, snapshot_s=3.0, durable_s=15.0, size=12 * GB, memory=12 * GB),
    Reach.PROCESS: Planned(lost_s=3.0, snapshot_s=3.0, durable_s=3.0, size=0, memory=12 * GB),
}


@pytest.fixture
def costs() -> Costs:
    return Costs(PLANS)


def told(costs: Costs, reach: Reach, lost_s: float | None, **other: float) -> None:
    numbers = {"blocked_s": 0.1, "snapshot_s": 1.0, "durable_s": 5.0} | other
    costs.told(reach, lost_s=lost_s, written=GB, **numbers)


def test_planned_before_the_first(costs: Costs) -> None:
    assert costs.of(Reach.PROCESS) == SaveCost(
        reach=Reach.PROCESS, lost_s=3.0, snapshot_s=3.0, durable_s=3.0, size=0, memory=12 * GB, measured=0
    )
    ssd = costs.of(Reach.REBOOT)
    assert (ssd.lost_s, ssd.durable_s, ssd.size) == (3.6, 15.0, 12 * GB)
    assert [cost.reach for cost in costs.every()] == [Reach.PROCESS, Reach.REBOOT]  # the nearest first


def test_measured_ones_replace_the_plan_of_their_reach_only(costs: Costs) -> None:
    told(costs, Reach.REBOOT, 0.5)
    cost = costs.of(Reach.REBOOT)
    assert (cost.lost_s, cost.durable_s, cost.size, cost.measured) == (0.5, 5.0, GB, 1)
    assert costs.of(Reach.PROCESS).measured == 0
    told(costs, Reach.PROCESS, 0.2)
    assert (costs.of(Reach.PROCESS).lost_s, costs.of(Reach.REBOOT).lost_s) == (0.2, 0.5)


def test_one_slow_save_moves_nothing_and_a_lasting_change_is_followed(costs: Costs) -> None:
    for lost_s in (0.5, 0.5, 60.0, 0.5, 0.5):
        told(costs, Reach.REBOOT, lost_s)
    assert costs.of(Reach.REBOOT).lost_s == 0.5
    for _ in range(KEPT):
        told(costs, Reach.REBOOT, 2.0)
    assert (costs.of(Reach.REBOOT).lost_s, costs.of(Reach.REBOOT).measured) == (2.0, KEPT)


def test_where_lost_time_is_unknown_or_noise(costs: Costs) -> None:
    told(costs, Reach.REBOOT, None)
    assert costs.of(Reach.REBOOT).lost_s == pytest.approx(0.1 + SLOWED_PART * 4.0)
    told(costs, Reach.PROCESS, -3.0)  # the steps beside it were faster, by chance
    assert costs.of(Reach.PROCESS).lost_s == 0.1


@pytest.mark.parametrize("bad", [{"blocked_s": math.nan}, {"durable_s": math.inf}, {"snapshot_s": -1.0}])
def test_what_is_no_measurement_is_left_out(costs: Costs, bad: dict[str, float]) -> None:
    told(costs, Reach.REBOOT, 0.5, **bad)
    told(costs, Reach.REBOOT, math.nan)
    assert costs.of(Reach.REBOOT).measured == 0


def test_a_reach_that_is_not_there() -> None:
    costs = Costs(PLANS)
    told(costs, Reach.MACHINE, 0.5)
    with pytest.raises(KeyError):
        costs.of(Reach.MACHINE)
