"""Behind: one thread that does work on checkpoints while the training goes on, always the newest that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from mementum.events import Emit, Failed
from mementum.execute.compress import Pause

STOPPED = "the run ends"


class Job(Protocol):
    """Work on a checkpoint. `work` calls what it is given between blocks, and stops where that has a reason."""

    @property
    def what(self) -> str: ...

    @property
    def work(self) -> Callable[[Pause], object]: ...


J = TypeVar("J", bound=Job)


class Behind(Generic[J]):
    """At most one job in work and one waiting; a newer one takes the place of the waiting one. The thread begins with
    the first job."""

    def __init__(self, name: str, *, lower: Callable[[], object], kept: str, emit: Emit) -> None:
        """`lower` gives the thread its priority; `kept`: what stays where a job fails."""
        self.failures = 0
        self._name, self._lower, self._kept, self._emit = name, lower, kept, emit
        self._changed = threading.Condition()
        self._waiting: J | None = None
        self._working: J | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def offer(self, job: J) -> J | None:
        """Queue a job; the one whose place it took. After `stop` nothing is queued, and the job comes back."""
        with self._changed:
            if self._stopping:
                return job
            replaced, self._waiting = self._waiting, job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return replaced

    @property
    def pending(self) -> tuple[J, ...]:
        """What is in work, and what waits."""
        with self._changed:
            return tuple(job for job in (self._working, self._waiting) if job is not None)

    @property
    def stopping(self) -> bool:
        return self._stopping

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in work; False if that took longer than `timeout_s`."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._working is None and self._waiting is None, timeout_s)

    def cancel(self) -> tuple[J, ...]:
        """Let nothing begin any more, and what is in work stop at the next block; what does not get done."""
        with self._changed:
            left = tuple(job for job in (self._working, self._waiting) if job is not None)
            self._stopping, self._waiting = True, None
            self._changed.notify_all()
            return left

    def stop(self, timeout_s: float) -> bool:
        """End the thread at the next block; False if it is still at work after `timeout_s`. Twice is once."""
        self.cancel()
        if self._thread is None or threading.current_thread() is self._thread:
            return self._thread is None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _pause(self) -> str | None:
        return STOPPED if self._stopping else None

    def _run(self) -> None:
        self._lower()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting is not None)
                if self._waiting is None:
                    return
                job, self._waiting = self._waiting, None
                self._working = job
            try:
                job.work(self._pause)
            except (Exception, SystemExit) as error:  # the thread's end: counted and told; the run goes on
                self.failures += 1
                self._emit(Failed(what=job.what, error=repr(error), kept=self._kept))
            finally:
                with self._changed:
                    self._working = None
                    self._changed.notify_all()
