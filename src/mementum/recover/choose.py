"""Choose: in which order checkpoints are tried when a run comes back."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.records import Entry, Granularity, Health

HEALTH_ORDER = (Health.CLEAN, Health.SUSPECT, Health.DIVERGED)


def candidates(entries: Sequence[Entry], *, inexact: bool = False) -> tuple[Entry, ...]:
    """Exact ones only (with `inexact` all), clean before suspect before diverged, then newest first by sequence number.

    What was found damaged before comes last of all: a disk may have come back."""
    exact = [entry for entry in entries if inexact or entry.manifest.granularity is Granularity.FULL]
    newest_first = sorted(exact, key=lambda entry: entry.order, reverse=True)
    return tuple(
        sorted(
            newest_first,
            key=lambda entry: (entry.damaged is not None, HEALTH_ORDER.index(entry.manifest.health)),
        )
    )
