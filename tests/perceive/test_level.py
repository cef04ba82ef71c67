"""What a series is normally, as learnt from it."""

from __future__ import annotations

import random
from statistics import fmean, pstdev

from mementum.perceive.level import CLIP, WARM_UP, Level


def learnt(values: list[float], memory: int = 512) -> Level:
    level = Level(memory=memory)
    for value in values:
        level.learn(value)
    return level


def test_it_finds_the_mean_and_the_spread_of_normal_noise() -> None:
    dice = random.Random(1)
    values = [dice.gauss(3.0, 0.05) for _ in range(400)]
    level = learnt(values)
    assert level.known
    assert abs(level.value - fmean(values)) < 0.005
    assert abs(level.spread / pstdev(values) - 1.0) < 0.1


def test_it_is_not_known_before_the_warm_up_is_over() -> None:
    assert not learnt([1.0] * (WARM_UP - 1)).known
    assert learnt([1.0] * WARM_UP).known


def test_a_series_that_never_changes_has_no_spread() -> None:
    for value in (0.0, 0.1, -7.3, 1e30):
        assert learnt([value] * 1000).spread == 0.0


def test_a_spike_moves_it_by_no_more_than_three_spreads_would() -> None:
    dice = random.Random(2)
    values = [dice.gauss(0.0, 1.0) for _ in range(100)]
    level = learnt(values)
    before, reach = level.value, CLIP * level.spread
    level.learn(1e9)
    assert level.value - before == reach / 101


def test_it_forgets() -> None:
    level = learnt([1.0, 2.0] * 100)
    level.forget()
    assert (level.value, level.spread, level.known) == (0.0, 0.0, False)


def test_it_goes_on_from_its_state() -> None:
    dice = random.Random(3)
    values = [dice.gauss(1.0, 0.1) for _ in range(300)]
    whole, first, second = learnt(values), learnt(values[:150]), Level(memory=512)
    second.apply(first.state())
    for value in values[150:]:
        second.learn(value)
    assert second.state() == whole.state()
