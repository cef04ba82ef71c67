"""Watching without saving: what would have been decided, beside the checkpoints that somebody already makes."""

from __future__ import annotations

from mementum.decide.policy import Policy
from mementum.records import Decision, Save, Situation, Skip, record


@record
class Observing:
    """Turns every save that `policy` decides into a skip that says so; reason and numbers stay."""

    policy: Policy

    def decide(self, situation: Situation) -> Decision | None:
        decision = self.policy.decide(situation)
        if not isinstance(decision, Save):
            return decision
        return Skip(
            reason=f"would have saved: {decision.reason}",
            numbers={
                **decision.numbers,
                "granularity": float(decision.granularity),
                "reach": float(decision.reach),
            },
        )
