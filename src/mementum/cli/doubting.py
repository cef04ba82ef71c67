"""Doubting: of which steps the states were not trusted, and what was done about it, from what attempts have told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mementum.catalog.plans import Plan
from mementum.cli.recalling import DIAGNOSIS, Attempt, Recollection, health_told
from mementum.cli.text import counted
from mementum.records import Fact, Health, record


@record
class Doubt:
    """From `first` to `last` (None: to the end of what is known), the states of an attempt were not trusted.

    `seen`: the step at which that was noticed. One that a rollback has `left` is of steps that the run did again."""

    attempt: int
    first: int
    last: int | None
    seen: int
    health: Health
    why: str
    left: bool = False

    def holds_at(self, step: int) -> bool:
        return self.first <= step and (self.last is None or step <= self.last)


def doubts(recollection: Recollection) -> tuple[Doubt, ...]:
    """In the order in which they were noticed. One that is not over when an attempt ends goes on in the next one, if
    that goes on from a state in doubt."""
    found: list[Doubt] = []
    standing: Doubt | None = None
    for one in recollection.attempts:
        begun = min(one.rows, default=None)
        if standing is not None and begun is not None:
            before = recollection.attempt(standing.attempt)
            found.append(_until(standing, max(before.rows, default=None) if before is not None else None))
            goes_on = begun > standing.first  # the state with which it began is that of the step before its first one
            standing = replace(standing, attempt=one.number, first=begun) if goes_on else None
        for told in _in_order(one, recollection.plans):
            if isinstance(told, Plan):
                found += [] if standing is None else [_until(standing, told.from_step, left=True)]
                standing = None
                continue
            standing, ended = _next(standing, told, one.number)
            found += [] if ended is None else [ended]
    return (*found, *(() if standing is None else (standing,)))


def doubt_at(found: tuple[Doubt, ...], attempt: int | None, step: int) -> Doubt | None:
    """The newest that holds at a step of an attempt, of the branch on which the run is now."""
    here = [one for one in found if one.attempt == attempt and not one.left and one.holds_at(step)]
    return here[-1] if here else None


def in_words(doubt: Doubt) -> str:
    return f"{doubt.health.value} from step {doubt.first} on, seen at step {doubt.seen}: {doubt.why}"


def plan_told(plan: Plan) -> str:
    """A rollback in one line. What a run says of its own tells the step and what is left out."""
    why = plan.why or "no reason was told"
    parts = [f"{why}; checkpoint {plan.target}"]
    if plan.by_hand:
        parts = [f"back to step {plan.step} (checkpoint {plan.target}), by hand: {why}"]
        left_out = sum(detour.groups for detour in plan.skips)
        parts += [f"the batches of {counted(left_out, 'step')} are left out"] if left_out else []
    if plan.lr_scale != 1.0:
        parts.append(f"learning rates are {plan.lr_scale:g} of those that were stored")
    return "; ".join(parts)


def plan_at(recollection: Recollection, step: int) -> Plan | None:
    """The newest rollback that has left a step behind, or has gone back to it."""
    found = [one for one in recollection.plans if one.step <= step <= max(one.step, one.from_step or 0)]
    return found[-1] if found else None


def _in_order(one: Attempt, plans: tuple[Plan, ...]) -> Iterator[Fact | Plan]:
    """Diagnoses and the attempt's own rollbacks, as they became known: times of one width sort as text does."""
    diagnoses = [fact for fact in one.facts if fact.kind == DIAGNOSIS and fact.step is not None]
    own = [plan for plan in plans if plan.attempt == one.number and not plan.by_hand]
    both: list[Fact | Plan] = [*diagnoses, *own]
    yield from sorted(both, key=lambda told: told.time)


def _next(standing: Doubt | None, fact: Fact, attempt: int) -> tuple[Doubt | None, Doubt | None]:
    """What is in doubt after a diagnosis, and what is not any more."""
    values, step = fact.values, fact.step or 0
    health = health_told(fact)
    if health is Health.CLEAN:
        last = step - (_whole(values, "calm") or 1)  # the states of the calm steps are clean again
        return None, None if standing is None else _until(standing, max(standing.first, last))
    first, seen = _whole(values, "onset"), _whole(values, "seen")
    first = step if first is None else first
    told = Doubt(
        attempt=attempt,
        first=first if standing is None else min(first, standing.first),
        last=None,
        seen=step if seen is None else seen,
        health=health,
        why=str(values.get("why") or "no reason was told"),
    )
    return told, None


def _whole(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if type(value) is int else None


def _until(doubt: Doubt, last: int | None, *, left: bool = False) -> Doubt:
    return replace(doubt, last=last, left=left)
