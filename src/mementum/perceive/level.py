"""What a series is normally: its level and spread, learnt as it goes, and hardly moved by a spike."""

from __future__ import annotations

from collections.abc import Mapping

WARM_UP = 64  # values before it is known: the spread is then right to about a tenth
CLIP = 3.0  # spreads: what a single value is above or below that does not move the level further
TO_SPREAD = 1.2533  # mean absolute deviation to standard deviation of normal noise: sqrt(pi / 2)
TINY = 1e-12  # of the level: a spread below this is rounding, and nothing is divided by it


class Level:
    """Exponential mean and mean absolute deviation of the last `memory` values or so; the plain mean until there are
    as many. A level that falls is followed late: a series which falls looks low, and that is the safe side for those
    who look for rises."""

    def __init__(self, *, memory: int) -> None:
        self._memory = memory
        self._seen = 0
        self._deviation = 0.0
        self.value = 0.0

    @property
    def known(self) -> bool:
        """Whether it has seen enough to compare with."""
        return self._seen >= WARM_UP

    @property
    def spread(self) -> float:
        """Standard deviation about the level, in the series' unit; 0 where the series does not change."""
        spread = self._deviation * TO_SPREAD
        return spread if spread > TINY * abs(self.value) else 0.0

    def learn(self, value: float) -> None:
        """Take one finite value."""
        innovation = value - self.value
        if self._seen >= WARM_UP and (reach := CLIP * self.spread) > 0.0:
            innovation = min(max(innovation, -reach), reach)
        self._seen = min(self._seen + 1, self._memory)
        self.value += innovation / self._seen
        if self._seen > 1:  # the first value is the level, and says nothing about the spread
            self._deviation += (abs(innovation) - self._deviation) / (self._seen - 1)

    def forget(self) -> None:
        """Begin anew."""
        self._seen = 0
        self._deviation = self.value = 0.0

    def state(self) -> dict[str, float]:
        """Its memory as plain numbers, for `apply`."""
        return {"seen": self._seen, "value": self.value, "deviation": self._deviation}

    def apply(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self._seen, self.value, self._deviation = int(state["seen"]), state["value"], state["deviation"]
