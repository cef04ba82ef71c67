"""The default interval saves when the expected loss reaches the cost, for the deepest reach, and not too often."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.cost import CHEAP_STILL, IN_FLIGHT, UNKNOWN, CostOptimal
from mementum.decide.theory import young
from mementum.records import Reach, Save, Situation, Skip, Standing

NOW = Situation(step=100, epoch=0, since_save_steps=100, since_save_s=100.0)
CALM = Standing(reach=Reach.REBOOT, since_s=1000, since_steps=100, cost_s=0.4, size=10**9, rate=1e-5, exposure_s=0.1)


def at(*standings: Standing) -> Situation:
    return replace(NOW, standings=standings)


def test_it_saves_when_the_loss_reaches_the_cost() -> None:
    saved = CostOptimal().decide(at(replace(CALM, exposure_s=31.0, since_s=2500)))
    assert isinstance(saved, Save)
    assert saved.reason == "31 s lost on average so far >= 0.4 s that a save costs; work at risk: 41.7 min"
    assert (saved.reach, saved.cause) == (Reach.REBOOT, "interval")
    assert saved.numbers["exposure_s"] == 31.0
    assert saved.numbers["interval_s"] == pytest.approx(math.sqrt(2 * 0.4 / 1e-5))


@given(cost_s=st.floats(0.05, 60), mtbf_s=st.floats(100, 1e7))
def test_at_a_constant_rate_that_is_youngs_interval(cost_s: float, mtbf_s: float) -> None:
    interval_s = young(cost_s, mtbf_s)

    def after(since_s: float) -> Situation:
        exposure_s = since_s**2 / (2 * mtbf_s)
        return at(replace(CALM, cost_s=cost_s, rate=1 / mtbf_s, since_s=since_s, exposure_s=exposure_s))

    if interval_s > 2.01 * cost_s:
        assert isinstance(CostOptimal().decide(after(interval_s * 0.999)), Skip)
        assert isinstance(CostOptimal().decide(after(interval_s * 1.001)), Save)
    else:
        assert isinstance(CostOptimal().decide(after(min(interval_s, 2 * cost_s) * 0.999)), Skip)


def test_never_more_than_its_part_of_the_time() -> None:
    ripe = replace(CALM, cost_s=60, exposure_s=1000, since_s=119)
    skipped = CostOptimal().decide(at(ripe))
    assert skipped == Skip(reason="saves would take more than their part of the time (50 %)", numbers=skipped.numbers)
    assert skipped.numbers["interval_s"] == pytest.approx(
        3464.1016
    )  # the rate asks for less than the exposure has seen
    assert isinstance(CostOptimal().decide(at(replace(ripe, since_s=120))), Save)
    assert isinstance(CostOptimal(overhead=0.1).decide(at(replace(ripe, since_s=599))), Skip)
    assert isinstance(CostOptimal(overhead=0.1).decide(at(replace(ripe, since_s=600))), Save)


def test_the_lowest_rate_that_is_believed_is_a_backstop() -> None:
    quiet = replace(CALM, rate=1e-9, exposure_s=0.001, cost_s=0.5, since_s=999)
    policy = CostOptimal(rates_least={Reach.REBOOT: 1e-6})
    assert isinstance(policy.decide(at(quiet)), Skip)
    saved = policy.decide(at(replace(quiet, since_s=1001)))
    assert isinstance(saved, Save)
    assert saved.reason == (
        "16.7 min of work at risk >= 16.7 min, the interval at the lowest failure rate that is believed and 0.5 s that"
        " a save costs; work at risk: 16.7 min"
    )
    assert isinstance(CostOptimal().decide(at(replace(quiet, since_s=1e6))), Skip)


def test_the_deepest_reach_that_is_due_serves_the_others() -> None:
    ram = replace(CALM, reach=Reach.PROCESS, exposure_s=9.0)
    ssd = replace(CALM, reach=Reach.REBOOT, exposure_s=5.0)
    far = replace(CALM, reach=Reach.MACHINE, exposure_s=0.2)
    assert CostOptimal().decide(at(ram, ssd, far)).reach is Reach.REBOOT  # type: ignore[union-attr]
    assert CostOptimal().decide(at(ram, replace(ssd, exposure_s=0.0), far)).reach is Reach.PROCESS  # type: ignore[union-attr]
    due = replace(far, exposure_s=0.4)
    assert CostOptimal().decide(at(ram, ssd, due)).reach is Reach.MACHINE  # type: ignore[union-attr]


def test_a_save_on_its_way_is_not_repeated() -> None:
    ripe = replace(CALM, exposure_s=9.0, in_flight=True)
    assert CostOptimal().decide(at(ripe)).reason == IN_FLIGHT
    ram = replace(ripe, reach=Reach.PROCESS, in_flight=False)
    assert CostOptimal().decide(at(ripe, ram)).reach is Reach.PROCESS  # type: ignore[union-attr]


def test_skips_say_the_same_words_while_nothing_changes() -> None:
    assert CostOptimal().decide(NOW) == Skip(reason=UNKNOWN)
    said = {CostOptimal().decide(at(replace(CALM, exposure_s=n / 100))).reason for n in range(40)}
    assert said == {CHEAP_STILL}


def test_what_was_just_saved_is_not_saved_again() -> None:
    assert isinstance(CostOptimal().decide(at(replace(CALM, exposure_s=9.0, since_steps=0))), Skip)


def test_a_save_that_seems_free_is_not_made_at_every_step() -> None:
    free = replace(CALM, cost_s=0.0, exposure_s=0.0, since_s=50.0)
    assert isinstance(CostOptimal().decide(at(free)), Skip)
    assert isinstance(CostOptimal().decide(at(replace(free, exposure_s=0.01))), Save)


@pytest.mark.parametrize("name", ["cost_s", "exposure_s", "since_s"])
def test_what_is_not_a_number_saves_nothing(name: str) -> None:
    assert isinstance(CostOptimal().decide(at(replace(CALM, **{name: math.nan}))), Skip)
