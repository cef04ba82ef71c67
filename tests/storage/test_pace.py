"""A pace holds a stream to its rate, with a burst of at most a second's worth."""

from __future__ import annotations

import random

import pytest

from mementum.clock import ManualClock
from mementum.errors import UsageError
from mementum.storage.pace import Pace


def test_no_limit_never_waits():
    clock = ManualClock()
    Pace(None, clock).take(1 << 50)
    assert clock.monotonic() == 0.0


def test_a_second_s_worth_is_there_at_once_and_then_the_rate_holds():
    clock = ManualClock()
    pace = Pace(100.0, clock)
    pace.take(60)
    pace.take(40)
    assert clock.monotonic() == 0.0
    pace.take(50)
    assert clock.monotonic() == pytest.approx(0.5)
    pace.take(1)
    assert clock.monotonic() == pytest.approx(0.51)


def test_what_was_not_used_for_long_is_no_larger_burst():
    clock = ManualClock()
    pace = Pace(100.0, clock)
    clock.advance(3600.0)
    pace.take(100)
    pace.take(100)
    assert clock.monotonic() == pytest.approx(3601.0)


def test_more_than_the_bucket_holds_is_waited_for():
    clock = ManualClock()
    Pace(100.0, clock).take(1000)
    assert clock.monotonic() == pytest.approx(9.0)


def test_at_no_instant_was_more_taken_than_the_rate_and_one_burst():
    clock, choose = ManualClock(), random.Random(7)
    pace, taken = Pace(1000.0, clock), 0
    for _ in range(500):
        clock.advance(choose.choice((0.0, 0.0, 0.01, 2.0)))
        size = choose.randrange(1, 3000)
        pace.take(size)
        taken += size
        assert taken <= 1000.0 * (clock.monotonic() + 1.0) + 1e-3


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, float("nan")])
def test_a_pace_that_is_none_is_refused(bytes_per_s):
    with pytest.raises(UsageError, match="a pace is a number of bytes per second above 0"):
        Pace(bytes_per_s, ManualClock())
