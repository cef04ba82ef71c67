"""Protection: which checkpoints nothing may take, whoever asks: retention, ageing or the search for room."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from mementum.records import Entry, Granularity, Health

NOTHING: Mapping[str, str] = MappingProxyType({})


def protected(entries: Sequence[Entry], *, waiting: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Reasons by id, of all that must stay: what is damaged, pinned (also by a release, whose pin is `release:NAME`) or
    `waiting` for something, and of the whole exact ones the newest, the newest clean one, and the newest of all and of
    the clean ones of which every byte was read and found whole. With them all whose files they need."""
    found = {**newest_of_their_kind(entries)}
    found |= {entry.manifest.id: _pinned(entry) for entry in entries if entry.pinned is not None}
    found |= {id: why for id, why in waiting.items() if any(entry.manifest.id == id for entry in entries)}
    found |= {entry.manifest.id: _damaged(entry) for entry in entries if entry.damaged is not None}
    return {**needed_by(entries, found), **found}


def unforced(entry: Entry, waiting: Mapping[str, str]) -> str | None:
    """Why it stays for what is known of it alone, or None: nothing that is known of others is looked at."""
    if entry.damaged is not None:
        return _damaged(entry)
    if entry.pinned is not None:
        return _pinned(entry)
    return waiting.get(entry.manifest.id)


def newest_of_their_kind(entries: Sequence[Entry]) -> dict[str, str]:
    """Reasons by id, of the whole ones that a resume, or a person who mistrusts the newest, would take first."""
    whole = sorted((entry for entry in entries if entry.damaged is None), key=lambda entry: entry.order, reverse=True)
    exact = [entry for entry in whole if is_exact(entry)]
    clean = [entry for entry in exact if is_clean(entry)]
    found: dict[str, str] = {}
    if not exact and whole:  # as on a tier of weights alone: of what there is, not all may go
        found[whole[0].manifest.id] = "the newest one"
    for some, reason in (
        (exact, "the newest full one"),
        (clean, "the newest full one that is clean"),
        ([entry for entry in exact if entry.verified is not None], "the newest full one that was verified"),
        ([entry for entry in clean if entry.verified is not None], "the newest clean full one that was verified"),
    ):
        if some:
            found.setdefault(some[0].manifest.id, reason)
    return found


def needed_by(entries: Sequence[Entry], kept: Collection[str]) -> dict[str, str]:
    """Reasons by id, of those that are not kept and whose files a kept one names: bases of deltas, frozen weights. What
    such a one names in its turn is needed too, since it stays whole."""
    owners = {entry.folder: entry for entry in entries}
    found: dict[str, str] = {}
    looking = [entry for entry in entries if entry.manifest.id in kept]
    while looking:
        entry = looking.pop()
        for folder in folders_named(entry):
            owner = owners.get(folder)
            if owner is not None and owner.manifest.id not in kept and owner.manifest.id not in found:
                found[owner.manifest.id] = f"checkpoint {entry.manifest.id} needs its files"
                looking.append(owner)
    return found


def folders_named(entry: Entry) -> Iterator[str]:
    """Those of other checkpoints, whose files it names; each once."""
    yield from dict.fromkeys(file.folder for file in entry.manifest.files if file.folder not in (None, entry.folder))


def is_exact(entry: Entry) -> bool:
    return entry.manifest.granularity is Granularity.FULL


def is_clean(entry: Entry) -> bool:
    return entry.health is Health.CLEAN


def _pinned(entry: Entry) -> str:
    return f"pinned: {entry.pinned}"


def _damaged(entry: Entry) -> str:
    return f"damaged ({entry.damaged}): left for a person"
