"""What the columns of a checkpoint say: made of its manifest and of the facts of it, and read back into an entry."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from mementum.catalog.facts import Known
from mementum.catalog.recovery import rank
from mementum.errors import MementumError
from mementum.format import typed_json
from mementum.records import LEVELS, NON_FINITE, Entry, Health, Manifest, Place

CHUNK_BITS = 10  # a band has up to 1024 sequence numbers: few enough to be looked through, and few bands to a million
RANK_BIT = 52  # above those of the largest sequence number, which has 62 bits


def band(of: int | None, seq: int) -> int | None:
    """Sorts what one may come back to: by rank, then by a thousand sequence numbers at once. In an index of bands and
    steps the best one of an earlier step is found by looking at a few bands: steps go back in a rollback, so that no
    index has them in the order of sequence numbers."""
    return None if of is None else of << RANK_BIT | seq >> CHUNK_BITS


def of_manifest(manifest: Manifest, text: str) -> dict[str, object]:
    return {
        "id": plain(manifest.id),
        "task": plain(manifest.task),
        "seq": manifest.seq,
        "attempt": manifest.attempt,
        "parent": None if manifest.parent is None else plain(manifest.parent),
        "step": manifest.step,
        "epoch": manifest.epoch,
        "time": plain(manifest.time),
        "reason": plain(manifest.reason),
        "granularity": int(manifest.granularity),
        "generation": manifest.generation,
        "levels": json.dumps(manifest.levels),
        "world_size": manifest.world_size,
        "size": manifest.size,
        "metrics": json.dumps(typed_json.encode(dict(manifest.metrics))),
        "gpu_mem_percent": _number(manifest.memory.get("gpu_mem_percent")),
        "saved_health": manifest.health.value,
        "non_finite": NON_FINITE in manifest.decision,
        "manifest": text,
    }


def of_facts(known: Known, *, saved_health: str, non_finite: bool, granularity: int, seq: int) -> dict[str, object]:
    """The columns that change when something becomes known."""
    saved = _health(saved_health)
    health = saved if known.judged is None or non_finite else known.judged  # as `Entry.health` has it
    return {
        "health": health.value,
        "judged": None if known.judged is None else known.judged.value,
        "judged_why": _plain_or_none(known.judged_why),
        "damaged": _plain_or_none(known.damaged),
        "verified": _plain_or_none(known.verified),
        "pinned": _plain_or_none(known.pinned),
        "pinned_by": json.dumps(sorted(known.pinned_by)),
        "places": json.dumps([_place_fields(place) for place in known.places]),
        "restore_s": known.restore_s,
        "band": band(rank(granularity, health, known.damaged), seq),
    }


def entry(row: Mapping[str, Any], late: Iterable[Mapping[str, Any]], manifest: Manifest) -> Entry:
    """`late`: values of metrics that came later, in the order in which they became known."""
    metrics: dict[str, float] = dict(manifest.metrics)
    for values in late:
        metrics.update(values)
    return Entry(
        manifest=manifest,
        folder=row["folder"],
        metrics=metrics,
        damaged=row["damaged"],
        verified=row["verified"],
        judged=None if row["judged"] is None else _health(row["judged"]),
        judged_why=row["judged_why"],
        pinned=row["pinned"],
        pinned_by=frozenset(name for name in _list(row["pinned_by"]) if isinstance(name, str)),
        places=tuple(_place(fields) for fields in _list(row["places"]) if isinstance(fields, dict)),
        restore_s=row["restore_s"],
    )


def values_of(data: str) -> dict[str, Any]:
    """Nothing for what cannot be read: a bit that flipped in a cache must not stop a training."""
    try:
        values = typed_json.decode(json.loads(data))
    except (ValueError, TypeError, RecursionError, MementumError):
        return {}
    return values if isinstance(values, dict) else {}


def plain(text: str) -> str:
    """As every database takes it: half a surrogate pair and a zero become marks."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _plain_or_none(text: str | None) -> str | None:
    return None if text is None else plain(text)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < math.inf else None


def _health(text: object) -> Health:
    try:
        return Health(str(text))
    except ValueError:
        return Health.SUSPECT  # what nobody understands does not leave a state clean


def _list(data: object) -> list[Any]:
    try:
        values = json.loads(str(data))
    except (ValueError, RecursionError):
        return []
    return values if isinstance(values, list) else []


def _place_fields(place: Place) -> dict[str, object]:
    fields = {"tier": place.tier, "url": place.url, "time": place.time}
    return {**fields, "generation": place.generation, "size": place.size, "levels": place.levels} | {
        "damaged": place.damaged,
        "verified": place.verified,
    }


def _place(fields: Mapping[str, Any]) -> Place:
    generation, size, levels = fields.get("generation"), fields.get("size"), fields.get("levels")
    return Place(
        tier=str(fields.get("tier", "")),
        url=str(fields.get("url", "")),
        time=str(fields.get("time", "")),
        generation=generation if type(generation) is int else 1,
        size=size if type(size) is int else 0,
        levels=tuple(level for level in LEVELS if level in levels) if isinstance(levels, list) else LEVELS,
        damaged=_text_or_none(fields.get("damaged")),
        verified=_text_or_none(fields.get("verified")),
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
