"""What the work since the newest save is worth: expected seconds lost so far, for each reach."""

from __future__ import annotations

from collections.abc import Mapping

from mementum.records import Reach, record

IN_FLIGHT_MAX = 16  # saves of one reach; an older one that becomes durable after so many newer ones changes nothing


@record
class _Mark:
    """The integrals of the rate, and of the rate times the time, when a state was taken."""

    at_s: float
    step: int
    rate: float
    rate_time: float


class Exposure:
    """The integral of rate(t) (t - last) dt since `last`, the taking of the newest state that is durable and outlives
    the loss: it grows to half a rate times the squared time at risk where the rate is constant. A save is worth its
    cost when the integral reaches it (Ling, Mi and Lin 2001, restated: with a constant rate the interval is Young's
    sqrt(2 cost / rate)).

    Times are seconds since the attempt began and never go back. A save of a reach serves those below it too."""

    def __init__(self, at_s: float = 0.0, step: int = 0) -> None:
        start = _Mark(at_s=at_s, step=step, rate=0.0, rate_time=0.0)
        self._now = dict.fromkeys(Reach, start)
        self._last = dict.fromkeys(Reach, start)
        self._taken: dict[Reach, list[_Mark]] = {reach: [] for reach in Reach}
        self._besides: list[_Mark] = []  # for the loss of the machine, of saves against less that may get beyond it

    def advance(self, at_s: float, step: int, rates: Mapping[Reach, float]) -> None:
        """After a step; the rates (a second) have held since the step before it. A reach without a rate has none."""
        for reach in Reach:
            before = self._now[reach]
            until_s = max(at_s, before.at_s)
            grown = rates.get(reach, 0.0) * (until_s - before.at_s)
            self._now[reach] = _Mark(
                at_s=until_s,
                step=step,
                rate=before.rate + grown,
                rate_time=before.rate_time + grown * (until_s + before.at_s) / 2,
            )

    def begun(self, reach: Reach) -> float:
        """A save takes the state as it is now. Returns the time by which to call it when it ends."""
        for served in _served(reach):
            self._taken[served] = [*self._taken[served][1 - IN_FLIGHT_MAX :], self._now[served]]
        if reach is Reach.REBOOT:
            self._besides = [*self._besides[1 - IN_FLIGHT_MAX :], self._now[Reach.MACHINE]]
        return self._now[reach].at_s

    def durable(self, reach: Reach, at_s_taken: float) -> None:
        """The save that took its state then cannot be lost any more to what `reach` outlives, which may be more than
        it was made for."""
        for served in _served(reach):
            marks = [mark for mark in self._marks(served) if mark.at_s == at_s_taken]
            if marks and at_s_taken >= self._last[served].at_s:
                self._last[served] = marks[-1]
        self.failed(reach, at_s_taken)

    def failed(self, reach: Reach, at_s_taken: float) -> None:
        """That save has ended, and nothing of it counts."""
        for served in _served(reach):
            self._taken[served] = [mark for mark in self._taken[served] if mark.at_s != at_s_taken]
        if reach is Reach.MACHINE:
            self._besides = [mark for mark in self._besides if mark.at_s != at_s_taken]

    def _marks(self, reach: Reach) -> list[_Mark]:
        return [*self._taken[reach], *self._besides] if reach is Reach.MACHINE else self._taken[reach]

    def seconds(self, reach: Reach) -> float:
        """Expected seconds of work lost so far."""
        now, last = self._now[reach], self._last[reach]
        return max(0.0, now.rate_time - last.rate_time - last.at_s * (now.rate - last.rate))

    def since_s(self, reach: Reach) -> float:
        """Work at risk."""
        return self._now[reach].at_s - self._last[reach].at_s

    def since_steps(self, reach: Reach) -> int:
        return self._now[reach].step - self._last[reach].step

    def in_flight(self, reach: Reach) -> bool:
        return bool(self._taken[reach])


def _served(reach: Reach) -> tuple[Reach, ...]:
    return tuple(served for served in Reach if served <= reach)
