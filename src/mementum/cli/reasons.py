"""Reasons: the numbers of a decision in words, what was measured apart from the limit that it met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from mementum.cli.recalling import ALARM, NOTICE, REFUSED, number, told
from mementum.cli.text import size
from mementum.decide.amounts import seconds, share
from mementum.records import NON_FINITE, Fact, Manifest, Trouble, record

# A number whose name has one of these words is what was compared with; all others are what was measured.
LIMITS = frozenset({"limit", "interval", "max", "latest", "spread", "cost", "threshold", "before"})
BYTES = frozenset({"bytes", "size"})
SHARES = frozenset({"chance", "used", "risk"})
# What is told elsewhere, or is a number for programs only.
ABOUT = frozenset({"cause", "reach", "granularity", "blocked_s", "reason", "text", "next", NON_FINITE})
COSTS = {
    "blocked_s": "the loop stood still for {}",
    "lost_s": "{} of training lost in all",
    "durable_s": "durable after {}",
}
PLENTY = 1e6  # from here on a number without a unit is easier to read with commas than with an exponent
CRASHES = frozenset(trouble.value for trouble in Trouble if trouble.is_crash)


@record
class Cause:
    """Why. `effect` and `next_command` are empty where they follow from the step alone."""

    kind: str
    text: str
    measured: str
    limit: str
    effect: str = ""
    next_command: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)


def cause_of_save(manifest: Manifest, here: Sequence[Fact], since: str) -> Cause:
    """From the manifest's decision, and from the alarms or notices that were told at the step. `since` tells how far
    it is from the checkpoint before."""
    numbers = {name: value for name, value in manifest.decision.items() if name not in ABOUT}
    kind = str(manifest.decision.get("cause") or _likely(here))
    facts = [fact for fact in here if fact.kind == kind]
    # A notice tells the time that is left itself.
    own = {name: value for name, value in numbers.items() if not (facts and kind == NOTICE and name == "left_s")}
    pairs = [*map(_of_fact, facts), _split(own)]
    return Cause(
        kind=kind or "unknown",
        text=_titled(kind, manifest.reason),
        measured="; ".join(filter(None, (*(measured for measured, _ in pairs), since))),
        limit="; ".join(filter(None, (limit for _, limit in pairs))) or "none: nothing had to be exceeded",
        numbers=numbers,
    )


def _titled(kind: str, text: str) -> str:
    return text if not kind or text.startswith(kind) else f"{kind}: {text}"


def _likely(here: Sequence[Fact]) -> str:
    """What led to a save whose manifest names no cause: what was told at its step."""
    kinds = {fact.kind for fact in here}
    return next((kind for kind in (NOTICE, ALARM) if kind in kinds), "")


def cause_of_fact(fact: Fact, step: int, since: str) -> Cause:
    """Why there was no save, from what was told at the step or, for a reason that still held, before."""
    numbers = {name: value for name, value in fact.values.items() if name not in ABOUT}
    measured, limit = _of_fact(fact)
    earlier = "" if fact.step == step else f" (told at step {fact.step}, and nothing else since)"
    effect, next_command = "", str(fact.values.get("next", ""))
    if fact.kind == REFUSED:
        effect = "A save was due, and was not made."
        next_command = next_command or ("raise the setting that the cause names, and ask: mementum config check FILE")
    elif fact.kind == ALARM:
        effect = _effect_of_alarm(str(fact.values.get("trouble", "")))
    elif fact.kind == NOTICE:
        effect = "No save followed the notice at this step."
    return Cause(
        kind=fact.kind,
        text=f"{_titled(fact.kind, told(fact))}{earlier}",
        measured="; ".join(filter(None, (measured, since))),
        limit=limit or "none was told",
        effect=effect,
        next_command=next_command,
        numbers=numbers,
    )


def silent(since: str) -> Cause:
    """Nothing was told of the step."""
    return Cause(
        kind="unknown",
        text="no decision is recorded: nothing asked for a save, or the run recorded none",
        measured=since,
        limit="none was told",
    )


def _effect_of_alarm(trouble: str) -> str:
    if trouble in CRASHES:
        return "No save followed the alarm at this step."
    return (
        "It ends no process, but spoils what is computed: a save would have kept the spoiled state, so none was made."
    )


def _of_fact(fact: Fact) -> tuple[str, str]:
    """What was measured, and the limit; empty where nothing tells."""
    values = fact.values
    if fact.kind == ALARM:
        value, limit = number(values.get("value")), number(values.get("limit"))
        name = str(values.get("trouble", "value"))
        return f"{name} {_word(value)}", f"{name} {_word(limit)}"
    if fact.kind == NOTICE:
        left = number(values.get("left_s"))
        if left is None:
            return "the notice, which told no time", "the end of the process, at an unknown time"
        return f"{seconds(left)} left", f"the end of the process, {seconds(left)} after the notice"
    return _split({name: value for name, value in values.items() if name not in ABOUT})


def _word(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _split(numbers: Mapping[str, Any]) -> tuple[str, str]:
    measured = [_named(name, value) for name, value in numbers.items() if not LIMITS & set(name.split("_"))]
    limits = [_named(name, value) for name, value in numbers.items() if LIMITS & set(name.split("_"))]
    return ", ".join(measured), ", ".join(limits)


def _named(name: str, value: object) -> str:
    """`interval_s` of 600 is `interval 10 min`: the unit stands last in a name, or before `_max` and the like."""
    amount = number(value)
    words = name.split("_")
    if amount is None or not math.isfinite(amount):
        return f"{' '.join(words)} {value}"
    if BYTES & set(words):
        return f"{' '.join(words)} {size(round(amount))}"
    if words[-1] in SHARES:
        return f"{' '.join(words)} {share(amount)}"
    unit = next((word for word in ("s", "steps") if word in words[1:]), "")
    said = " ".join(word for place, word in enumerate(words) if place == 0 or word != unit)
    if unit == "s":
        return f"{said} {seconds(amount)}"
    return f"{said} {f'{amount:,.0f}' if abs(amount) >= PLENTY else f'{amount:.4g}'} {unit}".rstrip()


def cost_words(cost: Mapping[str, float]) -> str:
    parts = [form.format(seconds(cost[name])) for name, form in COSTS.items() if name in cost]
    if "bytes" in cost:
        parts.append(f"{size(round(cost['bytes']))} written")
    return "; ".join(parts)
