"""Ailing devices: what drivers say of their devices, as a factor of the failure rate and as an alarm."""

from __future__ import annotations

from math import expm1

from mementum.perceive.hazards import Hazards
from mementum.perceive.memory import Memory
from mementum.records import Alarm, Trouble

LOOK_S = 10.0  # between questions to drivers: they take milliseconds
HORIZON_S = 3600.0  # for which an alarm speaks; assumed, since no source says when a device fails after its first error


class Ailing:
    """Asks now and then. While something is wrong with a device, failures are likelier by its factor; each thing that
    is new is told by one alarm, if it `tells`."""

    def __init__(self, memory: Memory, hazards: Hazards, *, tells: bool = True) -> None:
        self._memory, self._hazards, self._tells = memory, hazards, tells
        self._looked_s: float | None = None
        self._factor, self._text, self._told = 1.0, "", ""

    def look(self, at_s: float) -> bool:
        """Whether the failure rate is another one from now on."""
        if self._looked_s is not None and at_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = at_s
        factor, self._text = self._memory.ailing()
        if factor == self._factor:
            return False
        self._factor = factor
        self._hazards.excess("device", factor)
        return True

    def alarms(self, step: int, rate: float) -> tuple[Alarm, ...]:
        """What has not been told yet. `rate`: of all failures a second, with the factor in it."""
        told, self._told = self._told, self._text
        if not self._tells or not self._text or self._text == told:
            return ()
        more = rate * (1.0 - 1.0 / self._factor) if self._factor > 1.0 else 0.0
        return (
            Alarm(
                trouble=Trouble.HARDWARE,
                step=step,
                value=self._factor,
                limit=1.0,
                text=f"a device has {self._text}: failures are {self._factor:g} times as likely",
                chance=-expm1(-more * HORIZON_S),
                horizon_s=HORIZON_S,
            ),
        )
