"""Vanishing: copies that facts say are on a tier, and that somebody else took away there, are found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mementum.events import Emit, Failed
from mementum.execute.attempts import key_of
from mementum.places import Site
from mementum.records import Entry
from mementum.storage.store import Home, size_of

NAMED_MAX = 5  # steps in a message; facts tell all of them
WHY = "it is not there any more: somebody else took it away"

Tell = Callable[[str, str, int, Mapping[str, Any]], None]  # kind of fact, id, step, values


def find_vanished(
    site: Site, near: Home, home: str, *, task: str, own: int, known: Callable[[], Sequence[Entry]]
) -> tuple[Entry, ...]:
    """Of `known`, what the home has, that of which facts say that it is on the tier, and which is not. It is looked for
    once a run, and again when the file of the attempt `own` is gone there: then somebody has emptied the place, which
    is taken anew. Superseded if another attempt was faster; StoreError."""
    if size_of(site.store, key_of(own)) is None:
        site.join_again(near, home, task=task, own=own)
    elif site.compared:
        return ()
    site.compared = True
    there = {entry.manifest.id for entry in site.entries(near)}
    return tuple(
        entry
        for entry in known()
        if entry.manifest.id not in there
        and entry.folder not in site.unreadable
        and any(copy.tier == site.name and copy.url == site.url for copy in entry.places)
    )


def tell_vanished(site: Site, gone: Sequence[Entry], tell: Tell, emit: Emit) -> None:
    """As facts, so that nobody counts on them, and once in words."""
    for entry in gone:
        manifest = entry.manifest
        tell("displaced", manifest.id, manifest.step, {"tier": site.name, "url": site.url, "why": WHY})
    if gone:
        steps = [str(entry.manifest.step) for entry in gone]
        named = ", ".join(steps[:NAMED_MAX]) + (", …" if len(steps) > NAMED_MAX else "")
        error = f"copies that were there are gone, which nobody was told of: {len(gone)} (of step {named})"
        kept = "what the root has; what is saved from now on goes there again"
        emit(Failed(what=f"looking at the tier {site.name}", error=error, kept=kept))
