"""Policies: pure functions of a situation that say save, skip, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from mementum.records import Decision, Save, Situation, Skip, record

WAITED_FOR = frozenset({"notice", "asked", "end"})  # causes of saves for which somebody waits


class Policy(Protocol):
    """Pure: no clock, no files, no memory of its own."""

    def decide(self, situation: Situation) -> Decision | None:
        """Save or Skip, with the reason; None for no opinion."""
        ...


@record
class First:
    """The first opinion wins: the order of the list is the order of precedence."""

    policies: tuple[Policy, ...]

    def decide(self, situation: Situation) -> Decision:
        for policy in self.policies:
            decision = policy.decide(situation)
            if decision is not None:
                return decision
        return Skip(reason="no policy asked for a save")


def both(first: Save | None, second: Save | None) -> Save | None:
    """One save that serves both: all that either holds, against all that either outlives. The cause is that of the one
    for which somebody waits, else the first's."""
    if first is None or second is None:
        return first or second
    leading, other = (
        (second, first) if second.cause in WAITED_FOR and first.cause not in WAITED_FOR else (first, second)
    )
    return replace(
        leading,
        reason=leading.reason if leading.reason == other.reason else f"{leading.reason}; {other.reason}",
        granularity=min(leading.granularity, other.granularity),
        reach=max(leading.reach, other.reach),
        numbers={**other.numbers, **leading.numbers},
        urgent=leading.urgent or other.urgent,
    )


def save_of(decision: Any) -> Save | None:
    """What a policy has decided. TypeError where that is no decision, or one that no manifest can hold."""
    if decision is None or isinstance(decision, Skip):
        return None
    if not (isinstance(decision, Save) and isinstance(decision.reason, str)):
        raise TypeError(f"decide gave {decision!r}, which is no Save, Skip or None")
    return decision
