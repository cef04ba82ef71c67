"""The default interval: save when what would be lost on average has grown to what a save costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from mementum.decide.amounts import seconds, share
from mementum.decide.standing import deepest_first
from mementum.decide.theory import local_interval
from mementum.records import Decision, Reach, Save, Situation, Skip, Standing, record

OVERHEAD = 0.5  # a safety bound: where the best interval would be shorter, the machine fails before work is done anyway
COST_S_LEAST = 0.01  # no measurement beside a running training resolves less: what seems free is not

BLINDLY_S = 600.0  # between saves where nothing is known: ten minutes are lost at the most, for a second of saving
UNKNOWN = "nothing is known yet of what a save costs"
IN_FLIGHT = "a save is on its way"
TOO_OFTEN = "saves would take more than their part of the time"
CHEAP_STILL = "less would be lost on average than a save costs"


@record
class CostOptimal:
    """Save for the deepest reach whose expected loss since the last save has reached the cost of a save.

    The expected loss is the integral of rate(s) (s - last) ds since then. At a constant rate that is
    rate x T^2 / 2, which reaches C at sqrt(2 C / rate), Young's interval; at a changing one it follows the rate
    (`theory.local_interval`). Saves of one reach never take more than `overhead` of the time. `rates_least` holds, by
    reach, the lowest failure rate a second that is believed: a run that saw no failure for months still saves as
    often as that asks for.

    How much of the time saves may take in all is a budget (`budget.Within`): here it would forbid the best interval
    wherever failures come within 200 costs."""

    overhead: float = OVERHEAD
    rates_least: Mapping[Reach, float] = field(default_factory=dict)

    def decide(self, situation: Situation) -> Decision:
        nearest, ripest = None, -1.0
        for standing in deepest_first(situation):
            cost_s = max(standing.cost_s, COST_S_LEAST)
            if self._is_due(standing, cost_s):
                return self._save(standing, cost_s)
            ripe = standing.exposure_s / cost_s
            if nearest is None or ripe > ripest:
                nearest, ripest = standing, ripe
        if nearest is not None:
            return self._skip(nearest)
        if situation.since_save_s >= BLINDLY_S:
            return Save(reason=f"{UNKNOWN}: {seconds(situation.since_save_s)} since the last one")
        return Skip(reason=UNKNOWN)

    def _is_due(self, standing: Standing, cost_s: float) -> bool:
        if standing.in_flight or standing.since_steps < 1 or standing.since_s < self._soonest_s(cost_s):
            return False
        return standing.exposure_s >= cost_s or standing.since_s >= self._longest_s(standing, cost_s)

    def _soonest_s(self, cost_s: float) -> float:
        return cost_s / self.overhead

    def _longest_s(self, standing: Standing, cost_s: float) -> float:
        return local_interval(cost_s, self.rates_least.get(standing.reach, 0.0))

    def _save(self, standing: Standing, cost_s: float) -> Save:
        costs = f"{seconds(cost_s)} that a save costs"
        if standing.exposure_s >= cost_s:
            reason = f"{seconds(standing.exposure_s)} lost on average so far >= {costs}"
        else:
            longest_s = self._longest_s(standing, cost_s)
            reason = (
                f"{seconds(standing.since_s)} of work at risk >= {seconds(longest_s)}, the interval at the lowest"
                f" failure rate that is believed and {costs}"
            )
        return Save(
            reason=f"{reason}; work at risk: {seconds(standing.since_s)}",
            reach=standing.reach,
            numbers=self._numbers(standing, cost_s),
        )

    def _skip(self, standing: Standing) -> Skip:
        cost_s = max(standing.cost_s, COST_S_LEAST)
        if standing.in_flight:
            reason = IN_FLIGHT
        elif standing.exposure_s >= cost_s:
            reason = f"{TOO_OFTEN} ({share(self.overhead)})"
        else:
            reason = CHEAP_STILL
        return Skip(reason=reason, numbers=self._numbers(standing, cost_s))

    def _numbers(self, standing: Standing, cost_s: float) -> dict[str, float]:
        return {
            "reach": float(standing.reach),
            "exposure_s": standing.exposure_s,
            "cost_s": cost_s,
            "at_risk_s": standing.since_s,
            "rate": standing.rate,
            "interval_s": max(
                min(local_interval(cost_s, standing.rate), self._longest_s(standing, cost_s)), self._soonest_s(cost_s)
            ),
        }
