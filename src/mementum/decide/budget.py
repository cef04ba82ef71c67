"""Budgets: a save that one does not cover becomes a refused skip that names what is short."""

from __future__ import annotations

import math
from dataclasses import replace

from mementum.decide.amounts import DAY_S, amount, seconds
from mementum.decide.policy import Policy
from mementum.decide.standing import deepest_first
from mementum.decide.tolerance import latest_s
from mementum.records import Allowance, Decision, Reach, Save, Situation, Skip, record

ALWAYS = frozenset({"notice", "asked", "end"})  # somebody waits for these; they are counted, never refused
TOLERANCE = "tolerance"
DAILY = frozenset(
    {"bytes a day", "money"}
)  # of any 24 hours: what is spent comes back a day later, not little by little
SETTINGS = {  # where each is raised
    "lost time": "budgets.lost_time",
    "bytes a day": "budgets.bytes_per_day",
    "network": "budgets.network",
    "money": "budgets.money",
}


@record
class Within:
    """Asks `policy`, and lets through what every allowance for the save's reach covers.

    A save for a notice, for memory that is all but gone, or that somebody asked for, always passes. One for an alarm
    may take what is set aside for
    alarms. One for an interval, an epoch, an event or a best metric is spread over the day where a budget is of a day,
    and leaves what `max_lost_s` will need: so no burst of cheap reasons takes from the tolerance. Where a deep reach is
    refused, a shallower save that is due by itself is still made."""

    policy: Policy
    max_lost_s: float | None = None

    def decide(self, situation: Situation) -> Decision | None:
        first: Skip | None = None
        seen = situation
        for _ in Reach:
            decision = self.policy.decide(seen)
            if not isinstance(decision, Save):
                return first or decision
            refusal = self._refusal(decision, situation)
            if refusal is None:
                return decision if first is None else _instead(decision, first)
            first = first or refusal
            shallower = tuple(one for one in seen.standings if one.reach < decision.reach)
            if shallower == seen.standings or not shallower:
                return first
            seen = replace(seen, standings=shallower)
        return first

    def again(self, save: Save, situation: Situation) -> Save | Skip:
        """The same save, which was refused at an earlier step, as it stands now."""
        return self._refusal(save, situation) or save

    def _refusal(self, save: Save, situation: Situation) -> Skip | None:
        if save.cause in ALWAYS or save.urgent:
            return None
        for allowance in situation.allowances:
            if allowance.reach is not save.reach or allowance.per_save <= 0:
                continue
            kept = 0.0 if save.cause == TOLERANCE else self._reserve(allowance, situation)
            left = allowance.left - kept
            if kept and allowance.name in DAILY:  # all others together leave a day's tolerance, whoever was first
                left = min(allowance.left, allowance.limit - kept - allowance.others)
            if save.cause == "alarm":
                left = min(left, allowance.for_alarms)
            if allowance.per_save > left:
                return _refused(save, allowance, left=left, kept=kept, tolerance_s=self.max_lost_s)
            early_s = _spread_s(allowance) - _since_s(situation, save.reach)
            if save.cause == "interval" and early_s > 0:
                return _too_early(save, allowance, early_s)
        return None

    def _reserve(self, allowance: Allowance, situation: Situation) -> float:
        """What the tolerance will need of an allowance before it fills again: one save of a bucket that fills little
        by little, a whole day's saves of one that counts the last 24 hours."""
        standing = next((one for one in deepest_first(situation) if one.reach is allowance.reach), None)
        if self.max_lost_s is None or standing is None:
            return 0.0
        if allowance.name not in DAILY:
            return allowance.per_save if allowance.name == "lost time" else 0.0
        return allowance.per_save * math.ceil(DAY_S / latest_s(self.max_lost_s, standing, situation.step_s))


def _since_s(situation: Situation, reach: Reach) -> float:
    return next((one.since_s for one in situation.standings if one.reach is reach), situation.since_save_s)


def _spread_s(allowance: Allowance) -> float:
    """Seconds between saves that spend a day's budget evenly; 0 for budgets that are not of a day."""
    if allowance.name not in DAILY or allowance.limit <= 0:
        return 0.0
    return DAY_S * allowance.per_save / allowance.limit


def _refused(save: Save, allowance: Allowance, *, left: float, kept: float, tolerance_s: float | None) -> Skip:
    unit, setting = _bare(allowance.unit), SETTINGS.get(allowance.name, "budgets")
    need, rest = amount(allowance.per_save, allowance.unit), amount(max(left, 0.0), unit)
    of_it = " for alarms" if save.cause == "alarm" else ""
    held = f", with {amount(kept, unit)} kept for max_lost" if kept else ""
    broken = ""
    if save.cause == TOLERANCE and tolerance_s is not None:
        broken = f"; max_lost {seconds(tolerance_s)} is not kept until then"
    return Skip(
        reason=f"refused by the budget {allowance.name} ({_name(allowance.reach)}): a save needs {need}, {rest} of"
        f" {amount(allowance.limit, unit)} left{of_it}{held}; saved as soon as that covers it{broken}; raise {setting}"
        f" to save sooner (wanted: {save.reason})",
        numbers={**save.numbers, "need": allowance.per_save, "left": left, "limit": allowance.limit, "kept": kept},
        refused=True,
        wanted=save,
    )


def _too_early(save: Save, allowance: Allowance, early_s: float) -> Skip:
    need, limit = amount(allowance.per_save, allowance.unit), amount(allowance.limit, _bare(allowance.unit))
    spread_s = _spread_s(allowance)
    return Skip(
        reason=f"refused by the budget {allowance.name} ({_name(allowance.reach)}): a save needs {need}, {limit} spread"
        f" over the day allow one in {seconds(spread_s)}; saved when that has passed; raise"
        f" {SETTINGS.get(allowance.name, 'budgets')} to save sooner",
        numbers={
            **save.numbers,
            "need": allowance.per_save,
            "left": allowance.left,
            "limit": allowance.limit,
            "spread_s": spread_s,
            "early_s": early_s,
        },
        refused=True,
        wanted=save,
    )


def _instead(save: Save, refusal: Skip) -> Save:
    return replace(
        save, reason=f"{save.reason}; only against the loss of {_loss(save.reach)}: a deeper save was {refusal.reason}"
    )


def _bare(unit: str) -> str:
    """A unit without where it goes to, which is said once."""
    return "bytes" if unit.startswith("bytes to ") else unit


def _name(reach: Reach) -> str:
    return reach.name.lower()


def _loss(reach: Reach) -> str:
    return {Reach.PROCESS: "the process", Reach.REBOOT: "the process or a reboot"}.get(reach, "the machine")
