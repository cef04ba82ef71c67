"""The CUSUM: what it notices, what it lets pass, and that it starts again."""

from __future__ import annotations

import random
from statistics import median

from mementum.perceive.cusum import SUM_MAX, Cusum
from mementum.perceive.level import WARM_UP


def fresh() -> Cusum:
    return Cusum(slack=0.5, limit=30.0, memory=512)


def told(cusum: Cusum, values: list[float]) -> list[int]:
    """The places at which it tells; it begins anew after each."""
    places = []
    for place, value in enumerate(values):
        if cusum.add(value) is not None:
            places.append(place)
            cusum.restart()
    return places


def noise(seed: int, count: int, *, rise: float = 0.0) -> list[float]:
    """Around 3.0 with a spread of 0.05; it rises by so many spreads a step."""
    dice = random.Random(seed)
    return [dice.gauss(3.0 + 0.05 * rise * place, 0.05) for place in range(count)]


def test_noise_alone_is_nothing() -> None:
    assert [told(fresh(), noise(seed, 5000)) for seed in range(5)] == [[]] * 5


def test_a_series_that_falls_is_nothing() -> None:
    assert told(fresh(), [11.0 * (1.0 + place) ** -0.1 for place in range(5000)]) == []


def test_spikes_are_nothing_however_large() -> None:
    values = noise(1, 4000)
    values[500::100] = [1e6] * len(values[500::100])
    assert told(fresh(), values) == []


def test_a_drift_of_one_spread_in_a_hundred_steps_is_seen_within_two_hundred() -> None:
    delays = [told(fresh(), noise(seed, 1000) + noise(seed + 99, 400, rise=0.01))[0] - 1000 for seed in range(9)]
    assert min(delays) >= 0
    assert median(delays) < 200


def test_a_shift_is_seen_once_and_then_it_is_normal() -> None:
    shifted = [value + 0.1 for value in noise(3, 2000)]
    places = told(fresh(), noise(2, 1000) + shifted)
    assert len(places) == 1
    assert 1000 <= places[0] < 1030  # 30 / (2 - 0.5) steps, on average


def test_the_sum_is_by_the_formula() -> None:
    cusum = fresh()
    for place in range(100):
        cusum.add(-1.0 if place % 2 else 1.0)
    level, spread, sum_before = cusum.level.value, cusum.level.spread, cusum.state()["sum"]
    cusum.add(level + 2.0 * spread)
    assert abs(cusum.state()["sum"] - (sum_before + 2.0 - 0.5)) < 1e-12


def test_a_constant_and_a_step_from_it_divide_by_nothing() -> None:
    assert told(fresh(), [1.0] * 500 + [2.0] * 10) == []


def test_it_says_nothing_before_it_knows_what_is_normal() -> None:
    assert told(fresh(), [float(place) for place in range(WARM_UP)]) == []


def test_what_nobody_answers_is_over_when_the_values_are_back() -> None:
    cusum = fresh()
    for value in noise(4, 500) + [4.0] * 1000:
        cusum.add(value)
    assert cusum.state()["sum"] == SUM_MAX * 30.0
    back = noise(5, 300)
    answers = [cusum.add(value) for value in back]
    assert answers[0] is not None
    assert answers[150:] == [None] * 150


def test_it_goes_on_from_its_state() -> None:
    values = noise(6, 600) + [value + 0.06 for value in noise(7, 300)]
    whole, first, second = fresh(), fresh(), fresh()
    answers = [whole.add(value) for value in values]
    begun = [first.add(value) for value in values[:620]]
    second.apply(first.state())
    assert begun + [second.add(value) for value in values[620:]] == answers
    assert any(answer is not None for answer in answers)
