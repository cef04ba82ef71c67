"""Tests of the running statistics, against statistics and numpy over the same window."""

from __future__ import annotations

import random
import statistics
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.perceive.robust import RunningMedian, Trend, deviation

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0])


def mad_of(values: list[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


@given(values=st.lists(NUMBERS, min_size=1, max_size=60), window=st.integers(1, 20))
def test_median_and_mad_are_those_of_the_last_values(values: list[float], window: int) -> None:
    running = RunningMedian(window)
    for number, value in enumerate(values, start=1):
        running.add(value)
        last = values[max(0, number - window) : number]
        assert running.median() == statistics.median(last)
        assert running.mad() == mad_of(last)
        assert running.newest(3) == last[-3:]
        assert len(running) == len(last)


def test_the_spread_of_normal_values_is_their_standard_deviation() -> None:
    values = np.random.default_rng(7).normal(5.0, 0.3, 2000)
    running = RunningMedian(2000)
    for value in values:
        running.add(float(value))
    assert running.spread() == pytest.approx(0.3, rel=0.05)


def test_where_most_values_are_equal_the_mean_deviation_tells_the_spread() -> None:
    running = RunningMedian(10)
    for value in [2.0] * 8 + [3.0, 4.0]:
        running.add(value)
    assert running.mad() == 0
    assert running.spread() == pytest.approx(1.2533 * 0.3)


@pytest.mark.parametrize("values", [[], [3.0], [3.0] * 9, [3.0, 3.0 + 1e-12] * 5])
def test_what_is_equal_as_far_as_float32_can_tell_has_no_spread(values: list[float]) -> None:
    running = RunningMedian(16)
    for value in values:
        running.add(value)
    assert running.spread(3.0) == 0


def test_nothing_has_a_median_of_zero() -> None:
    assert RunningMedian(3).median() == RunningMedian(3).mad() == 0


def theil_sen(values: list[float], size: int) -> tuple[float, float]:
    """Where the line lies at the next value, and its slope, by numpy over all blocks that count."""
    whole = len(values) // size
    first = max(0, whole - 16)
    places = [number * size + (size - 1) / 2 for number in range(first, whole)]
    medians = [float(np.median(values[number * size : (number + 1) * size])) for number in range(first, whole)]
    points = list(zip(places, medians, strict=True))
    slope = float(np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]))
    return float(np.median([value - slope * place for place, value in points])) + slope * len(values), slope


def test_the_trend_is_that_of_theil_and_sen_over_block_medians(rng: random.Random) -> None:
    trend, values = Trend(64), []
    for number in range(300):
        value = 9 - 0.01 * number + rng.gauss(0, 0.1)
        values.append(value)
        trend.add(value)
        if number >= 11:
            expected, slope = theil_sen(values, 4)
            assert trend.predict() == pytest.approx(expected, rel=1e-9)
            assert trend.slope == pytest.approx(slope, rel=1e-9)
        else:
            assert trend.predict() is trend.slope is None


def test_a_fifth_of_wild_blocks_does_not_bend_the_line() -> None:
    trend = Trend(128)
    for number in range(128):
        trend.add(1e4 if 40 <= number < 64 else 2.0 - 0.001 * number)
    assert trend.slope == pytest.approx(-0.001, rel=0.05)
    assert trend.predict() == pytest.approx(2.0 - 0.128, rel=0.01)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 23, 24, 100, 301])
def test_what_is_brought_back_goes_on_as_it_would_have(count: int, rng: random.Random) -> None:
    trend, running = Trend(128), RunningMedian(50)
    for _ in range(count):
        value = rng.random()
        trend.add(value)
        running.add(value)
    other, again = Trend(128), RunningMedian(50)
    other.apply(trend.state())
    again.apply(running.state())
    for _ in range(200):
        value = rng.random()
        trend.add(value)
        other.add(value)
        running.add(value)
        again.add(value)
        assert (trend.predict(), trend.slope) == (other.predict(), other.slope)
        assert (running.median(), running.mad()) == (again.median(), again.mad())


def test_a_smaller_window_takes_the_newest_of_what_is_brought_back() -> None:
    running, small = RunningMedian(8), RunningMedian(3)
    for value in range(8):
        running.add(float(value))
    small.apply(running.state())
    assert small.newest(8) == [5.0, 6.0, 7.0]


@given(values=st.lists(NUMBERS, min_size=2, max_size=30))
def test_the_deviation_is_that_of_numpy(values: list[float]) -> None:
    assert deviation(values) == pytest.approx(float(np.std(values)), rel=1e-6, abs=1e-9)


def test_one_value_has_no_deviation() -> None:
    assert deviation([1.0]) is None
