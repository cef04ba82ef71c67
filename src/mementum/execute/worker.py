"""The worker: one thread that saves and writes facts, behind a queue that never makes training wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from mementum.events import Emit, Failed
from mementum.records import Granularity, Save, record

ONCE_ONLY = frozenset({"asked", "notice", "end", "epoch", "event"})  # causes: the next interval comes, no such moment
FACTS_MAX = 10_000  # facts waiting to be written; a disk that is this far behind will not catch up


@record
class SaveJob:
    """A save to do. `cancel` is called instead of `work` when a newer one takes its place, which one of a lower `rank`
    never does."""

    what: str
    work: Callable[[], None]
    cancel: Callable[[], None]
    rank: int = 0
    id: str = ""


def rank_of(save: Save) -> int:
    """Which of two saves is kept where only one can be: what is exact before what is not, what will not come again by
    itself before what will."""
    if save.granularity is not Granularity.FULL:
        return 0
    return 2 if save.cause in ONCE_ONLY else 1


class Worker:
    """At most one save in flight and one waiting; a newer save takes the place of the waiting one."""

    def __init__(self, *, emit: Emit) -> None:
        self._emit = emit
        self._changed = threading.Condition()
        self._next: SaveJob | None = None  # in flight: the thread turns to it as soon as it can
        self._waiting: SaveJob | None = None
        self._kept: deque[SaveJob] = deque()  # each holds a slot, so that there are never more than those
        self._facts: deque[Callable[[], None]] = deque()
        self._doing = ""
        self._busy = False
        self._saving = False
        self._closing = False
        self.failures = 0
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mementum-worker", daemon=True)
        self._thread.start()

    @property
    def saves_in_flight(self) -> int:
        with self._changed:
            return int(self._in_flight()) + len(self._kept) + int(self._waiting is not None)

    def submit(self, job: SaveJob) -> None:
        """Queue a save. The one that waits, if any, is cancelled; if it is of a higher rank, this one is."""
        with self._changed:
            if not self._in_flight():
                self._next = job
                self._changed.notify_all()
                return
            replaced: SaveJob | None = job
            if self._waiting is None or self._waiting.rank <= job.rank:
                replaced, self._waiting = self._waiting, job
            self._changed.notify_all()
        if replaced is not None:
            replaced.cancel()

    def keep(self, job: SaveJob) -> None:
        """Queue a save that is done before the one that waits; no other takes its place, and it takes nobody's."""
        with self._changed:
            if self._in_flight():
                self._kept.append(job)
            else:
                self._next = job
            self._changed.notify_all()

    def keep_waiting(self, id: str) -> None:
        """From now on no other save takes the place of the waiting one, if it is the one with this id."""
        with self._changed:
            if self._waiting is not None and self._waiting.id == id:
                self._kept.append(self._waiting)
                self._waiting = None

    def cancel_waiting(self, rank: int = 0) -> bool:
        """Take back the save that waits, so that its memory is free; False if none waits, or one of a higher rank."""
        with self._changed:
            if self._waiting is None or self._waiting.rank > rank:
                return False
            replaced, self._waiting = self._waiting, None
            self._changed.notify_all()
        replaced.cancel()
        return True

    def submit_fact(self, work: Callable[[], None]) -> bool:
        """Queue a small piece of work; False if the queue is full."""
        with self._changed:
            if len(self._facts) >= FACTS_MAX:
                return False
            self._facts.append(work)
            self._changed.notify_all()
            return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in flight; False if that took longer than `timeout_s`, or if it is this very
        thread that waits (a listener), which would wait for itself."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued and end the thread; False if it is still at work after `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _in_flight(self) -> bool:
        return self._saving or self._next is not None

    def _idle(self) -> bool:
        return not (self._busy or self._next or self._kept or self._waiting or self._facts)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next is not None or bool(self._facts))
                if self._idle() and self._closing:
                    return
                work = self._take()
                self._busy = True
            try:
                work()
            except (Exception, SystemExit) as error:  # the thread's end: kept, counted, told; the run goes on
                self.failures += 1
                self.failure = error if isinstance(error, Exception) else SystemError(repr(error))
                self._emit(Failed(what=self._doing, error=repr(error), kept="older checkpoints"))
            finally:
                with self._changed:
                    if self._saving and self._kept:
                        self._next = self._kept.popleft()
                    elif self._saving:
                        self._next, self._waiting = self._waiting, None
                    self._busy = self._saving = False
                    self._changed.notify_all()

    def _take(self) -> Callable[[], None]:
        if self._facts:  # small, and some say what the next save should know
            self._doing = "writing a fact"
            return self._facts.popleft()
        assert self._next is not None
        job, self._next = self._next, None
        self._saving, self._doing = True, job.what
        return job.work
