"""Facts: what became known after a manifest was written, as lines of journals."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from mementum.errors import MementumError
from mementum.format import typed_json
from mementum.records import LEVELS, Fact, Health, Place, record

STEP_END = 1 << 62  # a step of ours is below it
# A journal, or a part of it: its number, and the byte of it at which the part begins.
JOURNAL = re.compile(r"journal/(\d+)(?:-(\d{1,18}))?\.jsonl")
RECORDER = "flight recorder"  # whose a pin is that does not say whose it is
# Kinds of facts that say something of one checkpoint, and of an attempt.
JUDGING = ("health", "pin", "unpin", "damaged", "verified", "placed", "displaced", "restored")
OF_ATTEMPTS = ("restored", "ended")


@record
class Known:
    """What facts say of one checkpoint, by now. None: they say nothing of it."""

    damaged: str | None = None
    verified: str | None = None
    judged: Health | None = None
    judged_why: str | None = None
    pinned: str | None = None  # a person's reason, where there is one
    pinned_by: frozenset[str] = frozenset()
    places: tuple[Place, ...] = ()  # by the tier's name
    restore_s: float | None = None  # seconds that coming back from it took last


@record
class Outcome:
    """What the journal of an attempt says of it. None: it says nothing."""

    came_from: str | None = None  # the id of the checkpoint that it went on from
    ended: str | None = None  # why


def journal_key(attempt: int) -> str:
    return f"journal/{attempt:04d}.jsonl"


def part_key(attempt: int, begin: int) -> str:
    """Of the part of a journal that begins at this byte. Parts are copies: each is written once, and ends with the end
    of a line."""
    return f"journal/{attempt:04d}-{begin:012d}.jsonl"


def attempt_of(source: str) -> int | None:
    """Whose journal it is, or a part of; None for what was told from outside."""
    journal = JOURNAL.fullmatch(source)
    return None if journal is None else int(journal[1])


def render(fact: Fact) -> bytes:
    """One line. What is None is left out."""
    fields: dict[str, Any] = {"kind": fact.kind, "time": fact.time}
    if fact.checkpoint is not None:
        fields["checkpoint"] = fact.checkpoint
    if fact.step is not None:
        fields["step"] = fact.step
    if fact.values:
        fields["values"] = typed_json.encode(dict(fact.values))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def parse(data: bytes | memoryview) -> tuple[Fact, ...]:
    """The facts of a journal. A line that a power cut has torn says nothing and is passed over."""
    facts: list[Fact] = []
    for line in bytes(data).split(b"\n"):
        fact = _parse_line(line)
        if fact is not None:
            facts.append(fact)
    return tuple(facts)


def known(facts: Iterable[Fact]) -> Known:
    """What facts of one checkpoint say, in the order in which they became known: of each kind the later one holds. A
    checkpoint whose disk came back may be found whole again, and one that was suspect may be clean after all. Of a pin,
    only what its own owner says counts."""
    found: dict[str, Any] = {}
    pins: dict[str, str] = {}  # reasons by owner
    places: dict[str, Place] = {}
    for fact in facts:
        match fact.kind:
            case "damaged" | "verified" if _tier(fact):
                place = places.get(_tier(fact))
                if place is not None:
                    places[place.tier] = _proved(place, fact)
            case "damaged":
                found["damaged"] = _wrong(fact)
            case "verified":
                found |= {"damaged": None, "verified": fact.time}
            case "health":
                found["judged"], found["judged_why"] = health_of(fact)
            case "pin":
                pins[_owner(fact)] = _reason(fact)
            case "unpin":
                pins.pop(_owner(fact), None)
            case "placed":
                places[_tier(fact)] = _place(fact)
            case "displaced":
                places.pop(_tier(fact), None)
            case "restored":
                found["restore_s"] = _seconds(fact.values.get("seconds"))
    pinned = next((why for owner, why in pins.items() if owner != RECORDER), pins.get(RECORDER))
    at = tuple(place for _, place in sorted(places.items()))
    return Known(**found, pinned=pinned, pinned_by=frozenset(pins), places=at)


def outcome(facts: Iterable[Fact]) -> Outcome:
    """What facts of one attempt's journal say of it, in their order: a run comes back at its start first, and later
    perhaps from a rollback; it ends once."""
    came_from = ended = None
    for fact in facts:
        match fact.kind:
            case "restored" if came_from is None:
                came_from = fact.checkpoint
            case "ended":
                ended = str(fact.values.get("why", "finished"))
    return Outcome(came_from=came_from, ended=ended)


def in_order(told: Iterable[tuple[str, int, Fact]]) -> list[Fact]:
    """Facts in the order in which they became known. Each comes with its source and its place in that.

    In one source the place decides, of one journal's parts the one that begins later, and of journals the younger
    attempt's comes later, whatever the clock said: one that was set back must not bring what was known earlier back to
    life. What is from outside of the journals stands where its time puts it, and behind where such a clock leaves that
    open."""
    groups: dict[str, list[tuple[int, int, int, Fact]]] = {}
    for source, number, fact in told:
        journal = JOURNAL.fullmatch(source)
        row = (int(journal[1]), int(journal[2] or 0), number, fact) if journal else (0, 0, number, fact)
        groups.setdefault("" if journal else source, []).append(row)
    ordered: list[tuple[tuple[str, str, int], Fact]] = []
    for name, rows in groups.items():
        rows.sort(key=lambda row: row[:3])
        times = [*accumulate((fact.time for *_, fact in reversed(rows)), min)][::-1]  # none later than those after it
        ordered += (((time, name, place), rows[place][3]) for place, time in enumerate(times))
    ordered.sort(key=lambda one: one[0])
    return [fact for _, fact in ordered]


def health_of(fact: Fact) -> tuple[Health, str]:
    """What a fact of the kind `health` says, and why. One that nobody understands does not leave a state clean."""
    try:
        health = Health(str(fact.values.get("health")))
    except ValueError:
        return Health.SUSPECT, "what became known of its health cannot be read"
    return health, str(fact.values.get("why") or "no reason was given")


def _wrong(damaged: Fact) -> str:
    return str(damaged.values.get("what", "damaged"))


def _proved(place: Place, fact: Fact) -> Place:
    """The copy on a tier, after what was found out about it there. It says nothing of the root's own."""
    if fact.kind == "verified":
        return replace(place, damaged=None, verified=fact.time)
    return replace(place, damaged=_wrong(fact))


