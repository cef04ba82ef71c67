"""Saving for what happens in the program: an event that it tells, or a metric that is better than ever."""

from __future__ import annotations

import math
from typing import Literal

from mementum.decide.standing import reach_of
from mementum.records import Decision, Granularity, Health, Reach, Save, Situation, record


@record
class OnEvent:
    """Save when the program tells an event: one of `names`, any if that is None."""

    names: frozenset[str] | None = None
    granularity: Granularity = Granularity.FULL
    reach: Reach = Reach.REBOOT

    def decide(self, situation: Situation) -> Decision | None:
        told = [name for name in situation.events if self.names is None or name in self.names]
        if not told:
            return None
        return Save(
            reason=f"event {', '.join(told)}",
            granularity=self.granularity,
            reach=reach_of(situation, self.reach),
            cause="event",
        )


@record
class BestMetric:
    """Save when the metric `name` is better than its best so far, by more than `min_delta`; its first value is. A state
    that is not trusted is not the best."""

    name: str
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0
    granularity: Granularity = Granularity.FULL
    reach: Reach = Reach.REBOOT

    def decide(self, situation: Situation) -> Decision | None:
        value, best = situation.metrics.get(self.name), situation.best.get(self.name)
        if value is None or not math.isfinite(value):
            return None
        if situation.diagnosis is not None and situation.diagnosis.health is not Health.CLEAN:
            return None
        if best is None or not math.isfinite(best):
            return self._save(situation, value, f"{self.name} {value:g} is the first that is known")
        gain = best - value if self.mode == "min" else value - best
        if not gain > self.min_delta:
            return None
        return self._save(situation, value, f"{self.name} {value:g} is the best so far, {best:g} was before", best)

    def _save(self, situation: Situation, value: float, reason: str, best: float | None = None) -> Save:
        return Save(
            reason=reason,
            granularity=self.granularity,
            reach=reach_of(situation, self.reach),
            numbers={"value": value} if best is None else {"value": value, "best_before": best},
            cause="best",
        )
