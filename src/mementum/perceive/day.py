"""A day's budget: what was taken of it within the last 24 hours."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

ALARM_SHARE = 0.5  # of a budget, that saves asked for by alarms may take: false alarms must leave the plain interval
DAY_S = 86400.0
PARTS = 144  # of a day, by which spent bytes are counted: each is forgotten up to ten minutes late, never early
ALARM, TOLERANCE = "alarm", "tolerance"  # causes of saves that are counted apart


class Day:
    """What was taken within the last 24 hours, counted by parts of a day. A part is forgotten a day after the newest
    in it, so that no 24 hours, whenever they begin, see more than the limit. Any thread may call it."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        # First and newest wall time; the amount, what of it was for alarms, and what was not for the tolerance.
        self._parts: list[list[float]] = []

    def take(self, now_s: float, amount: float, cause: str) -> None:
        if amount <= 0:
            return
        with self._lock:
            if self._parts:
                now_s = max(now_s, self._parts[-1][1])  # a wall clock may be set back
            if not self._parts or now_s - self._parts[-1][0] >= DAY_S / PARTS:
                self._parts.append([now_s, now_s, 0.0, 0.0, 0.0])
            part = self._parts[-1]
            part[1] = now_s
            part[2] += amount
            part[3] += amount if cause == ALARM else 0.0
            part[4] += amount if cause != TOLERANCE else 0.0

    def left(self, now_s: float) -> tuple[float, float, float]:
        """For any save, and for one that an alarm asks for; and what all but the tolerance's have taken."""
        with self._lock:
            parts = self._parts = [part for part in self._parts if now_s - part[1] < DAY_S]
            spent, for_alarms, others = (math.fsum(part[place] for part in parts) for place in (2, 3, 4))
        left = self.limit - spent
        return left, min(left, ALARM_SHARE * self.limit - for_alarms), others

    def state(self) -> list[list[float]]:
        with self._lock:
            return [list(part) for part in self._parts]

    def apply(self, state: Sequence[Sequence[float]]) -> None:
        """Take up what was counted up to some moment; what is known of the time after it stays."""
        counted = [[*map(float, part)] for part in state]
        until_s = max((part[1] for part in counted), default=-math.inf)
        with self._lock:
            self._parts = sorted([*counted, *(part for part in self._parts if part[0] > until_s)])
