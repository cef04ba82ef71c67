"""Policies are asked in their order, whatever order they were written in; watching saves nothing."""

from __future__ import annotations

import random
from dataclasses import replace

from mementum.decide.alarm import BeforeCrash
from mementum.decide.before import BeforeStop
from mementum.decide.cost import CostOptimal
from mementum.decide.happening import BestMetric, OnEvent
from mementum.decide.interval import EveryEpoch, EverySteps
from mementum.decide.observing import Observing
from mementum.decide.policy import Policy
from mementum.decide.precedence import in_order
from mementum.decide.tolerance import Tolerance
from mementum.records import Alarm, Decision, Notice, Reach, Save, Situation, Skip, Standing, Trouble, record


@record
class Theirs:
    """A policy of a user."""

    def decide(self, situation: Situation) -> Decision | None:
        return Save(reason="theirs", cause="theirs")


ALL: tuple[Policy, ...] = (
    BeforeStop(),
    Tolerance(max_lost_s=600),
    BeforeCrash(),
    OnEvent(),
    EveryEpoch(),
    BestMetric(name="loss"),
    Theirs(),
    EverySteps(steps=5),
    CostOptimal(),
)
CAUSES = ["notice", "tolerance", "alarm", "event", "epoch", "best", "theirs", "interval", "interval"]
EVERYTHING = Situation(
    step=9,
    epoch=1,
    ends_epoch=True,
    since_save_steps=9,
    since_save_s=900,
    notices=(Notice(source="SIGTERM", left_s=30),),
    alarms=(Alarm(trouble=Trouble.SLOW, step=9, value=3, limit=2, text="slow", chance=0.9),),
    standings=(Standing(reach=Reach.REBOOT, since_s=900, since_steps=9, cost_s=1, size=1, rate=1, exposure_s=9e5),),
    metrics={"loss": 0.5},
    events=("x",),
)


def test_the_order_is_the_same_however_it_was_written() -> None:
    draw = random.Random(3)
    for _ in range(20):
        shuffled = list(ALL)
        draw.shuffle(shuffled)
        assert in_order(shuffled).policies == ALL


def test_each_has_its_say_when_those_before_it_are_gone() -> None:
    for first, cause in enumerate(CAUSES):
        saved = in_order(ALL[first:]).decide(EVERYTHING)
        assert isinstance(saved, Save)
        assert saved.cause == cause


def test_watching_says_what_would_have_been_saved() -> None:
    for policy in ALL:
        saved, watched = policy.decide(EVERYTHING), Observing(policy=policy).decide(EVERYTHING)
        assert isinstance(saved, Save)
        assert watched == Skip(
            reason=f"would have saved: {saved.reason}",
            numbers={**saved.numbers, "granularity": 0.0, "reach": float(saved.reach)},
        )
    quiet = replace(EVERYTHING, standings=(), since_save_s=1.0)
    assert Observing(policy=CostOptimal()).decide(quiet) == CostOptimal().decide(quiet)
    assert Observing(policy=OnEvent()).decide(replace(quiet, events=())) is None
