"""Recovery: which of the checkpoints that a catalog knows is the best one to come back to."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mementum.records import Entry, Granularity, Health

RANKS = {Health.CLEAN: 2, Health.SUSPECT: 1, Health.DIVERGED: 0}


def rank(granularity: int, health: Health, damaged: str | None) -> int | None:
    """The higher, the better; None for what nobody comes back to: it is not a full one, or known to be damaged."""
    if granularity != Granularity.FULL or damaged is not None:
        return None
    return RANKS[health]


def best(entries: Iterable[Entry], *, before_step: int | None = None) -> Entry | None:
    """The healthiest, then the newest; of equally new ones the one from which a run was back soonest, if that was
    measured, and then the greater id."""
    found = [
        ((of, entry.manifest.seq, entry.manifest.attempt, -_seconds(entry), entry.manifest.id), entry)
        for entry in entries
        if before_step is None or entry.manifest.step < before_step
        if (of := rank(entry.manifest.granularity, entry.health, entry.damaged)) is not None
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def _seconds(entry: Entry) -> float:
    return math.inf if entry.restore_s is None else entry.restore_s
