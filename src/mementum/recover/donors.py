"""Donors: places that have a copy of a checkpoint, and the good bytes that they give for a damaged one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from mementum.errors import AccessRefused, KeyMissing, MementumError, StoreError, Unreachable
from mementum.format import blocks, generations, index
from mementum.format import manifest as manifests
from mementum.format.generations import key_of
from mementum.format.index import raw_sizes
from mementum.format.levels import standard_name
from mementum.format.manifest import digest
from mementum.records import Block, Buffer, Damage, DataFile, Index, Manifest, StoredFile, record
from mementum.recover.verify import INDEX, base_of, numbered_block, read_manifest
from mementum.storage.store import Store

STEP = re.compile(r"(step_\d{10,19})(?:-\d+)?")
RAW = "raw"
T = TypeVar("T")
Counted = Callable[[], Buffer | None]  # the raw bytes that a block was coded against


@record
class Donor:
    """A place that may have a copy. `name`: for people."""

    name: str
    store: Store


@record
class Copy:
    """What a donor has of a checkpoint. None and nothing where it cannot be proved: its bytes may be good all the same.
    `data`: the manifest's file."""

    folder: str
    manifest: Manifest | None
    data: bytes
    indexes: tuple[Index, ...]


@record
class Given:
    """Good bytes, and the name of the donor."""

    data: Buffer
    donor: str


class Donors:
    """What other places have of one checkpoint. A place that does not answer is not asked again; `silent` says why."""

    def __init__(self, donors: Sequence[Donor], *, id: str, folder: str) -> None:
        """`folder`: where the damaged one lies."""
        self.silent: dict[str, str] = {}
        self._donors, self._id, self._folder = tuple(donors), id, folder
        self._copies: dict[tuple[str, str | None], Copy | None] = {}

    def copies(self) -> Iterator[tuple[Donor, Copy]]:
        """Those whose manifest is this checkpoint's."""
        for donor in self._donors:
            copy = self._copy(donor, None)
            if copy is not None and copy.manifest is not None and copy.manifest.id == self._id:
                yield donor, copy

    def small(self, file: StoredFile) -> Given | None:
        """An index or a context, whatever it is called there."""
        for donor in self._donors:
            copy = self._copy(donor, None)
            if copy is None:
                continue
            named = () if copy.manifest is None else copy.manifest.files
            for name in dict.fromkeys((*(one.name for one in named if one.digest == file.digest), file.name)):
                data = self._get(donor, f"{copy.folder}/{name}")
                if data is not None and digest(data) == file.digest:
                    return Given(data=bytes(data), donor=donor.name)
        return None

    def raw_index(self, wanted: Manifest, file: StoredFile) -> Given | None:
        """The index of a checkpoint that lies raw, made of that of a copy in another encoding: it has the digests of
        the decoded bytes too."""
        for donor, copy in self.copies():
            for held in copy.indexes:
                made = _as_raw(held, wanted)
                if made is not None and digest(index.render(made)) == file.digest:
                    return Given(data=index.render(made), donor=donor.name)
        return None

    def block(self, file: DataFile, number: int, counted: Counted) -> Given | None:
        """The stored bytes of a block: as they lie there, else made anew from what they are decoded. Only what has the
        block's own digest is given. `counted`: see there."""
        wanted = file.blocks[number]
        for donor in self._donors:
            for key, held, _ in self._counterparts(donor, file):
                theirs = held.blocks[number]
                if (theirs.digest, theirs.size) == (wanted.digest, wanted.size):
                    data = self._get(donor, key, theirs.offset, theirs.size)
                    if data is not None and blocks.damage(wanted, data) is None:
                        return Given(data=bytes(data), donor=donor.name)
        for donor in self._donors:
            for key, held, bases in self._counterparts(donor, file):
                if held.blocks[number].raw_digest == wanted.raw_digest:
                    made = self._recoded(donor, key, held, bases, number, wanted, counted)
                    if made is not None:
                        return Given(data=made, donor=donor.name)
        return None

    def raw(self, file: DataFile, number: int) -> Buffer | None:
        """The decoded bytes of a block that was coded against nothing."""
        given = self.block(file, number, lambda: None)
        return None if given is None else blocks.decode(file.blocks[number], given.data)

    def _recoded(
        self,
        donor: Donor,
        key: str,
        held: DataFile,
        bases: Sequence[DataFile],
        number: int,
        wanted: Block,
        counted: Counted,
    ) -> Buffer | None:
        raw = self._asked(donor, lambda: numbered_block(donor.store, key, held, base_of(held, bases), number))
        if raw is None or isinstance(raw, Damage):
            return None
        try:
            made, stored = blocks.encode_block(raw, wanted.codec, offset=wanted.offset, base=counted())
        except MementumError:  # a codec that is not here
            return None
        return bytes(stored) if made.digest == wanted.digest else None

    def _counterparts(self, donor: Donor, file: DataFile) -> Iterator[tuple[str, DataFile, Sequence[DataFile]]]:
        """Files of the same raw stream, cut alike: by what the donor's index says, and, if that is lost, at the place
        that ours has. What they hold is proved block by block."""
        copy = self._copy(donor, file.folder)
        if copy is None:
            return
        for held in copy.indexes:
            for one in held.files:
                if _plain(one.name) == _plain(file.name) and raw_sizes(one) == raw_sizes(file):
                    yield key_of(copy.folder, one), one, held.bases
        yield f"{copy.folder}/{file.name}", file, ()

    def _copy(self, donor: Donor, owner: str | None) -> Copy | None:
        """`owner`: the folder of another checkpoint, one of whose files is wanted."""
        if (donor.name, owner) not in self._copies:
            self._copies[donor.name, owner] = self._asked(donor, lambda: self._look(donor.store, owner))
        return None if donor.name in self.silent else self._copies[donor.name, owner]

    def _look(self, store: Store, owner: str | None) -> Copy:
        folder = owner or folder_of(store, self._id, self._folder) or self._folder
        found = read_manifest(store, folder)
        if isinstance(found, Damage):
            return Copy(folder=folder, manifest=None, data=b"", indexes=())
        data = bytes(store.get(f"{folder}/{generations.manifest_name(found.generation)}", 0, manifests.READ_MAX))
        indexes: list[Index] = []
        for file in found.files:
            if INDEX.fullmatch(file.name):
                try:
                    text = store.get(f"{folder}/{file.name}")
                    if digest(text) == file.digest:
                        indexes.append(index.parse(text, file.name))
                except (Unreachable, AccessRefused):
                    raise
                except MementumError:  # its blocks are looked for where ours say
                    continue
        return Copy(folder=folder, manifest=found, data=data, indexes=tuple(indexes))

    def _get(self, donor: Donor, key: str, start: int = 0, size: int | None = None) -> memoryview | None:
        return self._asked(donor, lambda: donor.store.get(key, start, size))

    def _asked(self, donor: Donor, ask: Callable[[], T]) -> T | None:
        """None where it has not what is asked for, or does not answer."""
        if donor.name in self.silent:
            return None
        try:
            return ask()
        except KeyMissing:
            return None
        except (Unreachable, AccessRefused) as error:
            self.silent[donor.name] = error.message
            return None
        except MementumError:  # that piece cannot be read there: others may
            return None


