"""A CUSUM that teaches itself: it notices that a series has gone up and stays up, however little each value says."""

from __future__ import annotations

from collections.abc import Mapping

from mementum.perceive.level import CLIP, Level

SUM_MAX = 2.0  # times the limit: a rise that nobody has answered is over within about as many values as it took to see


class PageSum:
    """Page's one-sided cumulative sum (Biometrika 41, 1954), upwards: S = max(0, S + u - slack)."""

    def __init__(self, *, slack: float, limit: float) -> None:
        self._slack, self._limit = slack, limit
        self._sum = 0.0
        self.rising = 0  # values since it was last 0

    def add(self, above: float) -> float | None:
        """Take one u, of which no more than CLIP counts. The sum where it is above the limit, else None."""
        self._sum = min(max(0.0, self._sum + min(above, CLIP) - self._slack), SUM_MAX * self._limit)
        self.rising = self.rising + 1 if self._sum > 0.0 else 0
        return self._sum if self._sum > self._limit else None

    def restart(self) -> None:
        self._sum, self.rising = 0.0, 0

    def state(self) -> dict[str, float]:
        return {"sum": self._sum, "rising": self.rising}

    def apply(self, state: Mapping[str, float]) -> None:
        self._sum, self.rising = state["sum"], int(state["rising"])


class Cusum:
    """A `PageSum` of a series. u is the value above the series' own level, in units of its own spread, at most CLIP:
    more than that of a single value is a spike, which is somebody else's to see.

    Level and spread are learnt as it goes (self-starting, as in Hawkins, The Statistician 36, 1987, with an exponential
    memory, since a run's noise changes over its life). They learn nothing while S is above the limit. `restart` forgets
    all: what has risen is the new normal."""

    def __init__(self, *, slack: float, limit: float, memory: int) -> None:
        self._sum = PageSum(slack=slack, limit=limit)
        self.level = Level(memory=memory)

    @property
    def rising(self) -> int:
        """Values since the sum was last 0."""
        return self._sum.rising

    @property
    def spread(self) -> float:
        """Standard deviation about the level, in the series' unit; 0 where the series does not change."""
        return self.level.spread

    def add(self, value: float) -> float | None:
        """Take one finite value. The sum where it is above the limit, else None."""
        spread = self.spread
        if not self.level.known or spread == 0.0:
            self.level.learn(value)
            return None
        total = self._sum.add((value - self.level.value) / spread)
        if total is None:
            self.level.learn(value)
        return total

    def restart(self) -> None:
        """Forget level, spread and sum."""
        self._sum.restart()
        self.level.forget()

    def state(self) -> dict[str, float]:
        """Its memory as plain numbers, for `apply`."""
        return {**self.level.state(), **self._sum.state()}

    def apply(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self.level.apply(state)
        self._sum.apply(state)
