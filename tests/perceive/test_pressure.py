"""Memory that runs out: the chance by a forecast, by a level, and what is said."""

from __future__ import annotations

import random
from math import exp, inf, nan

import pytest

from mementum.perceive.pressure import FORECAST_SPREAD, chance_of_limit, memory_sign
from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble, Vitals


def sign_at(
    used: float | None, steps_left: float | None, *, step_s: float | None = 0.5, save_s: float | None = 20.0
) -> Sign | None:
    vitals = Vitals(step=1, at_s=1.0, memory_used=used, memory_steps_left=steps_left)
    return memory_sign(vitals, limits=Limits(), step_s=step_s, save_s=save_s)


@pytest.mark.parametrize(
    ("steps_left", "chance"), [(80.0, 0.5), (40.0, 0.98957), (160.0, 0.01043), (0.0, 1.0), (-5.0, 1.0), (inf, 0.0)]
)
def test_the_chance_by_a_forecast(steps_left: float, chance: float) -> None:
    assert chance_of_limit(steps_left, 80.0) == pytest.approx(chance, abs=1e-4)


def test_it_is_the_share_of_ramps_that_come_to_the_limit_in_time() -> None:
    dice = random.Random(1)
    true_steps = [100.0 * exp(dice.gauss(0.0, FORECAST_SPREAD)) for _ in range(20_000)]
    for horizon in (70.0, 100.0, 130.0):
        share = sum(steps <= horizon for steps in true_steps) / len(true_steps)
        assert chance_of_limit(100.0, horizon) == pytest.approx(share, abs=0.02)


def test_it_rises_as_the_limit_comes_nearer() -> None:
    chances = [chance_of_limit(float(steps_left), 80.0) for steps_left in range(300, -1, -1)]
    assert chances == sorted(chances)
    assert (chances[0] < 1e-4, chances[-1]) == (True, 1.0)


def test_a_ramp_says_how_many_steps_are_left() -> None:
    sign = sign_at(0.81, 40.0)
    assert sign is not None
    assert (sign.trouble, sign.value, sign.limit) == (Trouble.MEMORY, 40.0, 80.0)  # 2 x 20 s at 0.5 s a step
    assert (sign.horizon_s, sign.grade) == (40.0, 4)
    assert sign.chance > 0.98
    assert sign.text == "at this rate the memory limit is reached in 40 steps; 81 % of the memory limit is used"


def test_a_level_without_growth_has_a_small_chance_and_an_urgent_one_a_large() -> None:
    high, urgent = sign_at(0.93, inf), sign_at(0.98, inf)
    assert high is not None
    assert urgent is not None
    assert (high.value, high.limit, high.chance, high.grade) == (0.93, 0.92, 0.02, 1)
    assert (urgent.value, urgent.limit, urgent.chance, urgent.grade) == (0.98, 0.97, 0.5, 3)
    assert urgent.text == "98 % of the memory limit is used"


@pytest.mark.parametrize(("used", "steps_left"), [(None, None), (0.92, inf), (0.5, 1e6), (nan, nan), (0.1, None)])
def test_enough_memory_or_none_known_is_nothing(used: float | None, steps_left: float | None) -> None:
    assert sign_at(used, steps_left) is None


@pytest.mark.parametrize("save_s", [nan, inf, -1.0, None])
def test_a_save_of_no_known_duration_asks_for_ten_steps(save_s: float | None) -> None:
    assert sign_at(0.5, 100.0, save_s=save_s) is None
    sign = sign_at(0.5, 8.0, save_s=save_s)
    assert sign is not None
    assert sign.limit == 10.0


def test_without_durations_the_horizon_is_ten_steps() -> None:
    sign = sign_at(None, 5.0, step_s=None, save_s=None)
    assert sign is not None
    assert (sign.limit, sign.horizon_s) == (10.0, 0.0)
    assert sign.text == "at this rate the memory limit is reached in 5 steps"
    sign = sign_at(None, 5.0, step_s=3.0, save_s=0.1)
    assert sign is not None
    assert (sign.limit, sign.horizon_s) == (10.0, 30.0)
