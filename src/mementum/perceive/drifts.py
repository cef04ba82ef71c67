"""Detectors of what is slow: a loss that drifts up, steps that take longer, updates that vanish."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import exp, isfinite, log
from statistics import median
from typing import Any

from mementum.perceive.cusum import Cusum
from mementum.perceive.level import Level
from mementum.perceive.rise import Rise
from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble, Vitals

RECENT_STEPS = 32  # at most, since it began, whose median is compared with the level: a few long ones are evaluations
SMALLEST = 1e-300  # an update of exactly 0 has no logarithm
VANISHED_STEPS = 8  # in a row: an update that is skipped once is a loss scale that has overflown


class Drift:
    """A loss that rises slowly, by two sums: one with a long memory, which sees what is slowest, and one whose level
    keeps up with a loss that still falls fast."""

    def __init__(self, limits: Limits) -> None:
        slack = limits.cusum_slack
        self._limits = (limits.cusum_limit, limits.rise_limit)
        self._cusums: tuple[Cusum | Rise, ...] = (
            Cusum(slack=slack, limit=limits.cusum_limit, memory=limits.cusum_memory),
            Rise(slack=slack, limit=limits.rise_limit, memory=limits.rise_memory),
        )

    def look(self, vitals: Vitals) -> Sign | None:
        loss = vitals.loss
        if loss is None or not isfinite(loss):
            return None
        found = None
        for cusum, limit in zip(self._cusums, self._limits, strict=True):
            if (total := cusum.add(loss)) is None:
                continue
            text = (
                f"the loss drifts up: above its level of {cusum.level.value:.4g} (spread {cusum.spread:.2g}) "
                f"over the last {cusum.rising} steps, {loss:.4g} now"
            )
            found = Sign(trouble=Trouble.DRIFT, value=total, limit=limit, text=text, rising=cusum.rising)
            cusum.restart()
        return found

    def state(self) -> dict[str, Any]:
        return {"cusums": [cusum.state() for cusum in self._cusums]}

    def apply(self, state: Mapping[str, Any]) -> None:
        for cusum, memory in zip(self._cusums, state["cusums"], strict=True):
            cusum.apply(memory)


class SlowSteps:
    """Steps that take longer than they did, by a CUSUM of the duration's logarithm and a smallest ratio."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cusum = Cusum(slack=limits.cusum_slack, limit=limits.cusum_limit, memory=limits.cusum_memory)
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def look(self, vitals: Vitals) -> Sign | None:
        step_s = vitals.step_s
        if step_s is None or not 0.0 < step_s < float("inf"):
            return None
        self._recent.append(log(step_s))
        if self._cusum.add(self._recent[-1]) is None:
            return None
        since = tuple(self._recent)[-self._cusum.rising :]
        usual, recent = self._cusum.level.value, median(since)
        ratio = exp(recent - usual)
        if ratio <= self._limits.slow_ratio:
            return None  # the level stays what it was: a slowdown that creeps adds up
        self._cusum.restart()
        text = f"steps take {exp(recent):.3g} s, {ratio:.2f} times what they took ({exp(usual):.3g} s)"
        return Sign(trouble=Trouble.SLOW, value=ratio, limit=self._limits.slow_ratio, text=text)

    def state(self) -> dict[str, Any]:
        return {**self._cusum.state(), "recent": list(self._recent)}

    def apply(self, state: Mapping[str, Any]) -> None:
        self._cusum.apply(state)
        self._recent = deque(state["recent"], maxlen=RECENT_STEPS)


class VanishingUpdate:
    """Updates that have become tiny beside the weights while the learning rate has not: training stands still, and the
    state is as good as it was."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.update_ratio_low
        self._level = Level(memory=limits.cusum_memory)  # of the logarithm of (update to weight, by learning rate)
        self._in_row = 0

    def look(self, vitals: Vitals) -> Sign | None:
        update, lr = vitals.update_ratio, vitals.lr
        if update is None or lr is None or not (0.0 <= update < float("inf") and 0.0 < lr < float("inf")):
            return None  # by a learning rate of 0 nothing can be said
        value = log(max(update, SMALLEST)) - log(lr)
        part = exp(min(value - self._level.value, 0.0))
        if not self._level.known or part >= self._limit:
            self._in_row = 0
            self._level.learn(value)
            return None
        self._in_row += 1
        if self._in_row < VANISHED_STEPS:
            return None
        text = f"updates vanish: {update:.2g} of the weights a step, {part:.2g} of what is usual at this learning rate"
        return Sign(trouble=Trouble.DRIFT, value=part, limit=self._limit, text=text, rising=self._in_row, spoils=False)

    def state(self) -> dict[str, float]:
        return {**self._level.state(), "in_row": self._in_row}

    def apply(self, state: Mapping[str, float]) -> None:
        self._level.apply(state)
        self._in_row = int(state["in_row"])
