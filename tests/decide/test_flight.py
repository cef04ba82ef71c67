"""The flight recorder: snapshots in memory at a steady pace, none that costs too much, none of a state in doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.flight import FlightRecorder, Recording
from mementum.decide.interval import EverySteps
from mementum.decide.policy import First
from mementum.records import Diagnosis, Health, Reach, Save, Situation, Skip, Standing


def standing(since_steps: int, *, cost_s: float = 0.005, in_flight: bool = False) -> Standing:
    return Standing(
        reach=Reach.PROCESS, since_s=1.0, since_steps=since_steps, cost_s=cost_s, in_flight=in_flight, rate=0.0
    )


def situation(*standings: Standing, since_save_steps: int = 1, diagnosis: Diagnosis | None = None) -> Situation:
    return Situation(
        step=500,
        epoch=0,
        since_save_steps=since_save_steps,
        since_save_s=1.0,
        step_s=0.1,
        standings=standings,
        diagnosis=Diagnosis() if diagnosis is None else diagnosis,
    )


def test_a_snapshot_every_so_many_steps() -> None:
    recorder = FlightRecorder(every=50)
    assert recorder.decide(situation(standing(49))) is None
    save = recorder.decide(situation(standing(50)))
    assert isinstance(save, Save)
    assert (save.reach, save.cause, save.urgent) == (Reach.PROCESS, "recorder", False)
    assert save.reason == "flight recorder: 50 steps since the newest snapshot, interval 50"


@pytest.mark.parametrize(("cost_s", "steps"), [(0.005, 50), (0.05, 50), (0.2, 200), (1.0, 1000), (0.0, 50)])
def test_it_takes_no_more_than_its_share_of_the_time(cost_s: float, steps: int) -> None:
    recorder = FlightRecorder(every=50, share=0.01)
    assert recorder.decide(situation(standing(steps - 1, cost_s=cost_s))) is None
    assert isinstance(recorder.decide(situation(standing(steps, cost_s=cost_s))), Save)


def test_a_step_whose_duration_is_not_known_does_not_make_it_rarer() -> None:
    unknown = replace(situation(standing(50, cost_s=9.0)), step_s=None)
    assert isinstance(FlightRecorder(every=50).decide(unknown), Save)


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.DIVERGED])
def test_none_of_a_state_in_doubt(health: Health) -> None:
    assert FlightRecorder().decide(situation(standing(500), diagnosis=Diagnosis(health=health, onset=450))) is None


def test_none_where_nobody_looks_or_memory_keeps_none_or_one_is_on_its_way() -> None:
    recorder = FlightRecorder()
    assert recorder.decide(replace(situation(standing(500)), diagnosis=None)) is None
    assert recorder.decide(situation(replace(standing(500), reach=Reach.REBOOT))) is None
    assert recorder.decide(situation(standing(500, in_flight=True))) is None


def test_a_save_that_is_due_by_itself_goes_first() -> None:
    policy = Recording(policy=EverySteps(steps=100), recorder=FlightRecorder(every=50))
    due = policy.decide(situation(standing(50), since_save_steps=100))
    assert isinstance(due, Save)
    assert (due.reach, due.cause) == (Reach.REBOOT, "interval")
    between = policy.decide(situation(standing(50), since_save_steps=50))
    assert isinstance(between, Save)
    assert between.cause == "recorder"


def test_where_nothing_is_due_it_says_what_the_policy_says() -> None:
    silent = Recording(policy=EverySteps(steps=100), recorder=FlightRecorder(every=50))
    assert silent.decide(situation(standing(49))) is None
    told = Recording(policy=First(policies=()), recorder=FlightRecorder(every=50))
    assert told.decide(situation(standing(49))) == Skip(reason="no policy asked for a save")


def test_a_refusal_of_the_recorders_is_not_told() -> None:
    class Refused:
        def decide(self, situation: Situation) -> Skip:
            return Skip(reason="refused by the budget", refused=True)

    policy = Recording(policy=First(policies=()), recorder=Refused())
    assert policy.decide(situation(standing(500))) == Skip(reason="no policy asked for a save")
