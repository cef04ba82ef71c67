"""The granularity with the least expected cost is chosen, and an exact one often enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.granularity import EXACT_EVERY, EXACT_EVERY_S, Chosen, ExactOften, Option, choose, option
from mementum.decide.happening import OnEvent
from mementum.records import Granularity, Save, Situation

FULL = option(Granularity.FULL, 10.0)
WEIGHTS = option(Granularity.WEIGHTS, 3.0)


def chosen(*options: Option, chance: float, saves: int = 0, since_s: float | None = 60.0) -> Chosen:
    return choose(options, chance=chance, step_s=1.0, saves_since_exact=saves, since_exact_s=since_s)


@pytest.mark.parametrize(
    ("chance", "granularity"),
    [(0.0, Granularity.WEIGHTS), (0.069, Granularity.WEIGHTS), (0.071, Granularity.FULL), (1.0, Granularity.FULL)],
)
def test_break_even_is_where_recovery_eats_what_was_saved(chance: float, granularity: Granularity) -> None:
    assert chosen(FULL, WEIGHTS, chance=chance).granularity is granularity  # 7 s cheaper, 100 steps of 1 s to recover


def test_reasons_hold_the_numbers() -> None:
    light = chosen(FULL, WEIGHTS, chance=0.01)
    assert light.expected_s == 4.0
    assert light.reason == "3 s to save and 1 % chance of 100 steps to recover = 4 s < 10 s for all of it"
    assert chosen(FULL, WEIGHTS, chance=0.5).reason == "10 s to save"


def test_ties_go_to_the_exact_one() -> None:
    assert chosen(option(Granularity.WEIGHTS, 10.0), FULL, chance=0.0).granularity is Granularity.FULL


@pytest.mark.parametrize(
    ("saves", "since_s", "reason"),
    [
        (0, None, "no exact save is there yet"),
        (EXACT_EVERY - 1, 60.0, "9 inexact saves since the newest exact one, at most 9"),
        (0, EXACT_EVERY_S, "the newest exact save is 60 min old, at most 60 min"),
    ],
)
def test_exact_often_enough(saves: int, since_s: float | None, reason: str) -> None:
    found = chosen(FULL, WEIGHTS, chance=0.0, saves=saves, since_s=since_s)
    assert (found.granularity, found.reason) == (Granularity.FULL, reason)


@given(
    costs=st.lists(st.floats(0, 100), min_size=4, max_size=4),
    chance=st.floats(0, 1),
    step_s=st.floats(0.01, 10),
    saves=st.integers(0, 20),
    since_s=st.none() | st.floats(0, 2 * EXACT_EVERY_S),
)
def test_no_other_option_is_cheaper_and_exact_ones_never_run_out(
    costs: list[float], chance: float, step_s: float, saves: int, since_s: float | None
) -> None:
    options = [option(granularity, cost_s) for granularity, cost_s in zip(Granularity, costs, strict=True)]
    found = choose(options, chance=chance, step_s=step_s, saves_since_exact=saves, since_exact_s=since_s)
    if since_s is None or since_s >= EXACT_EVERY_S or saves >= EXACT_EVERY - 1:
        assert found.granularity is Granularity.FULL
    else:
        assert found.expected_s == min(one.cost_s + chance * one.recovery_steps * step_s for one in options)


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
