"""Sending: copies on their way to places that outlive the machine, held to what budgets leave of a day."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from mementum.perceive.day import Day

PAID_MAX = 64  # saves that were charged when they were decided; older ones have got there, or never will
CAUSE = "sending"
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}


class Sending:
    """Whatever is sent is charged, be it of a save that was made for the loss of the machine or of any other. The first
    are charged when they are decided: of them only what they send beyond that, as to a second place. Of the others,
    one that does not fit does not go. What goes counts from its beginning on, so that two do not share one rest.

    Any thread may call it. Times are seconds since the attempt began, which was at `began_s` by the wall clock."""

    def __init__(self, days: Mapping[str, tuple[Day, float]], *, began_s: float) -> None:
        """`days`: budgets by their settings' names, and how much of each a byte takes."""
        self._days, self._began_s = dict(days), began_s
        self._lock = threading.Lock()
        self._paid: dict[str, float] = {}
        self._going: dict[tuple[str, str], float] = {}

    def paid(self, id: str, size: float) -> None:
        """So many bytes of a save are charged already, with what was said before."""
        with self._lock:
            self._paid[id] = self._paid.get(id, 0.0) + size
            while len(self._paid) > PAID_MAX:
                del self._paid[next(iter(self._paid))]

    def begin(self, at_s: float, place: str, id: str, size: float) -> str | None:
        """A checkpoint of so many bytes is about to go to a place; why it may not, or None."""
        with self._lock:
            if self._paid.get(id, 0.0) > 0:
                return None
            for name, (day, per_byte) in self._days.items():
                left = day.left(self._began_s + at_s)[0] - per_byte * sum(self._going.values())
                if size * per_byte > max(0.0, left):
                    rest, limit, takes = (
                        _amount(one, per_byte) for one in (max(0.0, left), day.limit, size * per_byte)
                    )
                    return f"{name}: {rest} of {limit} are left of this day, and it takes {takes}"
            self._going[place, id] = size
            return None

    def sent(self, at_s: float, place: str, id: str, size: float) -> None:
        """So many bytes of it are there."""
        with self._lock:
            if (place, id) in self._going:
                self._going[place, id] = max(0.0, self._going[place, id] - size)
            covered = min(size, self._paid.get(id, 0.0))
            if covered:
                self._paid[id] -= covered
            for day, per_byte in self._days.values():
                day.take(self._began_s + at_s, (size - covered) * per_byte, CAUSE)

    def end(self, place: str, id: str) -> None:
        """Nothing more of it goes."""
        with self._lock:
            self._going.pop((place, id), None)

    def going(self, name: str) -> float:
        """What of a budget is set apart for what is on its way."""
        with self._lock:
            return self._days[name][1] * sum(self._going.values()) if name in self._days else 0.0


def _amount(amount: float, per_byte: float) -> str:
    """In three figures: bytes, of which each takes one, or money."""
    if per_byte != 1.0:
        return f"{amount:.3g}"
    unit = next((unit for unit in UNITS if amount >= UNITS[unit]), "B")
    return f"{amount / UNITS.get(unit, 1.0):.3g} {unit}"
