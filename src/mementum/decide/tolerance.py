"""What the user can bear to lose: a save before there would be more, whatever it costs."""

from __future__ import annotations

from mementum.decide.amounts import seconds
from mementum.decide.standing import deepest_first, ready_s
from mementum.records import Decision, Reach, Save, Situation, Standing, record

OFTENEST = 0.5  # part of the tolerance: a save that takes longer than half of it cannot keep it, however often it comes


def latest_s(max_lost_s: float, standing: Standing, step_s: float | None) -> float:
    """How old, in seconds, the newest durable state may get before the next save must begin.

    Until that one is durable a failure still falls back to the one before: so the time that a save takes, and the step
    that passes before it is asked again, are taken off."""
    return max(max_lost_s - ready_s(standing) - (step_s or 0.0), max_lost_s * OFTENEST)


@record
class Tolerance:
    """Never more than `max_lost_s` of work at risk, against every loss up to `reach`. It wins over every interval.

    Budgets win over it (see `budget`); `feasibility` says beforehand where both cannot be had."""

    max_lost_s: float
    reach: Reach = Reach.MACHINE

    def decide(self, situation: Situation) -> Decision | None:
        for standing in deepest_first(situation):
            if standing.in_flight or standing.reach > self.reach or standing.since_steps < 1:
                continue
            latest = latest_s(self.max_lost_s, standing, situation.step_s)
            if standing.since_s >= latest:
                return Save(
                    reason=f"{seconds(standing.since_s)} of work at risk, and {seconds(ready_s(standing))} until a save"
                    f" is durable: max_lost {seconds(self.max_lost_s)} would be passed at the next step",
                    reach=standing.reach,
                    numbers={
                        "at_risk_s": standing.since_s,
                        "latest_s": latest,
                        "durable_s": ready_s(standing),
                        "max_lost_s": self.max_lost_s,
                    },
                    cause="tolerance",
                )
        return None
