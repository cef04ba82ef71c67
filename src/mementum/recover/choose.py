"""Choose: in which order checkpoints are tried when a run comes back."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.format.levels import WEIGHTS
from mementum.records import Entry, Granularity, Health

HEALTH_ORDER = (Health.CLEAN, Health.SUSPECT, Health.DIVERGED)


def candidates(entries: Sequence[Entry], *, inexact: bool = False) -> tuple[Entry, ...]:
    """Exact ones only (with `inexact` all that hold weights), clean before suspect before diverged by what is known
    now, then newest first by sequence number.

    What was found damaged before comes last of all: a disk may have come back."""
    exact = [
        entry
        for entry in entries
        if entry.manifest.granularity is Granularity.FULL or (inexact and WEIGHTS in entry.manifest.levels)
    ]
    newest_first = sorted(exact, key=lambda entry: entry.order, reverse=True)
    return tuple(
        sorted(
            newest_first,
            key=lambda entry: (entry.damaged is not None, HEALTH_ORDER.index(entry.health)),
        )
    )


def newest_exact(entries: Sequence[Entry], health: Health) -> Entry | None:
    """The newest full one of this health, or of a better one."""
    good = HEALTH_ORDER[: HEALTH_ORDER.index(health) + 1]
    exact = [entry for entry in entries if entry.manifest.granularity is Granularity.FULL and entry.health in good]
    return max(exact, key=lambda entry: entry.order, default=None)


def healthier(entries: Sequence[Entry], health: Health) -> Entry | None:
    """What a resume would take rather than a state of this health: the first whole candidate of a better one."""
    better = HEALTH_ORDER[: HEALTH_ORDER.index(health)]
    return next((entry for entry in candidates(entries) if entry.damaged is None and entry.health in better), None)
