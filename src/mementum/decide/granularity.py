"""What a save holds: what a policy wishes, and all of it where an exact save is due."""

from __future__ import annotations

from dataclasses import replace

from mementum.decide.amounts import seconds
from mementum.decide.policy import Policy
from mementum.records import Decision, Granularity, Save, Situation, record

EXACT_EVERY = 10  # saves: at most nine inexact ones in a row, so that most of a day's saves may still be light
EXACT_EVERY_S = 3600.0  # an exact resume never loses more than an hour to lighter saves


@record
class ExactOften:
    """Asks `policy`, and makes an inexact save that it wants an exact one where it is due: an exact one holds all that
    a lighter one does, and only from it can a run resume bit for bit."""

    policy: Policy
    exact_every: int = EXACT_EVERY
    exact_every_s: float = EXACT_EVERY_S

    def decide(self, situation: Situation) -> Decision | None:
        decision = self.policy.decide(situation)
        if not isinstance(decision, Save) or decision.granularity is Granularity.FULL:
            return decision
        due = self._due(situation)
        if due is None:
            return decision
        return replace(decision, granularity=Granularity.FULL, reason=f"{decision.reason}; exact: {due}")

    def _due(self, situation: Situation) -> str | None:
        saves, since_s = situation.saves_since_exact, situation.since_exact_s
        if since_s is None:
            return "no exact save is there yet"
        if saves + 1 >= self.exact_every:
            return f"{saves} inexact saves since the newest exact one, at most {self.exact_every - 1}"
        if since_s >= self.exact_every_s:
            return f"the newest exact save is {seconds(since_s)} old, at most {seconds(self.exact_every_s)}"
        return None
