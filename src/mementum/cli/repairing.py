"""Repairing: `mementum repair`, which puts damaged checkpoints right from copies on other places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

from mementum.catalog.noted import from_outside
from mementum.cli.copies import Copies, copies_in, known_tiers
from mementum.cli.failing import INTEGRITY, OK, warn
from mementum.cli.listing import newest_first
from mementum.cli.reading import Contents, Held, address_in, find, look
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable, size
from mementum.clock import Clock, SystemClock, timestamp
from mementum.errors import MementumError, NoSuchAddress, StoreError, UsageError
from mementum.execute.commit import new_id
from mementum.records import Fact, record
from mementum.recover.donors import Donor, folder_of
from mementum.repairing import Intact, Repaired, Unrepairable
from mementum.repairing import repair as mend
from mementum.rooting import local_folder, part_of
from mementum.storage.store import Store

ROOT = "the root"  # what it is called among the places
RANGES_MAX = 20  # of lost bytes, for people; programs get all


@record
class Outcome:
    """What became of a checkpoint's copy in a place."""

    held: Held
    done: Intact | Repaired | Unrepairable


@record
class Asked:
    """What is to be done. `where`: the tier whose copies are repaired; None: the root's."""

    where: str | None
    sources: tuple[str, ...]
    dry_run: bool


def repair(root: str, address: str | None, asked: Asked, *, as_json: bool, clock: Clock | None = None) -> int:
    """Repair what the address means, or all that is known to be damaged; the exit code."""
    local_folder(root)  # facts are written there
    contents = look(root)
    target = None if asked.where is None else copies_in(contents, asked.where)
    try:
        chosen = _chosen(contents, address, target)
    except NoSuchAddress as missing:
        _tell_who_has(contents, root, address, asked.sources, missing)
        raise
    places = _places(contents, asked.sources, target)
    if not places and target is None and chosen:
        raise UsageError(
            f"no copies of checkpoints in {contents.root.name} are known",
            next_command="say where some are, with --from URL",
        )
    outcomes: list[Outcome] = []
    for held in chosen:
        one = _repair(contents, held, target, places, asked, clock or SystemClock())
        if one is None:
            continue
        outcomes.append(one)
        if not as_json:
            print("\n".join(printable(line) for line in _lines(one, target, asked)), flush=True)
    if not asked.dry_run and any(isinstance(one.done, Repaired) for one in outcomes):
        look(root)  # so that the catalog knows of it
    if as_json:
        print(rendered({"dry_run": asked.dry_run, "checkpoints": [_fields(one, target) for one in outcomes]}))
    elif not outcomes:
        print("nothing is known to be damaged; mementum verify looks for damage")
    else:
        print(_end(outcomes, asked))
    return INTEGRITY if any(isinstance(one.done, Unrepairable) for one in outcomes) else OK


def _chosen(contents: Contents, address: str | None, target: Copies | None) -> Sequence[Held]:
    meant = address_in(contents, address)
    if meant.selector is not None:
        return [find(contents, meant)]
    if meant.task is not None:
        contents = contents.of(meant.task)
    every = newest_first(contents.held)
    if target is None:
        return [held for held in every if held.damaged is not None]
    return [
        held
        for held in every
        if any(place.tier == target.name and place.damaged is not None for place in held.entry.places)
    ]


def _tell_who_has(
    contents: Contents, root: str, address: str | None, sources: Sequence[str], missing: NoSuchAddress
) -> None:
    """NoSuchAddress with the way back, if a tier has what the root has no manifest of any more: there is nothing to
    repair, and it can be brought."""
    for text in sources or known_tiers(contents):
        try:
            place = copies_in(contents, text)
            there = look(place.url)
            find(there, address_in(there, address))
        except MementumError:
            continue
        raise NoSuchAddress(
            f"{missing.message}; but {place.name} has it",
            next_command=f"mementum place {quote(root)} {quote(address or '')} --from {quote(place.url)}",
        ) from missing


def _places(contents: Contents, sources: Sequence[str], target: Copies | None) -> list[Copies]:
    """Where good bytes may be: the tiers that are given, else all that are known. One that cannot be opened is told."""
    found: dict[str, Copies] = {}
    for text in sources or known_tiers(contents):
        try:
            place = copies_in(contents, text)
        except MementumError as error:
            if sources:
                raise
            warn(f"warning: {text} is not asked: {error.message}")
            continue
        if target is None or place.url != target.url:
            found[place.url] = place
    return list(found.values())


