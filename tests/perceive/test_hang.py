"""The watch over silence: when it tells, when it does not, and that it leaves the training alone."""

from __future__ import annotations

import os
import queue
import threading

import pytest

from mementum.clock import ManualClock
from mementum.perceive.hang import STOOD_STILL_S, Watch
from mementum.records import Alarm, Trouble

MINUTE_S = 60.0


class Bench:
    """A watch whose thread is this test: it wakes up when told, at the time that it asked for."""

    def __init__(self, **settings: float) -> None:
        self.alarms: list[Alarm] = []
        self.clock = ManualClock()
        self.began = threading.Event()
        self.watch = Watch(self.alarms.append, clock=self.clock, waiter=self._wait, **settings)

    def _wait(self, stop: threading.Event, timeout_s: float) -> bool:
        self.began.set()
        return stop.wait()  # the thread sleeps until the end: the test looks in its place

    def beat(self, step: int, step_s: float | None) -> None:
        self.watch.beat(step, step_s)
        assert self.began.wait(10.0)

    def live(self, duration_s: float) -> None:
        """Let time go by and look as often as the thread would."""
        end_s = self.clock.monotonic() + duration_s
        while (wait_s := self.watch.check()) <= end_s - self.clock.monotonic():
            self.clock.advance(wait_s)
        self.clock.advance(end_s - self.clock.monotonic())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_five_minutes_of_silence_are_told_once(bench: Bench) -> None:
    bench.beat(7, 0.5)
    bench.live(299.0)
    assert bench.alarms == []
    bench.live(5 * MINUTE_S)
    (alarm,) = bench.alarms
    assert (alarm.trouble, alarm.step, alarm.value, alarm.limit) == (Trouble.HANG, 7, 300.0, 300.0)
    assert alarm.text == "no step has ended for 300 s since step 7: a hang, or a long evaluation"
    bench.live(600 * MINUTE_S)
    assert len(bench.alarms) == 1
    bench.watch.close()


def test_a_step_ends_the_episode(bench: Bench) -> None:
    bench.beat(7, None)
    bench.live(10 * MINUTE_S)
    bench.beat(8, None)
    bench.live(20 * MINUTE_S)
    assert [alarm.step for alarm in bench.alarms] == [7, 8]
    bench.watch.close()


def test_long_steps_have_a_long_patience(bench: Bench) -> None:
    bench.beat(1, 105.0)
    bench.live(2099.0)
    assert bench.alarms == []
    bench.live(MINUTE_S * 40)
    assert [alarm.limit for alarm in bench.alarms] == [2100.0]
    bench.watch.close()


def test_steps_that_end_are_never_told(bench: Bench) -> None:
    for step in range(100):
        bench.beat(step, 30.0)
        bench.live(500.0)
    assert bench.alarms == []
    bench.watch.close()


def test_a_process_that_was_stopped_has_not_hung(bench: Bench) -> None:
    bench.beat(1, 1.0)
    wait_s = bench.watch.check()
    bench.clock.advance(wait_s + STOOD_STILL_S + 3600.0)  # the thread was stopped too, and comes an hour late
    bench.live(290.0)
    assert bench.alarms == []
    bench.live(20.0)
    bench.watch.check()
    assert [alarm.value for alarm in bench.alarms] == [300.0]
    bench.watch.close()


def test_there_is_no_thread_before_the_first_step_and_none_after_close() -> None:
    def watching() -> bool:
        return any(thread.name == "mementum-watch" for thread in threading.enumerate())

    bench = Bench()
    assert not watching()
    bench.beat(1, 1.0)
    assert watching()
    bench.watch.close()
    bench.watch.close()
    assert not watching()
    bench.watch.beat(2, 1.0)
    assert not watching()


def test_its_own_thread_tells() -> None:
    clock, told = ManualClock(), queue.Queue[Alarm]()

    def waiter(stop: threading.Event, timeout_s: float) -> bool:
        clock.advance(timeout_s)
        return stop.wait(0.001)

    watch = Watch(told.put, clock=clock, waiter=waiter, factor=2.0, floor_s=1.0)
    watch.beat(3, 5.0)
    assert told.get(timeout=10.0).limit == 10.0
    watch.close()
    assert told.empty()


def test_by_default_it_waits_for_the_end_in_real_time() -> None:
    watch = Watch(lambda alarm: None, clock=ManualClock())
    watch.beat(1, 1.0)
    watch.close()  # joins: it would take 300 s if the end did not wake it up
    assert not any(thread.name == "mementum-watch" for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_does_nothing() -> None:
    bench = Bench()
    child = os.fork()
    if child == 0:  # in the child a failed assertion must not run the rest of the tests
        bench.watch.beat(1, 1.0)
        bench.watch.close()
        os._exit(0 if threading.active_count() == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    bench.beat(1, 1.0)  # the parent's still works
    bench.watch.close()