def _owner(fact: Fact) -> str:
    return str(fact.values.get("by") or RECORDER)


def _reason(pin: Fact) -> str:
    why, by = pin.values.get("why") or "no reason was given", pin.values.get("by")
    return f"{why} ({by})" if by else str(why)


def _tier(fact: Fact) -> str:
    return str(fact.values.get("tier") or "")


def _place(placed: Fact) -> Place:
    """What is missing, or is not what it should be, is as the record has it where nothing is said."""
    values = placed.values
    generation, size, levels = values.get("generation"), values.get("size"), values.get("levels")
    return Place(
        tier=_tier(placed),
        url=str(values.get("url") or ""),
        time=placed.time,
        generation=generation if type(generation) is int and 0 < generation < STEP_END else 1,
        size=size if type(size) is int and 0 <= size < STEP_END else 0,
        levels=tuple(level for level in LEVELS if level in levels) if isinstance(levels, list | tuple) else LEVELS,
    )


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return float(value)


def _parse_line(line: bytes) -> Fact | None:
    try:
        fields = json.loads(line)
        values = typed_json.decode(fields.get("values", {}))
        kind, time = fields["kind"], fields["time"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MementumError):
        return None
    checkpoint, step = fields.get("checkpoint"), fields.get("step")
    if not (isinstance(kind, str) and isinstance(time, str) and isinstance(values, Mapping)):
        return None
    if not (checkpoint is None or isinstance(checkpoint, str)) or not (step is None or type(step) is int):
        return None
    texts = f"{kind}{time}{checkpoint or ''}"
    # What no database takes: half a surrogate pair and a zero, which JSON can escape, and a step of more than 64 bits.
    if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in texts) or not abs(step or 0) < STEP_END:
        return None
    return Fact(kind=kind, time=time, checkpoint=checkpoint, step=step, values=values)
