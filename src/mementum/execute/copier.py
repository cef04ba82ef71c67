"""The copier: one thread that copies beside the training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Copier:
    """One thread that copies, and then does what must follow the copy, in the order in which it was asked to."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._pending = 0

    def submit(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="mementum-copy", daemon=True)
            thread.start()
            self._thread = thread
        with self._changed:
            self._pending += 1
        self._work.put(work)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was submitted is done; False if that takes longer."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, timeout_s)

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # the thread's border: the next copy needs it
                self._failed(repr(error))
            del work  # what it holds is the state: not kept until the next
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()
