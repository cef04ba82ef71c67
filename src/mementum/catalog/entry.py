"""The entry of a checkpoint: what its manifest and the facts of it make together, in whatever a catalog keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from mementum.catalog import facts
from mementum.errors import MementumError
from mementum.format import manifest as manifests
from mementum.records import Entry, Fact, Manifest


def entry_of(folder: str, manifest: Manifest, late: Sequence[Fact], judging: Sequence[Fact]) -> Entry:
    """`late`: facts of metrics of its step and branch; `judging`: those of the checkpoint. Both in the order in which
    they became known."""
    metrics: dict[str, float] = dict(manifest.metrics)
    for fact in late:
        metrics.update(fact.values)
    known = facts.known(judging)
    return Entry(
        manifest=manifest,
        folder=folder,
        metrics=metrics,
        **{field.name: getattr(known, field.name) for field in fields(known)},
    )


def manifest_of(text: str | bytes) -> Manifest | None:
    """None for what cannot be read: it is as if it were not there, so that a refresh reads the file itself again."""
    try:
        return manifests.parse(text if isinstance(text, bytes) else text.encode())
    except (MementumError, AttributeError):  # the last where a database gives something that is no text
        return None
