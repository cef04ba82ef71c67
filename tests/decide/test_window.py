"""The window policy gives the three intervals of its examples, and saves at once when the risk rises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mementum.decide.window import CALM, Window, interval_steps, steadiness
from mementum.records import Save, Situation, Skip

NOW = Situation(step=100, epoch=0, since_save_steps=0, since_save_s=0.0)
STD = 0.005  # alpha .95


@pytest.mark.parametrize(("beta", "steps"), [(0.02, 1750), (0.83, 418), (0.10, 1331)])
def test_the_three_examples(beta: float, steps: int) -> None:
    assert int(interval_steps(2000, alpha=0.95, beta=beta)) == steps  # 1750.5, 418.1 and 1331.5
    now = replace(NOW, loss_std=STD, risk=beta)
    assert isinstance(Window().decide(replace(now, since_save_steps=steps - 1)), Skip)
    saved = Window().decide(replace(now, since_save_steps=steps + 1))
    assert isinstance(saved, Save)
    assert saved.reason == (f"{steps + 1} steps since the last save, interval {steps} (alpha 0.95, beta {beta:.2f})")
    assert saved.numbers["interval_steps"] == pytest.approx(steps, abs=0.51)


@pytest.mark.parametrize(
    ("std", "alpha"),
    [(None, 1.0), (0.0, 1.0), (0.005, 0.95), (0.043, 0.57), (0.08, 0.2), (5.0, 0.2), (math.inf, 0.2), (math.nan, 0.2)],
)
def test_steadiness(std: float | None, alpha: float) -> None:
    assert steadiness(std) == pytest.approx(alpha)


def test_a_rising_risk_saves_at_once() -> None:
    risen = replace(NOW, risk=0.75, risk_rose=True, since_save_steps=1)
    saved = Window().decide(risen)
    assert isinstance(saved, Save)
    assert (saved.cause, saved.reason) == ("alarm", "the risk rose to 0.75, above 0.68")
    assert isinstance(Window().decide(replace(risen, risk_rose=False)), Skip)
    assert isinstance(Window(risk_threshold=0.8).decide(risen), Skip)
    assert isinstance(Window().decide(replace(risen, since_save_steps=0)), Skip)  # that state is saved


def test_the_base_decays_with_progress_if_asked() -> None:
    def interval(window: Window, step: int, total: int | None) -> float:
        return window.decide(replace(NOW, step=step, total_steps=total)).numbers["interval_steps"]

    assert [interval(Window(decay=0.5), step, 1000) for step in (0, 500, 1000, 2000)] == [2000, 1500, 1000, 1000]
    assert interval(Window(decay=0.5), 500, None) == 2000
    assert interval(Window(), 500, 1000) == 2000


def test_a_skip_says_the_same_words_until_it_is_due() -> None:
    said = {Window().decide(replace(NOW, since_save_steps=steps)).reason for steps in range(0, 1999, 7)}
    assert said == {CALM}


@pytest.mark.parametrize("risk", [-1.0, 7.0])
def test_a_risk_out_of_range_is_held_within_it(risk: float) -> None:
    assert Window().decide(replace(NOW, risk=risk)).numbers["beta"] in (0.0, 1.0)
