"""Rates of failure: published ones at first, the task's own soon after."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mementum.perceive.hazards import CLUSTER_A_DAY, DAY_S, EXCESS_MAX, ROUGH_A_DAY, SHARES, Ended, Hazards, How
from mementum.records import Reach


def a_day(hazards: Hazards, reach: Reach, at_s: float = 0.0) -> float:
    return hazards.rate(reach, at_s) * DAY_S


def in_all(hazards: Hazards, at_s: float = 0.0) -> float:
    return sum(a_day(hazards, reach, at_s) for reach in Reach)


def test_before_anything_is_seen_published_rates_hold() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert in_all(Hazards()) == pytest.approx(0.99 * CLUSTER_A_DAY + 0.01 * ROUGH_A_DAY)  # two priors, by their chances
    quiet = Hazards(history=[Ended(duration_s=100 * DAY_S, how="finished")])
    assert 2.0e-3 < in_all(quiet) < 6.5e-3


def test_more_nodes_fail_more_often() -> None:
    assert in_all(Hazards(nodes=64)) == pytest.approx(64 * in_all(Hazards()))
    month = Hazards(nodes=2048, history=[Ended(duration_s=DAY_S / 8, how="rebooted")] * 400)
    assert in_all(month) == pytest.approx(8, rel=0.15)  # as Llama 3: one in 3 hours


def test_own_failures_count_at_once_and_by_their_kind() -> None:
    killed = Hazards(history=[Ended(duration_s=DAY_S / 2, how="killed")] * 2)
    assert a_day(killed, Reach.PROCESS) == pytest.approx(2.0, rel=0.7)
    assert a_day(killed, Reach.REBOOT) < a_day(Hazards(), Reach.REBOOT)
    for how, reach in (("rebooted", Reach.REBOOT), ("moved", Reach.MACHINE), ("preempted", Reach.MACHINE)):
        seen = Hazards(history=[Ended(duration_s=DAY_S, how=how)])  # type: ignore[arg-type]
        assert 0.2 < a_day(seen, reach) < 1.0


@pytest.mark.parametrize("mean_s", [3600.0, 36_000.0, 360_000.0])
def test_the_rate_is_learnt_within_ten_failures(mean_s: float) -> None:
    """An interval that is wrong by the root of 2 costs 6 % of the waste: the bar is 2 for the rate."""
    chance = random.Random(3)
    history = [Ended(duration_s=chance.expovariate(1 / mean_s), how="killed") for _ in range(10)]
    rate = Hazards(history=history).rate(Reach.PROCESS, 0.0)
    assert 0.5 < rate * mean_s < 2.0


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_rate_that_changes_is_followed(factor: float) -> None:
    """After thirty failures at another rate, twenty are enough to be within 2 times of the new one; the mean of all of
    them is off by 1.8 and 2.8 times."""
    gaps_s = [36_000.0] * 30 + [36_000.0 * factor] * 20
    assert max(len(gaps_s) * 36_000.0 * factor / sum(gaps_s), sum(gaps_s) / len(gaps_s) / 36_000.0 / factor) > 1.8
    rate = Hazards(history=[Ended(duration_s=gap_s, how="killed") for gap_s in gaps_s]).rate(Reach.PROCESS, 0.0)
    assert 0.5 < rate * 36_000.0 * factor < 1.4


def test_failures_of_one_kind_do_not_fade_those_of_another() -> None:
    moved = [Ended(duration_s=DAY_S, how="moved")] * 5
    alone, among = Hazards(history=moved), Hazards(history=moved + [Ended(duration_s=0.0, how="killed")] * 50)
    assert among.rate(Reach.MACHINE, 0.0) == alone.rate(Reach.MACHINE, 0.0)
    finished = Hazards(history=[*moved, *[Ended(duration_s=0.0, how="finished")] * 50])
    assert finished.rate(Reach.MACHINE, 0.0) == alone.rate(Reach.MACHINE, 0.0)


def test_calm_lowers_the_rate_while_the_attempt_runs() -> None:
    hazards = Hazards(history=[Ended(duration_s=3600, how="killed")])
    rates = [hazards.rate(Reach.PROCESS, day * DAY_S) for day in range(20)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 10


def test_signs_multiply_until_they_end() -> None:
    hazards = Hazards()
    plain = hazards.rates(0.0)
    hazards.excess("ECC", 10.0, (Reach.REBOOT, Reach.MACHINE))
    hazards.excess("memory", 3.0)
    assert hazards.rate(Reach.PROCESS, 0) == pytest.approx(3 * plain[Reach.PROCESS])
    assert hazards.rate(Reach.REBOOT, 0) == pytest.approx(30 * plain[Reach.REBOOT])
    hazards.excess("memory", 1e9)
    assert hazards.factor(Reach.REBOOT) == EXCESS_MAX
    for factor in (1.0, math.nan, -2.0, math.inf):
        hazards.excess("memory", 3.0)
        hazards.excess("memory", factor)
        assert hazards.factor(Reach.PROCESS) == 1.0


def test_losses_go_to_the_next_reach_that_saves_can_have() -> None:
    hazards = Hazards()
    each = {reach: hazards.rate(reach, 0.0) for reach in Reach}
    assert hazards.rates(0.0) == each
    assert hazards.rates(0.0, [Reach.REBOOT]) == {Reach.REBOOT: each[Reach.PROCESS] + each[Reach.REBOOT]}
    assert hazards.rates(0.0, [Reach.MACHINE]) == {Reach.MACHINE: pytest.approx(sum(each.values()))}
    assert hazards.rates(0.0, []) == {}


HOWS: tuple[How, ...] = ("finished", "killed", "rebooted", "moved", "preempted")


@given(
    st.lists(st.builds(lambda s, how: Ended(duration_s=s, how=how), st.floats(), st.sampled_from(HOWS)), max_size=12),
    st.integers(1, 100_000),
    st.floats(-1e9, 1e12),
)
@settings(max_examples=50)
def test_a_rate_is_always_a_positive_number(history: list[Ended], nodes: int, at_s: float) -> None:
    hazards = Hazards(nodes, history)
    for reach in Reach:
        assert 0 < hazards.rate(reach, at_s) < math.inf
