"""Inexact saves become exact ones where one is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mementum.decide.granularity import ExactOften
from mementum.decide.happening import OnEvent
from mementum.records import Granularity, Save, Situation

SITUATION = Situation(
    step=9, epoch=0, since_save_steps=9, since_save_s=9.0, saves_since_exact=3, since_exact_s=60.0, events=("x",)
)


def often(situation: Situation, granularity: Granularity = Granularity.WEIGHTS, **limits: Any) -> Save:
    policy = OnEvent(names=frozenset({"x"}), granularity=granularity)
    decided = ExactOften(policy=policy, **limits).decide(situation)
    assert isinstance(decided, Save)
    return decided


def test_inexact_saves_become_exact_ones_where_one_is_due() -> None:
    plain = often(SITUATION)
    assert plain.granularity is Granularity.WEIGHTS
    assert often(replace(SITUATION, saves_since_exact=8)) == plain
    assert often(replace(SITUATION, since_exact_s=3599.0)) == plain
    for situation, why in (
        (replace(SITUATION, saves_since_exact=9), "9 inexact saves since the newest exact one, at most 9"),
        (replace(SITUATION, since_exact_s=3600.0), "the newest exact save is 60 min old, at most 60 min"),
        (replace(SITUATION, since_exact_s=None), "no exact save is there yet"),
    ):
        decided = often(situation)
        assert decided == replace(plain, granularity=Granularity.FULL, reason=f"{plain.reason}; exact: {why}")
    assert often(SITUATION, exact_every=4).granularity is Granularity.FULL


def test_what_is_exact_or_no_save_is_left_alone() -> None:
    due = replace(SITUATION, since_exact_s=None)
    assert often(due, Granularity.FULL) == OnEvent(names=frozenset({"x"})).decide(due)
    quiet = replace(due, events=())
    assert ExactOften(policy=OnEvent(names=frozenset({"x"}))).decide(quiet) is None
