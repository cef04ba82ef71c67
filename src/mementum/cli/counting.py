"""Counting: the bytes of a task's folder, each once, by what they are of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mementum.format import generations
from mementum.format.levels import level_of
from mementum.records import Entry, Verdict, record
from mementum.recover.verify import CONTEXT
from mementum.storage.store import Store

SECTOR = 512  # bytes; in these stat(2) counts what a file takes on the disk, whatever the disk's own blocks are
LEVELS = ("weights", "optimizer", "context")  # by number
RECORDS = "records"  # manifests, indexes, journals, vital signs
LEFT_OVER = "left over"  # what no manifest names: of a save that is under way, or that was cut off
KINDS = (*LEVELS, RECORDS, LEFT_OVER)


@record
class Piece:
    """An object. `same`: what tells its bytes from others; names of one file share it. `disk`: what it takes there, in
    bytes, where that is known."""

    key: str
    size: int
    same: str
    disk: int | None


@record
class Count:
    """The bytes of a task's folder. `kinds` and `size` count each byte once; `named` counts it for every checkpoint
    that names it; `disk` is what the file system gave for them, None where nobody can say."""

    checkpoints: int
    kinds: Mapping[str, int]
    size: int
    named: int
    named_once: int
    disk: int | None


def pieces(store: Store) -> tuple[Piece, ...]:
    """All objects of a task's folder."""
    return tuple(_pieces(store))


def _pieces(store: Store) -> Iterator[Piece]:
    for stat in store.list():
        path = store.locate(stat.key)
        if path is None:
            yield Piece(key=stat.key, size=stat.size, same=stat.key, disk=None)
            continue
        try:
            found = path.stat()
        except FileNotFoundError:  # its training has removed it since
            continue
        same = f"{found.st_dev}:{found.st_ino}"
        yield Piece(key=stat.key, size=found.st_size, same=same, disk=found.st_blocks * SECTOR)


def count(entries: Sequence[Entry], found: Sequence[Piece]) -> Count:
    """What is in them. `entries`: the task's checkpoints."""
    by_key = {piece.key: piece for piece in found}
    named = [by_key[key] for entry in entries for key in keys_of(entry) if key in by_key]
    kinds = dict.fromkeys(KINDS, 0)
    known = {piece.key for piece in named}
    once = _once(found)
    for piece in once:
        kinds[_kind(piece.key, known)] += piece.size
    disks = [piece.disk for piece in once if piece.disk is not None]
    return Count(
        checkpoints=len(entries),
        kinds=kinds,
        size=sum(piece.size for piece in once),
        named=sum(piece.size for piece in named),
        named_once=sum(piece.size for piece in _once(named)),
        disk=sum(disks) if len(disks) == len(once) else None,
    )


def freed(entries: Sequence[Entry], verdicts: Sequence[Verdict], found: Sequence[Piece]) -> int:
    """Bytes that come free when what the verdicts do not keep is removed: those that nothing else has."""
    gone = {verdict.id for verdict in verdicts if not verdict.keep}
    by_key = {piece.key: piece for piece in found}
    stays = {
        by_key[key].same
        for entry in entries
        if entry.manifest.id not in gone
        for key in keys_of(entry)
        if key in by_key
    }
    goes = {
        by_key[key].same: by_key[key].size
        for entry in entries
        if entry.manifest.id in gone
        for key in keys_of(entry)
        if key in by_key
    }
    return sum(size for same, size in goes.items() if same not in stays)


def keys_of(entry: Entry) -> tuple[str, ...]:
    """All that belongs to a checkpoint, wherever it lies."""
    manifest = f"{entry.folder}/{generations.manifest_name(entry.manifest.generation)}"
    return (*(generations.key_of(entry.folder, file) for file in entry.manifest.files), manifest)


def _once(found: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple({piece.same: piece for piece in reversed(found)}.values())


def _kind(key: str, named: set[str]) -> str:
    folder, slash, name = key.partition("/")
    if not slash or not folder.startswith("step_"):
        return RECORDS
    if key not in named:
        return LEFT_OVER
    if CONTEXT.fullmatch(name):
        return LEVELS[2]
    return RECORDS if name.endswith(".json") else LEVELS[level_of(name)]
