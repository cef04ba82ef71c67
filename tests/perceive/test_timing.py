"""Tests of the durations of steps; those of a device need one."""

from __future__ import annotations

import pytest
import torch

from mementum.clock import ManualClock
from mementum.perceive.timing import StepTimes

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def test_a_step_lasts_from_one_tick_to_the_next() -> None:
    clock = ManualClock()
    times = StepTimes(clock)
    assert times.tick() is None
    assert times.median_s() is None
    seen = []
    for duration_s in (1.0, 2.0, 9.0):
        clock.advance(duration_s)
        seen.append(times.tick())
    assert seen == [1.0, 2.0, 9.0]
    assert times.median_s() == 2.0


def test_the_median_comes_back() -> None:
    clock = ManualClock()
    times, again = StepTimes(clock, window=3), StepTimes(clock, window=3)
    for duration_s in (0.0, 5.0, 1.0, 2.0, 3.0):
        clock.advance(duration_s)
        times.tick()
    again.apply(times.state())
    assert again.median_s() == times.median_s() == 2.0
    assert again.tick() is None


def test_a_device_without_events_is_timed_by_the_clock() -> None:
    clock = ManualClock()
    times = StepTimes(clock, device=torch.device("cpu"))
    times.tick()
    clock.advance(0.25)
    assert times.tick() == 0.25


@needs_gpu
def test_a_device_times_its_own_work_and_nobody_waits() -> None:
    times = StepTimes(ManualClock(), device=torch.device("cuda"))
    a = torch.ones(1000, 1000, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            times.tick()
            a @ a
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert (times.tick() or 0.0) > 0.0  # the clock handed in stands still
    assert (times.median_s() or 0.0) > 0.0
