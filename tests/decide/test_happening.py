"""Events and best metrics save once, when they come."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mementum.decide.happening import BestMetric, OnEvent
from mementum.records import Granularity, Reach, Save, Situation, Standing

NOW = Situation(step=9, epoch=0, since_save_steps=9, since_save_s=9)


def test_events() -> None:
    told = replace(NOW, events=("published", "phase"))
    assert OnEvent().decide(told) == Save(reason="event published, phase", cause="event")
    assert OnEvent(names=frozenset({"phase"})).decide(told) == Save(reason="event phase", cause="event")
    assert OnEvent(names=frozenset({"other"})).decide(told) is None
    assert OnEvent().decide(NOW) is None


@pytest.mark.parametrize(
    ("mode", "value", "best", "saves"),
    [
        ("min", 0.5, 0.7, True),
        ("min", 0.7, 0.7, False),
        ("min", 0.9, 0.7, False),
        ("max", 0.9, 0.7, True),
        ("max", 0.5, 0.7, False),
        ("min", 0.65, 0.7, False),  # by less than min_delta
        ("min", 0.5, None, True),
        ("min", 0.5, math.nan, True),
        ("min", math.nan, 0.7, False),
        ("max", math.inf, 0.7, False),
        ("min", None, 0.7, False),
    ],
)
def test_best(mode: str, value: float | None, best: float | None, saves: bool) -> None:
    now = replace(NOW, metrics={} if value is None else {"loss": value}, best={} if best is None else {"loss": best})
    policy = BestMetric(name="loss", mode=mode, min_delta=0.1, granularity=Granularity.WEIGHTS)  # type: ignore[arg-type]
    decision = policy.decide(now)
    assert (decision is not None) is saves
    if isinstance(decision, Save):
        assert (decision.cause, decision.granularity) == ("best", Granularity.WEIGHTS)


def test_best_says_by_how_much() -> None:
    policy, now = BestMetric(name="acc", mode="max"), replace(NOW, metrics={"acc": 0.9})
    assert policy.decide(now).reason == "acc 0.9 is the first that is known"  # type: ignore[union-attr]
    saved = policy.decide(replace(now, best={"acc": 0.7}))
    assert saved == Save(
        reason="acc 0.9 is the best so far, 0.7 was before",
        numbers={"value": 0.9, "best_before": 0.7},
        cause="best",
    )


def test_the_reach_is_one_that_there_is() -> None:
    ram = Standing(reach=Reach.PROCESS, since_s=9, since_steps=9, cost_s=1, size=1, rate=0, exposure_s=0)
    far = replace(ram, reach=Reach.MACHINE)
    told = replace(NOW, events=("x",))
    assert OnEvent().decide(replace(told, standings=(ram,))).reach is Reach.PROCESS  # type: ignore[union-attr]
    assert OnEvent().decide(replace(told, standings=(ram, far))).reach is Reach.MACHINE  # type: ignore[union-attr]
