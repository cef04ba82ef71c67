"""Facts: what became known after a manifest was written, as lines of journals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mementum.errors import MementumError
from mementum.format import typed_json
from mementum.records import Fact

STEP_END = 1 << 62  # a step of ours is below it


def journal_key(attempt: int) -> str:
    return f"journal/{attempt:04d}.jsonl"


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
    # What no database takes: half a surrogate pair, which JSON can escape, and a step of more than 64 bits.
    if any("\ud800" <= letter <= "\udfff" for letter in texts) or not abs(step or 0) < STEP_END:
        return None
    return Fact(kind=kind, time=time, checkpoint=checkpoint, step=step, values=values)
