"""Write: streams a snapshot's files into a store, with digests made from the very bytes that it hands over."""

from __future__ import annotations

from collections.abc import Iterator

from mementum.errors import StoreError
from mementum.execute.snapshot import Image, Snapshot
from mementum.format import context, index
from mementum.format.blocks import encode
from mementum.format.manifest import digest
from mementum.records import Block, Buffer, DataFile, Index, StoredFile
from mementum.storage.store import Store

SUFFIX_MAX = 1000  # saves of one step in one task; more is a loop that never advances


def folder_for(store: Store, step: int) -> str:
    """A folder that no object has yet: `step_0000012400`, or with a suffix if that step was saved before."""
    first = f"step_{step:010d}"
    taken = {stat.key.partition("/")[0] for stat in store.list(first)}
    for number in range(1, SUFFIX_MAX):
        folder = first if number == 1 else f"{first}-{number}"
        if folder not in taken:
            return folder
    raise StoreError(
        first,
        f"step {step} was saved {SUFFIX_MAX} times already",
        kept="all checkpoints",
        next_command="let the step advance between saves",
    )


def write_parts(snapshot: Snapshot, store: Store, folder: str, *, rank: int = 0) -> tuple[StoredFile, ...]:
    """All files but the manifest: data first, then the index that proves it, then the context."""
    data = tuple(_write_data(image, store, folder) for image in snapshot.images)
    tensors = tuple(tensor for image in snapshot.images for tensor in image.layout.tensors)
    proof = index.render(Index(rank=rank, files=data, tensors=tensors))
    return (
        *(StoredFile(name=file.name, size=file.size) for file in data),
        _write_small(index.name(rank), proof, store, folder),
        _write_small(context.name(rank), snapshot.context, store, folder),
    )


def _write_data(image: Image, store: Store, folder: str) -> DataFile:
    layout = image.layout
    blocks: list[Block] = []

    def chunks() -> Iterator[Buffer]:
        for block, stored in encode(image.raw, layout.stretches, layout.codec):
            blocks.append(block)
            yield stored

    stat = store.put(f"{folder}/{layout.name}", chunks())
    return DataFile(name=layout.name, size=stat.size, blocks=tuple(blocks))


def _write_small(name: str, data: bytes, store: Store, folder: str) -> StoredFile:
    store.put(f"{folder}/{name}", [data])
    return StoredFile(name=name, size=len(data), digest=digest(data))
