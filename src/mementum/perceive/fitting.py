"""A detector of over-fitting: evaluations that get worse while the training loss still falls."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble


class Overfitting:
    """An evaluation loss that rises several times in a row (the criterion UP of Prechelt, "Early stopping, but when?",
    1998), while the training loss, averaged between the evaluations, has fallen."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._evaluations: deque[tuple[float, float]] = deque(maxlen=limits.eval_rises + 1)  # eval loss, train loss
        self._sum, self._count = 0.0, 0

    def look(self, loss: float | None, eval_loss: float | None) -> Sign | None:
        """Take a step's training loss and, where an evaluation has just ended, its loss."""
        if loss is not None and isfinite(loss):
            self._sum += loss
            self._count += 1
        if eval_loss is None or not isfinite(eval_loss) or self._count == 0:
            return None
        train_loss = self._sum / self._count
        self._sum, self._count = 0.0, 0
        self._evaluations.append((eval_loss, train_loss))
        evaluations = tuple(self._evaluations)
        if len(evaluations) <= self._limits.eval_rises:
            return None
        rises = all(before[0] < after[0] for before, after in pairwise(evaluations))
        (first, train_before), (last, train_now) = evaluations[0], evaluations[-1]
        rise = (last - first) / max(abs(first), abs(last)) if first != last else 0.0
        if not rises or rise <= self._limits.eval_rise or train_now >= train_before:
            return None
        text = (
            f"the evaluation loss rose {self._limits.eval_rises} times in a row, from {first:.4g} to {last:.4g}, "
            f"while the training loss fell from {train_before:.4g} to {train_now:.4g}"
        )
        return Sign(trouble=Trouble.OVERFITTING, value=rise, limit=self._limits.eval_rise, text=text)

    def state(self) -> dict[str, Any]:
        return {"evaluations": [list(pair) for pair in self._evaluations], "sum": self._sum, "count": self._count}

    def apply(self, state: Mapping[str, Any]) -> None:
        evaluations = ((float(a), float(b)) for a, b in state["evaluations"])
        self._evaluations = deque(evaluations, maxlen=self._limits.eval_rises + 1)
        self._sum, self._count = float(state["sum"]), int(state["count"])
