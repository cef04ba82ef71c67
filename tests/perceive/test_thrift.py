"""Tests that looks take no more than their part of the time."""

from __future__ import annotations

import pytest

from mementum.clock import ManualClock
from mementum.perceive.thrift import CHARGED_MAX, LEAST_S, SHARE, Thrift


def looks(step_s: float, look_s: float, count: int) -> list[bool]:
    clock = ManualClock()
    thrift, looked = Thrift(clock), []
    for _ in range(count):
        clock.advance(step_s)
        looked.append(thrift.begin())
        if looked[-1]:
            clock.advance(look_s)
            thrift.end()
    return looked


def test_what_is_cheap_for_its_step_is_done_at_every_one() -> None:
    assert all(looks(0.5, 0.9 * SHARE * 0.5, 100))


@pytest.mark.parametrize(("step_s", "look_s"), [(0.004, 0.0007), (0.02, 0.0012), (0.5, 0.003)])
def test_what_is_dear_is_done_as_often_as_its_part_of_the_time_allows(step_s: float, look_s: float) -> None:
    looked = looks(step_s, look_s, 2000)
    allowed_s = max(LEAST_S, SHARE * step_s)
    assert sum(looked) * look_s <= 1.05 * 2000 * allowed_s
    assert sum(looked) * look_s >= 0.8 * 2000 * allowed_s


def test_a_look_that_was_held_up_keeps_away_a_few_only() -> None:
    looked = looks(0.01, 5.0, 1000)
    assert sum(looked) == pytest.approx(1000 / CHARGED_MAX, rel=0.2)
