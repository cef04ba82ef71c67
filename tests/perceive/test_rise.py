"""A sum for a loss that falls fast: it sees a rise that the fall's own width would hide, and goes on from its state."""

from __future__ import annotations

import json
import math
import random

import pytest

from mementum.perceive.cusum import Cusum
from mementum.perceive.rise import Rise

BEGAN = 600


def falling(count: int, rise: float = 0.0, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [
        3.0 + 2.0 * math.exp(-n / 150) + dice.gauss(0.0, 0.05) + (rise if n >= BEGAN else 0.0) for n in range(count)
    ]


def told(watch: Cusum | Rise, values: list[float]) -> list[int]:
    return [place for place, value in enumerate(values) if watch.add(value) is not None]


@pytest.mark.parametrize("seed", range(5))
def test_a_rise_is_seen_while_the_loss_still_falls(seed: int) -> None:
    values = falling(BEGAN + 40, 0.15, seed)
    assert told(Cusum(slack=0.5, limit=30.0, memory=512), values) == []
    places = told(rise := Rise(slack=0.5, limit=18.0, memory=64), values)
    assert BEGAN + 5 <= places[0] <= BEGAN + 20
    assert rise.spread == pytest.approx(0.05, rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_alone_is_none(seed: int) -> None:
    assert told(Rise(slack=0.5, limit=18.0, memory=64), falling(3000, 0.0, seed)) == []


def test_what_has_risen_is_the_new_normal_after_a_restart() -> None:
    rise = Rise(slack=0.5, limit=18.0, memory=64)
    values = falling(1000, 0.5)
    seen = told(rise, values[: BEGAN + 20])
    rise.restart()
    assert seen
    assert told(rise, values[BEGAN + 20 :]) == []


def test_values_that_never_change_have_no_spread() -> None:
    rise = Rise(slack=0.5, limit=18.0, memory=64)
    assert told(rise, [2.0] * 200) == []
    assert (rise.spread, rise.rising, rise.level.value) == (0.0, 0, 2.0)


@pytest.mark.parametrize("cut", [0, 1, 70, BEGAN + 5])
def test_it_goes_on_from_its_state(cut: int) -> None:
    whole, before, after = (Rise(slack=0.5, limit=18.0, memory=64) for _ in range(3))
    values = falling(BEGAN + 40, 0.15)
    sums = [before.add(value) for value in values[:cut]]
    after.apply(json.loads(json.dumps(before.state())))
    sums += [after.add(value) for value in values[cut:]]
    assert sums == [whole.add(value) for value in values]
    assert sums[-1] is not None
