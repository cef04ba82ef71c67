"""A loss that a learning rate raises again: no trouble, where it was as high before at that rate."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from mementum.perceive.alarms import Detectors
from mementum.perceive.health import Judge
from mementum.perceive.rated import BANDS_MAX, RECENT, Rated
from mementum.perceive.vitals import VitalSigns
from mementum.records import Diagnosis, Health

CYCLE, TOP = 500, 3e-3


def cosine(step: int) -> float:
    """With warm restarts."""
    return TOP * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step % CYCLE) / CYCLE)))


def course(loss: Callable[[int], float], lr: Callable[[int], float], steps: int) -> list[Diagnosis]:
    signs, detectors, judge = VitalSigns(), Detectors(), Judge()
    told = []
    for step in range(1, steps + 1):
        vitals = signs.observe(step, at_s=float(step), loss=loss(step), lr=lr(step))
        detectors.look(vitals)
        told.append(judge.look(vitals, detectors.signs))
    return told


def annealed(noise: random.Random, of: float = 0.4) -> Callable[[int], float]:
    """A loss that is `of` higher at the top rate than at the lowest, within some 30 steps after a restart."""

    def loss(step: int) -> float:
        place = step % CYCLE
        part = 0.5 * (1 + math.cos(math.pi * place / CYCLE)) * (1 - math.exp(-place / 10))
        return 2.5 + 1.5 * math.exp(-step / 1000) + of * part + 0.03 * noise.gauss(0, 1)

    return loss


def test_warm_restarts_open_nothing(rng: random.Random) -> None:
    told = course(annealed(rng), cosine, 3000)
    assert {one.health for one in told} == {Health.CLEAN}


def test_the_same_without_a_rate_does(rng: random.Random) -> None:
    told = course(annealed(rng), lambda step: TOP, 3000)
    assert Health.DIVERGED in {one.health for one in told}


@pytest.mark.parametrize("times", [1.0, 30.0])
def test_a_loss_above_what_the_rate_gave_before_diverges(rng: random.Random, times: float) -> None:
    """At a restart, and with a rate that was never as high."""
    usual = annealed(rng)
    told = course(
        lambda step: usual(step) + (3.0 if step > 1510 else 0.0),
        lambda step: cosine(step) * (times if step > 1510 else 1.0),
        1700,
    )
    assert told[1505].health is Health.CLEAN
    assert told[-1].health is Health.DIVERGED
    assert told[-1].onset is not None
    assert 1450 <= told[-1].onset <= 1510


def test_the_level_of_a_rate_counts_once_it_was_left_and_the_rate_has_risen() -> None:
    rated = Rated()
    for _ in range(20):
        rated.look(1.0, 5.0, learns=True)
    for _ in range(20):
        rated.look(0.1, 2.0, learns=True)
    assert rated.usual() is None  # it has fallen
    rated.look(1.0, 4.0, learns=True)
    assert rated.usual() == 5.0
    again = Rated()
    again.apply(rated.state())
    assert again.usual() == 5.0
    rated.look(2.0, 4.0, learns=True)
    assert rated.usual() is None  # it was never as high
    for _ in range(RECENT + 1):
        again.look(1.0, 4.0, learns=True)
    assert again.usual() is None  # that is long ago


def test_what_is_not_trusted_teaches_nothing() -> None:
    rated = Rated()
    for lr, loss, learns in ((1.0, 5.0, True), (0.1, 2.0, True), (1.0, 900.0, False), (0.1, 2.0, True)):
        for _ in range(20):
            rated.look(lr, loss, learns=learns)
    rated.look(1.0, None, learns=True)
    assert rated.usual() == 5.0


def test_odd_rates_are_passed_by_and_no_more_bands_kept_than_the_limit() -> None:
    rated = Rated()
    for lr in (None, 0.0, -1.0, math.nan, math.inf):
        rated.look(lr, 1.0, learns=True)
    assert rated.usual() is None
    for octave in range(200):
        for _ in range(5):
            rated.look(2.0**-octave, 1.0, learns=True)
    assert len(rated.state()["levels"]) <= BANDS_MAX
    assert len(rated.state()["seen"]) <= BANDS_MAX
