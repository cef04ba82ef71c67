"""Fetching: what a tier has, and the root has not, is brought home before a run begins there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote

from mementum.clock import Clock
from mementum.errors import MementumError, NothingToResume, StoreError
from mementum.events import Emit, Failed, Fetched, PassedOver, PhaseBegan, PhaseEnded
from mementum.execute.halves import mark_name
from mementum.opening import Opened
from mementum.places import Site
from mementum.placing import Copied, place
from mementum.records import Damage, Entry, record
from mementum.recover.choose import candidates

GB = 1e9  # bytes
SHOWN_MAX = 10  # manifests in a message
KEPT = "all checkpoints, there and in the root, as they are; nothing was begun"


@record
class Offer:
    """A checkpoint as it lies on a tier."""

    site: Site
    entry: Entry


def bring_best(opened: Opened, known: Sequence[Entry], *, clock: Clock, emit: Emit) -> Mapping[str, str]:
    """Fetch what is better than all that the root has: a run on a new machine, or behind a disk that was lost, goes on
    from there. The tiers by the ids of what was fetched. `known`: what the root has.

    The best of all tiers comes first, from each tier that has it until one of them gives it whole. One that is damaged
    everywhere is told, and the next one is tried. NothingToResume where it cannot be had now, or where all are damaged
    and the root has none: to begin elsewhere without a word would leave it behind for good."""
    own = _exact(known)
    offers = _offers(opened, own)
    if not offers and not candidates(known):
        _require_read(opened)
    whole = [entry for entry in known if entry.damaged is None]
    tried: list[Entry] = []
    for entry in candidates([*whole, *(some[0].entry for some in offers.values())]):
        if entry.manifest.id in own:
            return {}
        fetched = _fetch_any(opened, offers[entry.manifest.id], clock, emit)
        if fetched is not None:
            return fetched
        tried.append(entry)
    if tried and not candidates(known):
        raise NothingToResume(
            f"task {opened.task!r} has checkpoints on its tiers only, and none is whole: they were told above",
            kept=KEPT,
            next_command='`mementum verify` of each tier shows all damage; resume="never" begins anew beside them',
        )
    return {}


def tell_unread(opened: Opened, emit: Emit) -> None:
    """Tell of each manifest on a tier that is not what was written."""
    for site, damage in _unread(opened):
        emit(PassedOver(id=f"{damage.key} on {site.name}", what=damage.what))


def _unread(opened: Opened) -> list[tuple[Site, Damage]]:
    return [(site, damage) for site in opened.places.joined() for damage in site.damage]


def _require_read(opened: Opened) -> None:
    """NothingToResume where the tiers have the task, and what they have of it cannot be read."""
    lines = [f"  {site.name}: {damage.key}: {damage.what}" for site, damage in _unread(opened)]
    silent = [site for site in opened.places.sites if site.knows_it and site.missed]
    lines += [f"  {site.name} has the task, and could not be read" for site in silent]
    if lines:
        raise NothingToResume(
            f"task {opened.task!r} has checkpoints on its tiers only, and none can be read (more was told above):\n"
            + "\n".join(lines[:SHOWN_MAX]),
            kept=KEPT,
            next_command='`mementum doctor` of each tier; start again when it answers; resume="never" begins anew',
        )


def bring_this(opened: Opened, id: str, known: Sequence[Entry], *, clock: Clock, emit: Emit) -> Mapping[str, str]:
    """Fetch a checkpoint that the run is to go back to, if a tier alone has it. NothingToResume where it cannot be had
    now."""
    some = _offers(opened, _exact(known)).get(id)
    return {} if some is None else _fetch_any(opened, some, clock, emit) or {}


def _exact(known: Sequence[Entry]) -> set[str]:
    """Ids of what the root has in full: what has grown old there may be in full on a tier."""
    return {entry.manifest.id for entry in candidates(known)}


def _offers(opened: Opened, own: set[str]) -> dict[str, list[Offer]]:
    """What tiers have of what can be resumed exactly and the root has not, by id; whole ones first."""
    found: dict[str, list[Offer]] = {}
    for site in opened.places.joined():
        for entry in candidates(site.entries(opened.store)):
            if entry.manifest.id not in own:
                found.setdefault(entry.manifest.id, []).append(Offer(site=site, entry=entry))
    for some in found.values():
        some.sort(key=lambda offer: offer.entry.damaged is not None)
    return found


def _fetch_any(opened: Opened, some: Sequence[Offer], clock: Clock, emit: Emit) -> Mapping[str, str] | None:
    """The tier that gave it, by its id; None where it is damaged on each of them, which was told."""
    failures: list[str] = []
    for offer in some:
        try:
            if _fetch(opened, offer, clock, emit):
                return {offer.entry.manifest.id: offer.site.name}
        except MementumError as error:
            failures.append(f"  from {offer.site.name}: {error.message}")
    if not failures:
        return None
    id, step = some[0].entry.manifest.id, some[0].entry.manifest.step
    raise NothingToResume(
        f"task {opened.task!r} is to go on from checkpoint {id} of step {step}, which could not be fetched:\n"
        + "\n".join(failures),
        kept=KEPT,
        next_command=f"start again when that is mended (`df -h {quote(opened.store.folder)}` shows the room of the "
        'root\'s disk); to go on without it, leave the tier out; resume="never" begins anew',
    )


def _fetch(opened: Opened, offer: Offer, clock: Clock, emit: Emit) -> bool:
    entry, site = offer.entry, offer.site
    id, step, began_s = entry.manifest.id, entry.manifest.step, clock.monotonic()
    _require_room(opened, entry)
    emit(PhaseBegan(phase="fetch", id=id))
    try:
        done = place(entry, source=site.prompt, target=opened.store, require_newest=_nobody, pause=_goes_on)
    finally:
        duration_s = clock.monotonic() - began_s
        emit(PhaseEnded(phase="fetch", id=id, duration_s=duration_s))
    if not isinstance(done, Copied):
        what, kept = f"fetching {id} of step {step} from {site.name}", "what the root has; the next one is tried"
        emit(Failed(what=what, error=done.reason, kept=kept))
        return False
    opened.catalog.add(opened.home, done.manifest, done.folder)
    emit(Fetched(id=id, step=step, tier=site.name, size=done.manifest.size, duration_s=duration_s))
    return True


def _require_room(opened: Opened, entry: Entry) -> None:
    """StoreError before anything is sent, where the root's disk has not even room for what lies on the tier: a copy
    would fill it up for everybody, and be cut off all the same."""
    store, manifest = opened.store, entry.manifest
    there = {stat.key.rpartition("/")[2]: stat.size for stat in store.list(f"{entry.folder}/")}
    begun = sum(there.values()) if mark_name(manifest.id) in there else 0
    needed, free = manifest.size - begun, store.usage().free
    if needed > free:
        what = f"it needs {needed / GB:.3g} GB, and the disk of {store.folder} has {free / GB:.3g} GB free"
        raise StoreError(entry.folder, what, kept="what the root has", next_command=f"df -h {quote(store.folder)}")


def _nobody() -> None:
    """Nobody can supersede the holder of a task in its own root."""


def _goes_on() -> None:
    """A start waits for it."""
