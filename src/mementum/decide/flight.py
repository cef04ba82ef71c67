"""The flight recorder: snapshots in memory at a steady pace, so that one from before a divergence is still there."""

from __future__ import annotations

import math

from mementum.decide.policy import Policy
from mementum.records import Decision, Health, Reach, Save, Situation, Skip, Standing, record

EVERY = 25  # steps: three slots reach back over 50 to 75; what is kept is from at most so long before the onset
SHARE = 0.01  # of the time; a fifth of what all saves may cost by default
CAUSE = "recorder"


@record
class FlightRecorder:
    """A snapshot in memory every `every` steps, or as rarely as keeps what they cost below `share` of the time. Any
    save counts as one, since its copy lies in memory too. None where memory keeps no snapshot, and none while the state
    is not trusted: it would take the place of one that is."""

    every: int = EVERY
    share: float = SHARE

    def decide(self, situation: Situation) -> Decision | None:
        standing = next((one for one in situation.standings if one.reach is Reach.PROCESS), None)
        diagnosis = situation.diagnosis
        if standing is None or diagnosis is None or diagnosis.health is not Health.CLEAN:
            return None
        steps = self.interval(standing, situation.step_s)
        if standing.in_flight or standing.since_steps < steps:
            return None
        return Save(
            reason=f"flight recorder: {standing.since_steps} steps since the newest snapshot, interval {steps}",
            reach=Reach.PROCESS,
            numbers={"interval_steps": steps},
            cause=CAUSE,
        )

    def interval(self, standing: Standing, step_s: float | None) -> int:
        """Steps from one snapshot to the next; `step_s`: duration of a step, None if it is not known yet."""
        if not step_s or not math.isfinite(standing.cost_s):
            return self.every
        return max(self.every, math.ceil(standing.cost_s / (self.share * step_s)))


@record
class Recording:
    """Asks `policy`, and where it wants no save the `recorder`, whose refusals are nobody's concern: what is said of a
    step is what `policy` says."""

    policy: Policy
    recorder: Policy

    def decide(self, situation: Situation) -> Decision | None:
        decision = self.policy.decide(situation)
        if decision is not None and not isinstance(decision, Skip):
            return decision
        snapshot = self.recorder.decide(situation)
        return snapshot if isinstance(snapshot, Save) else decision
