"""How long ago the newest exact save was: the one that a resume bit for bit would begin from."""

from __future__ import annotations

from mementum.records import Granularity, Reach, Save, record


@record
class _Exact:
    at_s: float
    inexact: int  # saves of that kind before it


class SinceExact:
    """Counts from the taking of a state. One that is on its way counts until nothing comes of it.

    Times are seconds since the attempt began. `resumed`: the attempt began with a state that a disk has."""

    def __init__(self, *, resumed: bool) -> None:
        self._inexact = 0
        self._durable = _Exact(at_s=0.0, inexact=0) if resumed else None
        self._in_flight: dict[str, _Exact] = {}

    def taken(self, id: str, save: Save, at_s: float) -> None:
        """A save has begun. A snapshot in memory alone is no exact save that another machine could begin from."""
        if save.granularity is not Granularity.FULL:
            self._inexact += 1
        elif save.reach > Reach.PROCESS:
            self._in_flight[id] = _Exact(at_s=at_s, inexact=self._inexact)

    def ended(self, id: str, *, durable: bool) -> None:
        """The save with this id is durable, or nothing comes of it."""
        exact = self._in_flight.pop(id, None)
        if exact is not None and durable and (self._durable is None or exact.at_s >= self._durable.at_s):
            self._durable = exact

    def seconds(self, at_s: float) -> float | None:
        """None if there is no exact save."""
        newest = self._newest
        return None if newest is None else at_s - newest.at_s

    @property
    def saves(self) -> int:
        """Inexact ones since then."""
        newest = self._newest
        return self._inexact if newest is None else self._inexact - newest.inexact

    @property
    def _newest(self) -> _Exact | None:
        durable = () if self._durable is None else (self._durable,)
        return max((*durable, *self._in_flight.values()), key=lambda exact: exact.at_s, default=None)