def folder_of(store: Store, id: str, folder: str) -> str | None:
    """The folder in which a checkpoint lies that lies in `folder` elsewhere; None if none of its step says so."""
    match = STEP.fullmatch(folder)
    if match is None:
        return None
    names: dict[str, list[str]] = {folder: []}
    for stat in store.list(match[1]):
        name, _, file = stat.key.partition("/")
        if name == match[1] or name.startswith(f"{match[1]}-"):
            names.setdefault(name, []).append(file)
    for name, files in names.items():
        for standing in reversed(generations.standing(files)):
            try:
                if manifests.has_id(store.get(f"{name}/{standing}", 0, manifests.HEAD), id):
                    return name
            except (Unreachable, AccessRefused):
                raise
            except StoreError:  # it was removed since it was listed, or its disk does not give it
                continue
    return None


def _plain(name: str) -> str:
    """A file's name without the generation that brought it, and without the sign of being coded."""
    return generations.part_name(standard_name(name), 1)


def _as_raw(held: Index, wanted: Manifest) -> Index | None:
    """The index as it is where all files lie raw under the names that `wanted` has for them."""
    names = {_plain(file.name): file for file in wanted.files if file.digest is None}
    files: list[DataFile] = []
    for file in held.files:
        ours = names.get(_plain(file.name))
        if ours is None or ours.size != sum(raw_sizes(file)):
            return None
        starts = itertools.accumulate(raw_sizes(file), initial=0)
        made = tuple(
            Block(
                offset=start,
                size=block.raw_size,
                raw_size=block.raw_size,
                codec=RAW,
                digest=block.raw_digest,
                raw_digest=block.raw_digest,
            )
            for start, block in zip(starts, file.blocks, strict=False)
        )
        files.append(DataFile(name=ours.name, size=ours.size, blocks=made, folder=ours.folder))
    now = {old.name: new.name for old, new in zip(held.files, files, strict=True)}
    tensors = tuple(replace(tensor, file=now[tensor.file]) for tensor in held.tensors)
    return Index(rank=held.rank, files=tuple(files), tensors=tensors)
