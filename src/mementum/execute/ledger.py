"""The ledger: what every save costs the training, from the steps themselves.

A step beside which a save works is compared with the median of those beside which none does. What it takes longer is
lost to the save, as far as the save was at work in it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from mementum.events import Cost

STEPS_MAX = 64  # of the newest steps without a save: enough for a median, and it follows a run whose steps change
STEPS_MIN = 5  # before that no median is worth its name


class Active:
    """A save at work."""

    def __init__(self, id: str, began_s: float) -> None:
        self.id, self.began_s = id, began_s
        self.ended_s: float | None = None
        self.cost: Cost | None = None  # none if nothing came of it
        self.lost_s = 0.0
        self.measured = True


class Ledger:
    """Told of steps by the training's thread, and of saves by both."""

    def __init__(self, settle: Callable[[Cost], None]) -> None:
        self._settle = settle
        self._lock = threading.Lock()
        self._plain: deque[float] = deque(maxlen=STEPS_MAX)
        self._active: list[Active] = []
        self._before_s: float | None = None

    def begun(self, id: str, now_s: float) -> None:
        """A save begins."""
        with self._lock:
            self._active.append(Active(id, now_s))

    def ended(self, id: str, now_s: float, cost: Cost | None) -> None:
        """A save is durable, or nothing came of it (None)."""
        with self._lock:
            for one in self._active:
                if one.id == id:
                    one.ended_s, one.cost = now_s, cost

    def stepped(self, now_s: float) -> None:
        """A step of the training has ended."""
        with self._lock:
            before_s, self._before_s = self._before_s, now_s
            if before_s is None:
                for one in self._active:
                    one.measured = False
                return
            duration_s = now_s - before_s
            if not self._active:
                self._plain.append(duration_s)
                return
            excess_s = duration_s - median(self._plain) if len(self._plain) >= STEPS_MIN else None
            for one in self._active:
                if excess_s is None:
                    one.measured = False
                    continue
                until_s = now_s if one.ended_s is None else min(now_s, one.ended_s)
                worked_s = max(0.0, until_s - max(before_s, one.began_s))
                one.lost_s += min(excess_s / len(self._active), worked_s)  # the rest is the program's own
            over = [one for one in self._active if one.ended_s is not None]
            self._active = [one for one in self._active if one.ended_s is None]
        self._tell(over)

    def close(self) -> None:
        """No further step will come: what is not measured stays so."""
        with self._lock:
            over, self._active = self._active, []
        for one in over:
            one.measured = False
        self._tell(over)

    def _tell(self, over: list[Active]) -> None:
        for one in over:
            if one.cost is not None:
                self._settle(replace(one.cost, lost_s=one.lost_s if one.measured else None))
