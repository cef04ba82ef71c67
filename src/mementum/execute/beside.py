"""A call beside the caller: on a thread of its own, with its outcome for whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from mementum.execute import priority

T = TypeVar("T")


class Beside(Generic[T]):
    """A call that is under way. Where no thread can be had (too many, or the process is ending), it is made at once.

    The thread has the priority of the one that started it, or the lower one of `nice`. It ends with the process: a disk
    that never answers must not keep a training from its end."""

    def __init__(self, call: Callable[[], T], *, name: str, nice: int = 0) -> None:
        self._call, self._nice = call, nice
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_apart, name=name, daemon=True)
        try:
            self._thread.start()
            self._started = True
        except RuntimeError:
            self._started = False
            self._run()

    def wait(self) -> None:
        if self._started:
            self._thread.join()

    def outcome(self) -> T:
        """Wait for the end; what the call has returned, or raise what it has raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run_apart(self) -> None:
        if self._nice:
            priority.lower(self._nice)
        self._run()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # a thread's end: kept, and raised where the outcome is asked for
            self._error = error
