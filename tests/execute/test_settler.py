"""The settler works on one checkpoint at a time, on a thread of its own that training never waits for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from mementum.events import Event, Failed
from mementum.execute.behind import STOPPED
from mementum.execute.compress import Pause
from mementum.execute.settler import SettleJob, Settler

WAIT_S = 60.0


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settler(events: list[Event]) -> Iterator[Settler]:
    made = Settler(emit=events.append)
    yield made
    assert made.stop(WAIT_S)


def job(work: Callable[[Pause], object], what: str = "compressing c1") -> SettleJob:
    return SettleJob(what=what, work=work)


class Held:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.reason: str | None = None

    def __call__(self, pause: Pause) -> None:
        self.begun.set()
        assert self.go.wait(WAIT_S)
        self.reason = pause()


def test_without_a_job_there_is_no_thread(settler: Settler) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "mementum-settle"]
    assert settler.drain(0)


def test_a_job_is_done_on_the_thread(settler: Settler) -> None:
    seen: list[str] = []
    for number in range(3):
        settler.offer(job(lambda pause, number=number: seen.append(f"{number} {threading.current_thread().name}")))
        assert settler.drain(WAIT_S)
    assert seen == [f"{number} mementum-settle" for number in range(3)]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux")
def test_the_thread_runs_only_where_a_core_is_idle(settler: Settler) -> None:
    policies: list[int] = []
    settler.offer(job(lambda pause: policies.append(os.sched_getscheduler(0))))
    assert settler.drain(WAIT_S)
    assert policies == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) != os.SCHED_IDLE


def test_the_newest_waits(settler: Settler) -> None:
    held, seen = Held(), list[int]()
    settler.offer(job(held))
    assert held.begun.wait(WAIT_S)
    assert not settler.drain(0)
    for number in range(5):
        settler.offer(job(lambda pause, number=number: seen.append(number)))
    held.go.set()
    assert settler.drain(WAIT_S)
    assert seen == [4]
    assert held.reason is None


def test_a_stop_ends_what_is_in_work_and_drops_what_waits(settler: Settler) -> None:
    held, seen = Held(), list[int]()
    settler.offer(job(held))
    assert held.begun.wait(WAIT_S)
    settler.offer(job(lambda pause: seen.append(1)))
    assert not settler.stop(0)
    held.go.set()
    assert settler.stop(WAIT_S)
    settler.offer(job(lambda pause: seen.append(2)))
    assert settler.drain(0)
    assert (held.reason, seen) == (STOPPED, [])
    assert settler.stop(0)


def test_whoever_is_on_the_thread_does_not_wait_for_itself(settler: Settler) -> None:
    answers: list[bool] = []

    def listener(pause: Pause) -> None:
        answers.append(settler.drain(WAIT_S))

    settler.offer(job(listener))
    assert settler.drain(WAIT_S)
    assert answers == [False]


@pytest.mark.parametrize("error", [ValueError("planted"), SystemExit(3), MemoryError()])
def test_an_error_is_told_and_the_thread_lives_on(settler: Settler, events: list[Event], error: BaseException) -> None:
    def fails(pause: Pause) -> None:
        raise error

    seen: list[int] = []
    settler.offer(job(fails, "compressing c7"))
    assert settler.drain(WAIT_S)
    settler.offer(job(lambda pause: seen.append(1)))
    assert settler.drain(WAIT_S)
    assert events == [Failed(what="compressing c7", error=repr(error), kept="the checkpoint, as it is")]
    assert (settler.failures, seen) == (1, [1])
