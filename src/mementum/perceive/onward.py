"""Saves on their way from the root to a tier: until one is there, the machine may take it along."""

from __future__ import annotations

from collections import deque

from mementum.perceive.exposure import IN_FLIGHT_MAX, Exposure
from mementum.records import Reach


class Onward:
    """Belongs to the training's thread, but for `told`, which any thread may call."""

    def __init__(self) -> None:
        self._going: dict[str, float] = {}  # by the save's id: when its state was taken, as the exposure has it
        self._besides: dict[str, float] = {}  # the same of those against less, which a tier may take too; the newest
        self._told: deque[tuple[str, bool]] = deque()

    def committed(self, id: str, reach: Reach, taken_s: float, exposure: Exposure) -> None:
        """The save is durable in the root; for the loss of the machine that is not enough."""
        exposure.durable(min(reach, Reach.REBOOT), taken_s)
        if reach is Reach.MACHINE:
            self._going[id] = taken_s
        elif reach is Reach.REBOOT:
            self._besides[id] = taken_s
            if len(self._besides) > IN_FLIGHT_MAX:
                del self._besides[next(iter(self._besides))]

    def told(self, id: str, *, there: bool) -> None:
        """It is whole on a tier that outlives the machine, or it does not get there."""
        self._told.append((id, there))

    def take_in(self, exposure: Exposure) -> None:
        """Count what was told. What is older than a save that is there need not come any more."""
        while self._told:
            id, there = self._told.popleft()
            taken_s = self._going.pop(id, self._besides.pop(id, None))
            if taken_s is None:
                continue
            if not there:
                exposure.failed(Reach.MACHINE, taken_s)
                continue
            exposure.durable(Reach.MACHINE, taken_s)
            for older in [one for one, other_s in self._going.items() if other_s < taken_s]:
                exposure.failed(Reach.MACHINE, self._going.pop(older))
            self._besides = {one: other_s for one, other_s in self._besides.items() if other_s > taken_s}

    def clear(self) -> None:
        """What is on its way is of a branch that was left."""
        self._going.clear()
        self._besides.clear()
