"""The parts of a large object, handed to the client that sends them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mementum.storage.store import Buffer

AHEAD = 2  # chunks that wait for the client: one while it takes the other


class GivenUp(Exception):
    """What the client finds in place of the next part; it then takes back what it has sent."""


def upload(send: Callable[[Iterator[Buffer]], object], parts: Iterator[Buffer]) -> None:
    """Let `send` have all `parts`. What it raises is raised here; what `parts` raises too, after `send` has given up.

    `parts` is run on the caller's thread, and `send` on one of its own. The client must not be called from inside of
    itself, and a part may come from another store of the same client, or from a device.
    """
    line = _Line()
    with ThreadPoolExecutor(1, "mementum-upload") as threads:
        sending = threads.submit(send, iter(line))
        sending.add_done_callback(lambda _: line.leave())
        try:
            for part in parts:
                if not line.give(part):
                    break
        except BaseException:
            line.end(whole=False)
            with contextlib.suppress(GivenUp):
                sending.result()
            raise
        line.end(whole=True)
        sending.result()


class _Line:
    """Parts that wait for the one who takes them."""

    def __init__(self) -> None:
        self._waiting: deque[Buffer] = deque()
        self._changed = threading.Condition()
        self._ended: bool | None = None  # whether whole
        self._left = False

    def give(self, part: Buffer) -> bool:
        """False: nobody takes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._waiting) < AHEAD)
            self._waiting.append(part)
            self._changed.notify_all()
            return not self._left

    def end(self, *, whole: bool) -> None:
        with self._changed:
            self._ended = whole
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Buffer]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended is not None)
                if self._ended is False:
                    raise GivenUp
                if not self._waiting:
                    return
                part = self._waiting.popleft()
                self._changed.notify_all()
            yield part
