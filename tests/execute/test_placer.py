"""One thread a tier: one copy in work, one that waits, and a newer one takes its place."""

from __future__ import annotations

import threading

from mementum.events import Event, Failed
from mementum.execute.behind import STOPPED
from mementum.execute.compress import Pause
from mementum.execute.placer import PlaceJob, Placer

WAIT_S = 10.0  # only a broken test waits so long


class Work:
    """Jobs that begin when they are told to, and what they were told."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.done: list[int] = []
        self.why: str | None = None
        self.events: list[Event] = []
        self.placer = Placer(emit=self.events.append)

    def job(self, step: int, *, waits: bool = False) -> PlaceJob:
        def work(pause: Pause) -> None:
            if waits:
                self.begun.set()
                assert self.let.wait(WAIT_S)
            self.why = pause()
            self.done.append(step)

        return PlaceJob(what=f"placing {step}", id=f"c{step}", step=step, work=work)


def test_a_newer_one_takes_the_place_of_the_one_that_waits() -> None:
    work = Work()
    assert work.placer.offer(work.job(1, waits=True)) is None
    assert work.begun.wait(WAIT_S)
    assert work.placer.offer(work.job(2)) is None
    replaced = work.placer.offer(work.job(3))
    assert replaced is not None
    assert replaced.step == 2
    assert [job.step for job in work.placer.pending] == [1, 3]
    assert not work.placer.drain(0.01)
    work.let.set()
    assert work.placer.drain(WAIT_S)
    assert (work.done, work.placer.pending) == ([1, 3], ())
    assert work.placer.stop(WAIT_S)


def test_what_is_in_work_is_told_to_stop_and_nothing_begins_after_it() -> None:
    work = Work()
    work.placer.offer(work.job(1, waits=True))
    assert work.begun.wait(WAIT_S)
    work.placer.offer(work.job(2))
    assert [job.step for job in work.placer.cancel()] == [1, 2]
    late = work.job(3)
    assert work.placer.offer(late) is late
    work.let.set()
    assert work.placer.stop(WAIT_S)
    assert (work.done, work.why) == ([1], STOPPED)
    assert work.placer.stop(WAIT_S)


def test_a_fault_is_counted_and_told_and_the_thread_goes_on() -> None:
    work = Work()

    def broken(pause: Pause) -> None:
        raise ValueError("a fault of ours")

    work.placer.offer(PlaceJob(what="placing c1", id="c1", step=1, work=broken))
    assert work.placer.drain(WAIT_S)
    work.placer.offer(work.job(2))
    assert work.placer.drain(WAIT_S)
    assert (work.placer.failures, work.done) == (1, [2])
    assert work.events == [
        Failed(what="placing c1", error="ValueError('a fault of ours')", kept="the checkpoint in the root")
    ]
    work.placer.stop(WAIT_S)


def test_a_placer_without_jobs_has_no_thread() -> None:
    work = Work()
    assert work.placer.drain(0.0)
    assert work.placer.stop(0.0)
    assert not any(thread.name == "mementum-place" for thread in threading.enumerate())
