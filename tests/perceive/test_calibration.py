"""What alarms are believed to say follows how often they were right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.perceive.calibration import Calibration, Seen
from mementum.records import Trouble

MEMORY, HARDWARE = Trouble.MEMORY, Trouble.HARDWARE
HORIZON_S, RATE = 120.0, 1 / 30_000


def chance(calibration: Calibration, claimed: float = 0.5, trouble: Trouble = HARDWARE) -> float:
    return calibration.chance(trouble, claimed, horizon_s=HORIZON_S, rate=RATE)


def test_before_any_was_seen_the_claim_counts_less_what_comes_without_an_alarm() -> None:
    assert chance(Calibration()) == pytest.approx(0.5 - 120 / 30_000)
    assert chance(Calibration(), 0.0) == 0.0
    assert chance(Calibration(), 0.001) == 0.0


def test_random_alarms_lose_their_weight_over_attempts_and_right_ones_keep_it() -> None:
    """Attempts of 30,000 s on average; alarms ring every 3000 s, and another trouble always foretells the end."""
    dice, seen = random.Random(5), {HARDWARE: Seen(), MEMORY: Seen()}
    believed = []
    for _ in range(20):
        believed.append((chance(Calibration(seen)), chance(Calibration(seen), trouble=MEMORY)))
        ends_s = dice.expovariate(RATE)
        rings = round(ends_s / 3000)
        right = sum(ends_s - dice.uniform(0.0, ends_s) <= HORIZON_S for _ in range(rings))
        seen[HARDWARE] = Seen(raised=seen[HARDWARE].raised + rings, right=seen[HARDWARE].right + right)
        seen[MEMORY] = Seen(raised=seen[MEMORY].raised + 1, right=seen[MEMORY].right + 1)
    noise, sign = zip(*believed, strict=True)
    assert noise[0] > 0.49
    assert noise[-1] < 0.03
    assert sign[-1] > 0.8
    assert list(sign) == sorted(sign)


def test_an_alarm_of_this_attempt_was_wrong_once_its_horizon_has_passed() -> None:
    calibration = Calibration()
    first = chance(calibration)
    calibration.raised(HARDWARE, 0.5, at_s=100.0, horizon_s=HORIZON_S)
    calibration.passed(220.0)
    assert chance(calibration) == first
    calibration.passed(220.1)
    assert chance(calibration) == pytest.approx(0.5 * 4 / 5 - HORIZON_S * RATE)
    assert chance(calibration, trouble=MEMORY) == first
    calibration.passed(1e6)
    assert chance(calibration) == pytest.approx(0.5 * 4 / 5 - HORIZON_S * RATE)


def test_alarms_that_follow_one_another_are_one_warning() -> None:
    calibration = Calibration()
    for at_s, claimed in ((0.0, 0.01), (100.0, 0.1), (200.0, 0.5), (300.0, 0.9)):
        calibration.passed(at_s)
        calibration.raised(HARDWARE, claimed, at_s=at_s, horizon_s=HORIZON_S)
    calibration.passed(1000.0)
    assert chance(calibration) == pytest.approx(0.5 * 4 / 5 - HORIZON_S * RATE)


def test_an_alarm_that_rings_all_the_time_is_wrong_once_in_a_horizon() -> None:
    calibration = Calibration()
    for at_s in range(1000):
        calibration.passed(float(at_s))
        calibration.raised(HARDWARE, 0.5, at_s=float(at_s), horizon_s=HORIZON_S)
    assert chance(calibration) == pytest.approx(0.5 * 4 / (4 + 8) - HORIZON_S * RATE)


@given(st.floats(), st.floats(), st.floats(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_chance_is_always_one(claimed: float, horizon_s: float, rate: float, wrong: int, right: int) -> None:
    calibration = Calibration({HARDWARE: Seen(raised=wrong + right, right=right)})
    found = calibration.chance(HARDWARE, claimed, horizon_s=horizon_s, rate=rate)
    assert 0.0 <= found <= 1.0
