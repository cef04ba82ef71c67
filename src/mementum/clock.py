"""Time, handed in, so that tests and simulations can own it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for intervals; both in seconds."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...
    def sleep(self, duration_s: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class ManualClock:
    """A clock that moves only when told; `sleep` moves it."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s
        self._monotonic_s = 0.0

    def now(self) -> float:
        return self._now_s

    def monotonic(self) -> float:
        return self._monotonic_s

    def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        self._now_s += duration_s
        self._monotonic_s += duration_s


def unhurried(clock: Clock) -> Callable[[], float]:
    """Seconds since 1970 by which it is judged what is old enough to go: what the wall clock says, but no more than has
    passed since now by the monotonic one. Who sets a clock ahead, or has it set, takes nothing away for good."""
    began_s = clock.now() - clock.monotonic()
    return lambda: min(clock.now(), began_s + clock.monotonic())


def timestamp(now_s: float) -> str:
    """UTC, ISO 8601 with microseconds, as it stands in manifests: 2026-11-30T06:10:09.000000Z."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def day(now_s: float) -> str:
    """UTC day as it stands in folder names: 20261130."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%d")
