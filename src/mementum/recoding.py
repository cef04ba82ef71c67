"""Recoding: a data file decoded and encoded anew on its way, block by block, each proved before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mementum.basing import Wanted, choose
from mementum.errors import UnknownFormat
from mementum.execute.compress import Base, GaveUp, Pause, Widths
from mementum.execute.transfer import NotWhole, go_on
from mementum.format import blocks
from mementum.format.codec import for_width, is_delta, without_delta
from mementum.records import Block, Buffer, Damage, DataFile, Entry, StoredTensor
from mementum.recover.verify import raw_blocks
from mementum.storage.store import Stat, Store

RAW = "raw"


class Recoded:
    """The bytes of a file, in which `tensors` lie, in `codec`; None: in its own, without the base that it was coded
    against. Where the codec has a delta, `base` is what it is coded against. It may be gone through again; `made` are
    the blocks of the last time. `smaller`: GaveUp ends it where the file does not become smaller."""

    def __init__(
        self,
        file: DataFile,
        tensors: Sequence[StoredTensor],
        bases: Sequence[DataFile],
        *,
        source: Store,
        folder: str,
        codec: str | None,
        pause: Pause,
        base: Base | None = None,
        smaller: bool = False,
    ) -> None:
        self.made: list[Block] = []
        self._base, self._smaller = base, smaller
        self._file, self._tensors, self._bases = file, tensors, bases
        self._source, self._folder, self._codec, self._pause = source, folder, codec, pause

    def __iter__(self) -> Iterator[Buffer]:
        self.made = []
        widths, offset = Widths(self._tensors), 0
        raws = raw_blocks(self._source, self._folder, self._file, self._bases)
        for number, old in enumerate(self._file.blocks):
            go_on(self._pause)  # which may wait: until then nothing is read
            raw = next(raws)
            if isinstance(raw, Damage):
                raise NotWhole(raw)
            counted = None if self._base is None else self._base.raw(number)
            spec = for_width(self._codec or without_delta(old.codec), widths.of_next(old))
            block, data = blocks.encode_block(raw, spec, offset=offset, base=counted)
            blocks.decode(block, data, counted)  # raises where it does not give back what was encoded
            self.made.append(block)
            offset += block.size
            yield data
        if self._smaller and offset > blocks.NOT_WORTH * self._file.size:  # told inside of the put, which then leaves
            raise GaveUp(f"{self._codec} makes {self._file.name} no smaller")  # nothing behind

    def file(self, name: str, size: int) -> DataFile:
        """The file as it was made the last time, under its new name."""
        coded = self._base is not None and any(is_delta(block.codec) for block in self.made)
        key = self._base.key if self._base is not None and coded else None
        return DataFile(name=name, size=size, blocks=tuple(self.made), base=key)


def is_coded(file: DataFile, tensors: Sequence[StoredTensor], codec: str) -> bool:
    """Whether it is in this codec already, as far as its blocks shrink by it."""
    plain, widths = without_delta(codec), Widths(tensors)
    if plain == RAW:
        return all(block.codec == RAW for block in file.blocks)
    wanted = [for_width(plain, widths.of_next(block)) for block in file.blocks]
    used = [block.codec for block in file.blocks]
    return any(one != RAW for one in used) and all(one in (RAW, spec) for one, spec in zip(used, wanted, strict=True))


def counted(
    wanted: Wanted,
    others: Sequence[Entry],
    store: Store,
    pause: Pause,
    put: Callable[[Iterable[Buffer]], Stat],
    name: str,
) -> tuple[DataFile, ...] | None:
    """Put a file, coded against one of a checkpoint among `others`, which lie in `store`; what was made, and the base
    if it has one. None where that does not pay."""
    try:
        base = choose(wanted, others, store, pause)
        if isinstance(base, str):
            return None
        chunks = Recoded(
            wanted.file,
            [tensor for tensor in wanted.proof.tensors if tensor.file == wanted.file.name],
            wanted.proof.bases,
            source=wanted.source,
            folder=wanted.entry.folder,
            codec=wanted.codec,
            pause=pause,
            base=base,
        )
        made = chunks.file(name, put(chunks).size)
    except UnknownFormat:  # of the base; what is wrong with the file itself is found when it is sent as it is
        return None
    return (made,) if made.base is None else (made, base.file)
