"""Judged: what is known of the health of states, also of those that are no checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from mementum.catalog import facts
from mementum.records import Health
from mementum.storage.store import Store


def judged(store: Store) -> Mapping[str, tuple[Health, str]]:
    """Health by id, and why, as the journals and files of facts of a task's folder say it; the later fact holds.

    The catalog says this of checkpoints. A snapshot in shared memory has an id and may be spoken of, and the catalog
    does not know it."""
    told = [
        (stat.key, number, fact)
        for prefix in ("journal/", "facts/")
        for stat in store.list(prefix)
        for number, fact in enumerate(facts.parse(store.get(stat.key)))
        if fact.kind == "health" and fact.checkpoint is not None
    ]
    return {fact.checkpoint: facts.health_of(fact) for fact in facts.in_order(told) if fact.checkpoint is not None}
