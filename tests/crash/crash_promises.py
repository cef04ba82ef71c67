"""What must hold of a task's folder on any disk that could be found after a fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from crash_saves import FOLDER, HOME, Process, number_of, snapshot_of

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.errors import MementumError
from mementum.execute.snapshot import Snapshot
from mementum.format import index
from mementum.format import manifest as manifests
from mementum.records import Block, Buffer, Damage, Entry, StoredTensor
from mementum.recover.verify import read_blocks, read_manifest, verify
from mementum.storage.disk import Disk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store

GENERATION = re.compile(r"meta-\d+\.json")
TEMP = re.compile(r"\.[0-9a-f]{8}\.tmp")
AFTERWARDS = 900  # the number and the step of the save that must succeed once the faults have stopped


class BrokenPromise(Exception):
    """Something does not hold that we said would, on any disk and after any fault that we know of."""


def numbers(told: Iterable[str], what: str) -> set[int]:
    """The numbers of the words `what 3`."""
    return {int(number) for word, _, number in (each.partition(" ") for each in told) if word == what}


def broken(disk: Disk, told: frozenset[str], *, catalog: Catalog, home: str = HOME) -> str | None:
    """The first promise that does not hold, or None. Nothing on the disk is changed.

    `home` in `catalog`, whatever it says before, is refreshed and must then say what the manifests say."""
    store = LocalStore(disk, FOLDER)
    entries: list[Entry] = []
    for folder in sorted(set(folders_with_manifest(store))):
        manifest = read_manifest(store, folder)
        if isinstance(manifest, Damage):
            return f"listed and damaged: {manifest.key}: {manifest.what}"
        entries.append(Entry(manifest=manifest, folder=folder))
        for what in damage_of(store, entries[-1]):
            return f"listed and damaged: {what}"
    for damage in refresh(catalog, home, store):
        return f"listed and damaged: {damage.key}: {damage.what}"
    in_catalog = [(entry.folder, entry.manifest) for entry in catalog.entries(home)]
    if in_catalog != [(entry.folder, entry.manifest) for entry in sorted(entries, key=lambda entry: entry.order)]:
        return "a catalog that was refreshed differs from the manifests"
    listed = {number_of(entry.manifest.id): entry.manifest.generation for entry in entries}
    return next(_lost(store, told, listed), None)


def folders_with_manifest(store: Store) -> Iterator[str]:
    for stat in store.list("step_"):
        folder, _, name = stat.key.partition("/")
        if name == manifests.NAME or GENERATION.fullmatch(name):
            yield folder


def damage_of(store: Store, entry: Entry) -> Iterator[str]:
    """What verification finds in a listed checkpoint, and where it differs from what was handed over."""
    manifest = entry.manifest
    for damage in verify(store, entry.folder, manifest, deep=True):
        yield f"{damage.key}: {damage.what}"
        return
    snapshot = snapshot_of(number_of(manifest.id), step=manifest.step)
    (name,) = (file.name for file in manifest.files if file.name.startswith("index-"))
    proof = index.parse(store.get(f"{entry.folder}/{name}"))
    places = [(tensor.component, tensor.name, tensor.offset, tensor.size) for tensor in proof.tensors]
    if places != [(each.component, each.name, each.offset, each.size) for each in _tensors(snapshot)]:
        yield f"{entry.folder}: the index has other tensors"
    for image, file in zip(snapshot.images, proof.files, strict=True):
        pieces: list[bytes] = []

        def take(_: Block, raw: Buffer, pieces: list[bytes] = pieces) -> None:
            pieces.append(bytes(raw))

        read_blocks(store, entry.folder, file, take, bases=proof.bases)
        if b"".join(pieces) != image.raw:
            yield f"{entry.folder}/{file.name}: other bytes than were saved"
    if bytes(store.get(f"{entry.folder}/context-00000.json")) != snapshot.context():
        yield f"{entry.folder}: another context"


def _tensors(snapshot: Snapshot) -> Iterator[StoredTensor]:
    for image in snapshot.images:
        yield from image.layout.tensors


def _lost(store: Store, told: frozenset[str], generations: Mapping[int, int]) -> Iterator[str]:
    """`generations` are those of the listed checkpoints."""
    listed = generations.keys()
    saved = numbers(told, "saved")
    for number in sorted(saved - numbers(told, "removing") - listed):
        yield f"acknowledged and lost: checkpoint {number}"
    if saved and max(saved) not in listed:
        yield f"the newest checkpoint was removed: {max(saved)}"
    settled = {entry_number for entry_number, generation in generations.items() if generation > 1}
    for number in sorted((numbers(told, "settled") & listed) - settled):
        yield f"settled and uncompressed again: checkpoint {number}"
    for number in sorted(numbers(told, "removed") & listed):
        yield f"removed and back again: checkpoint {number}"
    read = {fact.step for stat in store.list("journal/") for fact in facts.parse(store.get(stat.key))}
    for number in sorted(numbers(told, "fact") - read):
        yield f"acknowledged and lost: fact {number}"


def unrecovered(disk: Disk, told: frozenset[str], *, catalog: Catalog, home: str = HOME) -> str | None:
    """What is wrong after the next process start has claimed, swept and saved; None if all is well."""
    try:
        process = Process(disk, set(told), catalog=catalog, home=home)
        attempt = process.claim()
        if attempt <= max(numbers(told, "claimed"), default=0):
            return f"attempt {attempt} was claimed before"
        process.sweep()
        process.save(AFTERWARDS, step=AFTERWARDS)
    except MementumError as error:
        return f"the next start fails: {error.message}"
    left = leftovers(disk)
    if left:
        return f"left after a sweep: {', '.join(left)}"
    return broken(disk, frozenset(process.told), catalog=catalog, home=home)


def leftovers(disk: Disk) -> list[str]:
    """Names that no manifest stands for: unfinished files, parts without a manifest, empty folders."""
    named: set[str] = set()
    for name in disk.listdir(FOLDER):
        if name.startswith("step_"):
            manifest = read_manifest(LocalStore(disk, FOLDER), name.rstrip("/"))
            if not isinstance(manifest, Damage):
                held = manifests.NAME if manifest.generation == 1 else f"meta-{manifest.generation}.json"
                named |= {name, name + held, *(name + file.name for file in manifest.files)}
    found = names_under(disk, FOLDER)
    return [name for name in found if name.endswith(".tmp") or (name.startswith("step_") and name not in named)]


def content_of(disk: Disk) -> frozenset[tuple[str, bytes]]:
    """All files and folders; the random part of an unfinished file's name is left out."""
    return frozenset(
        (TEMP.sub(".tmp", name), b"" if name.endswith("/") else disk.read(f"/{name}")) for name in names_under(disk, "")
    )


def names_under(disk: Disk, folder: str, inside: str = "") -> list[str]:
    """All names, those of folders with a slash."""
    found: list[str] = []
    for name in disk.listdir(f"{folder}/{inside}"):
        found.append(inside + name)
        if name.endswith("/"):
            found += names_under(disk, folder, inside + name)
    return found
