"""A limit to how many bytes a second are moved in the background, so that they do not crowd out what matters more."""

from __future__ import annotations

import threading

from mementum.clock import Clock
from mementum.errors import UsageError

BURST_S = 1.0  # what was not used for this long is made up for at full speed: enough for one stall of a disk


class Pace:
    """A bucket that fills with `bytes_per_s`, up to what comes in a second; None is no limit. Threads may share it."""

    def __init__(self, bytes_per_s: float | None, clock: Clock) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise UsageError(f"a pace is a number of bytes per second above 0, or none; got {bytes_per_s!r}")
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._turn = threading.Lock()
        self._filled_s = clock.monotonic()
        self._bytes = 0.0 if bytes_per_s is None else bytes_per_s * BURST_S  # below 0: taken in advance

    def take(self, n_bytes: int) -> None:
        """Return when so many bytes may be moved. More than the bucket holds is taken in advance and waited for."""
        if self._bytes_per_s is None:
            return
        with self._turn:  # the sleep is outside: the next one only waits the longer
            now = self._clock.monotonic()
            filled = self._bytes + (now - self._filled_s) * self._bytes_per_s
            self._bytes = min(filled, self._bytes_per_s * BURST_S) - n_bytes
            self._filled_s = now
            wait_s = -self._bytes / self._bytes_per_s
        if wait_s > 0:
            self._clock.sleep(wait_s)
