"""A save that a budget does not cover is refused in words that name it, and nobody who waits for one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.budget import Within
from mementum.decide.cost import CostOptimal
from mementum.decide.happening import OnEvent
from mementum.decide.interval import EverySteps
from mementum.decide.policy import First
from mementum.records import Allowance, Decision, Reach, Save, Situation, Skip, Standing, record

SSD = Standing(reach=Reach.REBOOT, since_s=900, since_steps=90, cost_s=4, size=87 * 10**9, rate=1e-5, exposure_s=9)
RAM = replace(SSD, reach=Reach.PROCESS, cost_s=0.5)
LOST = Allowance(name="lost time", reach=Reach.REBOOT, unit="s", left=6, limit=50, per_save=4, for_alarms=3)
BYTES = Allowance(
    name="bytes a day", reach=Reach.REBOOT, unit="bytes", left=1e12, limit=20e12, per_save=87e9, for_alarms=1e12
)
NOW = Situation(step=99, epoch=0, since_save_steps=90, since_save_s=900, standings=(SSD,), step_s=10)


@record
class Says:
    """A policy that saves for a cause."""

    cause: str

    def decide(self, situation: Situation) -> Decision:
        return Save(reason="because", cause=self.cause, numbers={"x": 1.0})


def decide(cause: str, *allowances: Allowance, max_lost_s: float | None = None) -> Decision | None:
    return Within(policy=Says(cause=cause), max_lost_s=max_lost_s).decide(replace(NOW, allowances=allowances))


def test_what_is_covered_passes_as_it_is() -> None:
    assert decide("interval", LOST, BYTES) == Save(reason="because", numbers={"x": 1.0})
    assert decide("interval") == Save(reason="because", numbers={"x": 1.0})


def test_a_refusal_names_budget_need_rest_limit_and_what_next() -> None:
    refused = decide("interval", replace(LOST, left=3.5))
    assert isinstance(refused, Skip)
    assert refused.wanted is not None
    assert replace(refused, wanted=None) == Skip(
        reason="refused by the budget lost time (reboot): a save needs 4 s, 3.5 s of 50 s left; saved as soon as that"
        " covers it; raise budgets.lost_time to save sooner (wanted: because)",
        numbers={"x": 1.0, "need": 4, "left": 3.5, "limit": 50, "kept": 0},
        refused=True,
    )


def test_alarms_take_from_their_part() -> None:
    skipped = decide("alarm", LOST)
    assert isinstance(skipped, Skip)
    assert "a save needs 4 s, 3 s of 50 s left for alarms;" in skipped.reason
    assert isinstance(decide("alarm", replace(LOST, for_alarms=4)), Save)
    assert isinstance(decide("alarm", replace(LOST, left=1, for_alarms=4)), Skip)


@pytest.mark.parametrize("cause", ["notice", "asked", "end"])
def test_who_waits_for_a_save_gets_it(cause: str) -> None:
    spent = replace(LOST, left=-5, for_alarms=-5)
    assert decide(cause, spent, replace(BYTES, left=0)) == Save(reason="because", cause=cause, numbers={"x": 1.0})


@pytest.mark.parametrize("cause", ["interval", "event", "epoch", "best", "alarm", "tolerance"])
def test_all_others_keep_within_it(cause: str) -> None:
    skipped = decide(cause, replace(LOST, for_alarms=5), replace(BYTES, left=86e9))
    assert isinstance(skipped, Skip)
    assert skipped.refused
    assert "bytes a day (reboot): a save needs 87 GB, 86 GB of 20 TB left" in skipped.reason


def test_budgets_of_other_reaches_do_not_count() -> None:
    assert isinstance(decide("interval", replace(LOST, left=0, reach=Reach.MACHINE)), Save)


def test_a_tolerance_that_is_broken_is_said() -> None:
    skipped = decide("tolerance", replace(LOST, left=0), max_lost_s=600)
    assert isinstance(skipped, Skip)
    assert "; max_lost 10 min is not kept until then; raise budgets.lost_time" in skipped.reason


def test_a_day_is_spent_evenly() -> None:
    few = replace(BYTES, limit=20 * 87e9, left=20 * 87e9)  # one in 72 min
    skipped = decide("interval", few)
    assert isinstance(skipped, Skip)
    assert skipped.refused
    assert skipped.reason == (
        "refused by the budget bytes a day (reboot): a save needs 87 GB, 1.74 TB spread over the day allow one in"
        " 72 min; saved when that has passed; raise budgets.bytes_per_day to save sooner"
    )
    assert skipped.numbers["early_s"] == pytest.approx(72 * 60 - 900)
    assert isinstance(decide("event", few), Save)  # it does not come by the clock


def test_what_the_tolerance_will_need_is_left_to_it() -> None:
    day = replace(BYTES, limit=100 * 87e9, left=100 * 87e9)  # a tolerance of 15 min: 98 saves that are 886 s apart
    assert isinstance(decide("event", replace(day, others=87e9), max_lost_s=900), Save)
    held = decide("event", replace(day, others=1.1 * 87e9), max_lost_s=900)
    assert isinstance(held, Skip)
    assert "a save needs 87 GB, 78.3 GB of 8.7 TB left, with 8.53 TB kept for max_lost;" in held.reason
    # What the tolerance itself has taken is no reason to keep as much again.
    assert isinstance(decide("event", replace(day, left=5 * 87e9), max_lost_s=900), Save)
    assert isinstance(decide("tolerance", replace(day, left=87e9), max_lost_s=900), Save)
    assert isinstance(decide("event", replace(LOST, left=7.9), max_lost_s=900), Skip)
    assert isinstance(decide("event", replace(LOST, left=8), max_lost_s=900), Save)


def test_a_shallower_save_that_is_due_is_still_made() -> None:
    situation = replace(NOW, standings=(RAM, SSD), allowances=(replace(LOST, left=1),))
    saved = Within(policy=CostOptimal()).decide(situation)
    assert isinstance(saved, Save)
    assert saved.reach is Reach.PROCESS
    assert "; only against the loss of the process: a deeper save was refused by the budget lost time" in saved.reason
    calm = replace(situation, standings=(replace(RAM, exposure_s=0.1), SSD))
    skipped = Within(policy=CostOptimal()).decide(calm)
    assert isinstance(skipped, Skip)
    assert skipped.refused
    told = Within(policy=OnEvent()).decide(replace(calm, events=("x",)))
    assert isinstance(told, Save)
    assert told.reach is Reach.PROCESS


def test_a_policy_that_knows_no_reaches_is_refused_in_the_end() -> None:
    situation = replace(NOW, standings=(RAM, SSD), allowances=(replace(LOST, left=1),))
    skipped = Within(policy=First(policies=(EverySteps(steps=5),))).decide(situation)
    assert isinstance(skipped, Skip)
    assert skipped.refused


def test_skips_and_silence_pass() -> None:
    assert Within(policy=OnEvent()).decide(NOW) is None
    calm = replace(NOW, standings=(replace(SSD, exposure_s=0.0),))
    assert Within(policy=CostOptimal()).decide(calm) == CostOptimal().decide(calm)
