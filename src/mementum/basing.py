"""Basing: which file of an older checkpoint a data file is coded against, if that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mementum.errors import MementumError, UnknownFormat
from mementum.execute.compress import Pause, Widths
from mementum.execute.transfer import go_on
from mementum.format import blocks, generations
from mementum.format.codec import for_width
from mementum.format.generations import key_of
from mementum.format.levels import is_cut_alike, level_of, standard_name
from mementum.records import Buffer, Damage, DataFile, Entry, Health, Index, Manifest, record
from mementum.recover.verify import base_of, numbered_block, raw_block, read_index, read_manifest
from mementum.storage.store import Store

BASE_SPAN = 8  # checkpoints back, at most: differences grow with every step, and a base must stay while one needs it
SAMPLES = 8  # blocks, spread over the file, that tell what the whole of it would gain
# A base that retention keeps for its deltas alone costs a checkpoint. Of ten that are kept about nine would be deltas,
# of whose bytes the optimizer's state is two thirds: below a seventh they save less than it costs.
SAVES_LEAST = 0.15


class Whole:
    """A whole file of an older checkpoint, whose raw blocks others of the same numbers are coded against."""

    def __init__(self, store: Store, checkpoint: str, folder: str, file: DataFile) -> None:
        self.checkpoint = checkpoint
        self.file = replace(file, folder=folder)
        self.key = key_of(folder, self.file)
        self._store = store

    def raw(self, number: int) -> Buffer:
        """A block, proved. UnknownFormat if it is damaged."""
        found = raw_block(self._store, self.key, self.file.blocks[number])
        if isinstance(found, Damage):
            raise UnknownFormat(f"{found.key}: {found.what}")
        return found


@record
class Wanted:
    """A data file that is to be coded in a codec with a delta: the checkpoint whose file it is, its index, and where
    that lies."""

    entry: Entry
    proof: Index
    file: DataFile
    codec: str
    source: Store

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the numbers in its blocks."""
        tensors = [tensor for tensor in self.proof.tensors if tensor.file == self.file.name]
        return Widths(tensors).of_all(self.file)


def choose(wanted: Wanted, others: Sequence[Entry], store: Store, pause: Pause) -> Whole | str:
    """The file of one of the `others`, which lie in `store`, oldest first, that it is coded against; or why none is.
    UnknownFormat if a block of its own is damaged."""
    base = _find(wanted, others, store)
    if base is None:
        return f"none of the {BASE_SPAN} checkpoints before it holds the same tensors, whole"
    share = _saved(wanted, base, pause)
    if isinstance(share, str):
        return share
    if share < SAVES_LEAST:
        return f"the difference from {base.checkpoint} would save {share:.1%}"
    return base


def _find(wanted: Wanted, others: Sequence[Entry], store: Store) -> Whole | None:
    """The newest older file of the same tensors, in the same places, that needs no base itself. Of a clean checkpoint
    only: it may have to stay for the sake of this one."""
    older = [other for other in others if other.order < wanted.entry.order]
    for other in reversed(older[-BASE_SPAN:]):
        usable = other.damaged is None and other.health is Health.CLEAN
        if usable and level_of(wanted.file.name) in other.manifest.levels:
            found = _alike(other, wanted.proof, wanted.file.name, store)
            if found is not None:
                return found
    return None


def _alike(other: Entry, proof: Index, name: str, store: Store) -> Whole | None:
    """What cannot be read is no base, and for verification to tell."""
    try:
        manifest = read_manifest(store, other.folder)
        if not isinstance(manifest, Manifest) or manifest.id != other.manifest.id:
            return None
        held = read_index(store, other.folder, manifest)
        sizes = {stat.key: stat.size for stat in store.list(f"{other.folder}/")}
    except MementumError:
        return None
    if not isinstance(held, Index):
        return None
    for file in held.files:
        whole = file.base is None and file.folder is None and sizes.get(key_of(other.folder, file)) == file.size
        if whole and _plain(file.name) == _plain(name) and is_cut_alike(proof, held, name, file.name):
            return Whole(store, manifest.id, other.folder, file)
    return None


def _plain(name: str) -> str:
    """A file's name without the generation that brought it, and without the sign of being coded."""
    return generations.part_name(standard_name(name), 1)


def _saved(wanted: Wanted, base: Whole, pause: Pause) -> float | str:
    """The part of its size that a delta saves over the same codec without one, measured on some blocks: never less than
    0, as a block that it does not shorten goes without. In words what is wrong with the base."""
    file, widths = wanted.file, wanted.widths
    own = base_of(file, wanted.proof.bases)
    key = key_of(wanted.entry.folder, file)
    plain = counted = 0
    for number in range(0, len(file.blocks), max(1, len(file.blocks) // SAMPLES)):
        go_on(pause)
        raw = numbered_block(wanted.source, key, file, own, number)
        if isinstance(raw, Damage):
            raise UnknownFormat(f"{raw.key}: {raw.what}")
        try:
            against = base.raw(number)
        except UnknownFormat as error:
            return error.message
        spec = for_width(wanted.codec, widths[number])
        plain += blocks.encode_block(raw, spec, offset=0)[0].size
        counted += blocks.encode_block(raw, spec, offset=0, base=against)[0].size
    return 1 - counted / plain if plain else 0.0
