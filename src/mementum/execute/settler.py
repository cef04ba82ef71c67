"""The settler: one thread that compresses checkpoints when the processor has nothing else to do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mementum.events import Emit, Failed
from mementum.execute import priority
from mementum.execute.compress import Pause
from mementum.records import record

STOPPED = "the run ends"


@record
class SettleJob:
    """A checkpoint to compress. `work` calls what it is given between blocks, and stops where that has a reason."""

    what: str
    work: Callable[[Pause], object]


class Settler:
    """At most one checkpoint in work and one waiting; a newer one takes the place of the waiting one, which stays raw.

    Whoever removes or sweeps checkpoints of the task holds `turn` meanwhile. The thread begins with the first job."""

    def __init__(self, *, emit: Emit) -> None:
        self.turn = threading.Lock()
        self.failures = 0
        self._emit = emit
        self._changed = threading.Condition()
        self._waiting: SettleJob | None = None
        self._busy = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def offer(self, job: SettleJob) -> None:
        """Queue a checkpoint. After `stop` nothing is queued."""
        with self._changed:
            if self._stopping:
                return
            self._waiting = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mementum-settle", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in work; False if that took longer than `timeout_s`."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and self._waiting is None, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """End the thread at the next block; False if it is still at work after `timeout_s`. Twice is once."""
        with self._changed:
            self._stopping, self._waiting = True, None
            self._changed.notify_all()
        if self._thread is None or threading.current_thread() is self._thread:
            return self._thread is None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _pause(self) -> str | None:
        return STOPPED if self._stopping else None

    def _run(self) -> None:
        priority.idle()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting is not None)
                if self._waiting is None:
                    return
                job, self._waiting = self._waiting, None
                self._busy = True
            try:
                job.work(self._pause)
            except (Exception, SystemExit) as error:  # the thread's end: counted and told; the run goes on
                self.failures += 1
                self._emit(Failed(what=job.what, error=repr(error), kept="the checkpoint, as it is"))
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
