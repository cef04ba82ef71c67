"""Expected seconds lost, counted from the taking of the newest durable state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.perceive.exposure import IN_FLIGHT_MAX, Exposure
from mementum.records import Reach

RATES = {Reach.PROCESS: 0.02, Reach.REBOOT: 0.004}


def test_a_constant_rate_gives_young_s_interval() -> None:
    exposure = Exposure()
    cost, interval = 8.0, math.sqrt(2 * 8.0 / 0.004)
    exposure.advance(interval / 3, 1, RATES)
    exposure.advance(interval, 2, RATES)
    assert exposure.seconds(Reach.REBOOT) == pytest.approx(cost)
    assert exposure.seconds(Reach.MACHINE) == 0.0
    assert (exposure.since_s(Reach.REBOOT), exposure.since_steps(Reach.REBOOT)) == (interval, 2)


def test_a_save_in_flight_does_not_count_and_then_counts_from_its_taking() -> None:
    exposure = Exposure()
    exposure.advance(100, 10, RATES)
    taken_s = exposure.begun(Reach.REBOOT)
    exposure.advance(130, 13, RATES)
    assert exposure.in_flight(Reach.REBOOT)
    assert exposure.seconds(Reach.REBOOT) == pytest.approx(0.004 * 130**2 / 2)
    exposure.durable(Reach.REBOOT, taken_s)
    assert not exposure.in_flight(Reach.REBOOT)
    assert exposure.seconds(Reach.REBOOT) == pytest.approx(0.004 * 30**2 / 2)
    assert exposure.seconds(Reach.PROCESS) == pytest.approx(0.02 * 30**2 / 2)
    assert (exposure.since_s(Reach.PROCESS), exposure.since_steps(Reach.PROCESS)) == (30, 3)


def test_a_nearer_save_does_not_serve_a_farther_loss() -> None:
    exposure = Exposure()
    exposure.advance(100, 10, RATES)
    exposure.durable(Reach.PROCESS, exposure.begun(Reach.PROCESS))
    assert (exposure.since_s(Reach.PROCESS), exposure.since_s(Reach.REBOOT)) == (0, 100)


def test_saves_may_end_in_any_order_or_fail() -> None:
    exposure = Exposure()
    taken = []
    for at_s in (10, 20, 30):
        exposure.advance(at_s, at_s, RATES)
        taken.append(exposure.begun(Reach.REBOOT))
    exposure.advance(40, 40, RATES)
    exposure.failed(Reach.REBOOT, taken[2])
    exposure.durable(Reach.REBOOT, taken[1])
    exposure.durable(Reach.REBOOT, taken[0])
    assert exposure.since_s(Reach.REBOOT) == 20
    assert not exposure.in_flight(Reach.REBOOT)


def test_many_saves_that_never_end_are_bounded() -> None:
    exposure = Exposure()
    for at_s in range(100):
        exposure.advance(at_s, at_s, RATES)
        exposure.begun(Reach.PROCESS)
    exposure.durable(Reach.PROCESS, 99 - IN_FLIGHT_MAX)
    assert exposure.since_s(Reach.PROCESS) == 99
    exposure.durable(Reach.PROCESS, 100 - IN_FLIGHT_MAX)
    assert exposure.since_s(Reach.PROCESS) == IN_FLIGHT_MAX - 1


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e-2)), min_size=2, max_size=30), st.data())
def test_it_is_the_integral(pieces: list[tuple[float, float]], data: st.DataObject) -> None:
    """Against the sum over pieces of constant rate, with a save taken at any of them."""
    cut = data.draw(st.integers(0, len(pieces) - 1))
    exposure, at_s, expected, last_s = Exposure(), 0.0, 0.0, 0.0
    for step, (duration_s, rate) in enumerate(pieces):
        exposure.advance(at_s + duration_s, step, {Reach.REBOOT: rate})
        expected += rate * ((at_s + duration_s - last_s) ** 2 - (at_s - last_s) ** 2) / 2
        at_s += duration_s
        if step == cut:
            exposure.durable(Reach.REBOOT, exposure.begun(Reach.REBOOT))
            expected, last_s = 0.0, at_s
    assert exposure.seconds(Reach.REBOOT) == pytest.approx(expected, rel=1e-6, abs=1e-4)