def _repair(
    contents: Contents, held: Held, target: Copies | None, places: Sequence[Copies], asked: Asked, clock: Clock
) -> Outcome | None:
    near = part_of(contents.root, held.home)
    donors = [] if target is None else [Donor(name=ROOT, store=near)]
    for place in places:
        try:
            part = place.part(held.task)
        except StoreError as error:
            warn(f"warning: {place.name} does not answer: {error.message}")
            continue
        if part is not None:
            donors.append(Donor(name=place.name, store=part))
    entry, store = held.entry, near
    if target is not None:
        far = target.part(held.task)
        if far is None:
            raise NoSuchAddress(f"{target.url} has nothing of task {held.task!r}", next_command="mementum place --help")
        folder = folder_of(far, held.id, entry.folder) or entry.folder
        entry, store = replace(entry, folder=folder), far
    done = mend(entry, store=store, donors=donors, require_newest=_nobody, pause=lambda: None, dry_run=asked.dry_run)
    if not asked.dry_run and not isinstance(done, Unrepairable):
        _note(near, held, done, target, clock)
    return Outcome(held=held, done=done)


def _note(near: Store, held: Held, done: Intact | Repaired, target: Copies | None, clock: Clock) -> None:
    now_s = clock.now()
    values = {} if target is None else {"tier": target.name}
    found = [Fact(kind="verified", time=timestamp(now_s), checkpoint=held.id, values=values)]
    if isinstance(done, Repaired):
        names = ", ".join(key.rpartition("/")[2] for key in done.keys)
        said = {**values, "from": ", ".join(done.donors), "files": names}
        found.insert(0, Fact(kind="repaired", time=timestamp(now_s), checkpoint=held.id, values=said))
    try:
        from_outside(near, new_id(now_s), found)
    except StoreError as error:
        warn(f"what was done is not recorded: {error.message}")


def _lines(one: Outcome, target: Copies | None, asked: Asked) -> Iterator[str]:
    manifest, done = one.held.entry.manifest, one.done
    name = f"{one.held.task}@{manifest.step} {manifest.id} in {ROOT if target is None else target.name}"
    if isinstance(done, Intact):
        yield f"whole      {name}"
    elif isinstance(done, Repaired):
        word = "repairable" if asked.dry_run else "repaired"
        given = f" from {', '.join(done.donors)} ({size(done.size)})" if done.donors else ""
        anew = ", as a new copy" if done.anew else ""
        yield f"{word:<10} {name}{given}{anew}"
        yield from (f"  {key}" for key in done.keys)
    else:
        yield f"damaged    {name}: {done.reason}; nothing was changed"
        yield from (f"  {damage.key}: {damage.what}" for damage in done.damage[:RANGES_MAX])
        if len(done.damage) > RANGES_MAX:
            yield f"  … and {len(done.damage) - RANGES_MAX} more"
        yield from (f"  {place} does not answer: {why}" for place, why in done.silent.items())
        yield f"  next: mementum repair ROOT {one.held.task}@{manifest.step} --from URL, if there is another copy"


def _end(outcomes: Sequence[Outcome], asked: Asked) -> str:
    mended = sum(isinstance(one.done, Repaired) for one in outcomes)
    left = sum(isinstance(one.done, Unrepairable) for one in outcomes)
    word = "could be repaired" if asked.dry_run else "repaired"
    return f"{counted(len(outcomes), 'checkpoint')} read, {mended} {word}, {left} cannot be"


def _fields(one: Outcome, target: Copies | None) -> dict[str, Any]:
    done, manifest = one.done, one.held.entry.manifest
    fields: dict[str, Any] = {
        "task": one.held.task,
        "step": manifest.step,
        "id": manifest.id,
        "tier": None if target is None else target.name,
        "outcome": "whole" if isinstance(done, Intact) else "repaired" if isinstance(done, Repaired) else "damaged",
        "files": [],
        "from": [],
        "bytes": 0,
        "anew": False,
        "reason": None,
        "damage": [],
        "silent": {},
    }
    if isinstance(done, Repaired):
        fields |= {"files": list(done.keys), "from": list(done.donors), "bytes": done.size, "anew": done.anew}
    if isinstance(done, Unrepairable):
        fields |= {"reason": done.reason, "silent": dict(done.silent)}
        fields["damage"] = [{"key": damage.key, "what": damage.what} for damage in done.damage]
    return fields


def _nobody() -> None:
    """No attempt is made here, so that none can be superseded."""
