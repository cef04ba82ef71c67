"""A CUSUM for a loss that still falls fast: its level keeps up, and its spread is that of the noise alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mementum.perceive.cusum import PageSum
from mementum.perceive.level import TINY, Level

STEP_TO_SPREAD = 0.8862  # mean absolute step between two values of normal noise to its standard deviation: sqrt(pi) / 2
NOISE_MEMORIES = 4  # memories of the level over which noise is averaged: it changes slowly, and must not follow a rise


class Rise:
    """A `PageSum`, as `Cusum` is, but for what one value is compared with. A level of the last `memory` values lags
    little behind a fall. The spread is by the steps from one value to the next (von Neumann, Ann. Math. Stat. 12,
    1941), which a fall does not widen: after a steep beginning, the spread about the level is many times the noise for
    hundreds of values."""

    def __init__(self, *, slack: float, limit: float, memory: int) -> None:
        self._sum = PageSum(slack=slack, limit=limit)
        self._last: float | None = None
        self._steps = Level(memory=NOISE_MEMORIES * memory)  # sizes of the steps from one value to the next
        self.level = Level(memory=memory)

    @property
    def rising(self) -> int:
        """Values since the sum was last 0."""
        return self._sum.rising

    @property
    def spread(self) -> float:
        """Standard deviation of the noise, in the series' unit; 0 where there is none."""
        spread = STEP_TO_SPREAD * self._steps.value
        return spread if spread > TINY * abs(self.level.value) else 0.0

    def add(self, value: float) -> float | None:
        """Take one finite value. The sum where it is above the limit, else None."""
        spread = self.spread
        if self._last is not None:
            self._steps.learn(abs(value - self._last))
        self._last = value
        if self.level.known and self._steps.known and spread:
            total = self._sum.add((value - self.level.value) / spread)
            if total is not None:
                return total
        self.level.learn(value)
        return None

    def restart(self) -> None:
        """Forget level and sum. What the noise is like stays known."""
        self._sum.restart()
        self.level.forget()

    def state(self) -> dict[str, Any]:
        return {
            "level": self.level.state(),
            "steps": self._steps.state(),
            "last": self._last,
            **self._sum.state(),
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        self.level.apply(state["level"])
        self._steps.apply(state["steps"])
        self._sum.apply(state)
        self._last = state["last"]
