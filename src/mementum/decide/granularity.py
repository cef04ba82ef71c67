"""What a save holds: the granularity whose cost and expected recovery are least, exact often enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mementum.decide.amounts import seconds, share
from mementum.decide.policy import Policy
from mementum.records import Decision, Granularity, Save, Situation, record

EXACT_EVERY = 10  # saves: at most nine inexact ones in a row, so that most of a day's saves may still be light
EXACT_EVERY_S = 3600.0  # an exact resume never loses more than an hour to lighter saves
RECOVERY_STEPS = {  # what an inexact resume costs in steps until the run is where it was; measure it where you can
    Granularity.FULL: 0.0,
    Granularity.WEIGHTS_AND_OPTIMIZER: 1.0,  # assumed: data position and random numbers by formula, a batch twice
    Granularity.WEIGHTS: 100.0,  # moments rebuilt for 100 steps at learning rate 0 (BigScience's 104B and 1.3B runs)
    Granularity.ESSENTIALS: 1000.0,  # assumed: all but the key layers are learnt again
}


@record
class Option:
    """A granularity that can be saved here: seconds lost to one such save, and steps to recover after a restore."""

    granularity: Granularity
    cost_s: float
    recovery_steps: float


@record
class Chosen:
    """A granularity with its reason. `expected_s`: cost and expected recovery."""

    granularity: Granularity
    expected_s: float
    reason: str


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
        due = _exact_due(situation.saves_since_exact, situation.since_exact_s, self.exact_every, self.exact_every_s)
        if due is None:
            return decision
        return replace(decision, granularity=Granularity.FULL, reason=f"{decision.reason}; exact: {due}")


def option(granularity: Granularity, cost_s: float) -> Option:
    """An option with the recovery steps that are assumed where none were measured."""
    return Option(granularity=granularity, cost_s=cost_s, recovery_steps=RECOVERY_STEPS[granularity])


def choose(
    options: Sequence[Option],
    *,
    chance: float,
    step_s: float,
    saves_since_exact: int,
    since_exact_s: float | None,
    exact_every: int = EXACT_EVERY,
    exact_every_s: float = EXACT_EVERY_S,
) -> Chosen:
    """The option that minimises C_g + p x Loss(g), with p the `chance` that this save is the one restored from and
    Loss(g) = recovery steps x `step_s`; the work since the save is lost with any of them, so it does not tell them
    apart. Ties go to the more exact.

    FULL is taken whatever it costs where no exact save is there yet (`since_exact_s` None), every `exact_every`-th
    time, and when the newest exact one is older than `exact_every_s` seconds. `options` hold FULL."""
    full = next((one for one in options if one.granularity is Granularity.FULL), None)
    assert full is not None, "what is exact can always be saved"
    due = _exact_due(saves_since_exact, since_exact_s, exact_every, exact_every_s)
    if due is not None:
        return Chosen(granularity=Granularity.FULL, expected_s=full.cost_s, reason=due)

    def expected_s(one: Option) -> float:
        return one.cost_s + chance * one.recovery_steps * step_s

    best = min(options, key=lambda one: (expected_s(one), one.recovery_steps))
    reason = f"{seconds(best.cost_s)} to save"
    if best is not full:
        reason += (
            f" and {share(chance)} chance of {best.recovery_steps:g} steps to recover = {seconds(expected_s(best))}"
            f" < {seconds(full.cost_s)} for all of it"
        )
    return Chosen(granularity=best.granularity, expected_s=expected_s(best), reason=reason)


def _exact_due(saves: int, since_s: float | None, every: int, every_s: float) -> str | None:
    if since_s is None:
        return "no exact save is there yet"
    if saves + 1 >= every:
        return f"{saves} inexact saves since the newest exact one, at most {every - 1}"
    if since_s >= every_s:
        return f"the newest exact save is {seconds(since_s)} old, at most {seconds(every_s)}"
    return None
