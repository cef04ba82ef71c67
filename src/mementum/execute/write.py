"""Write: streams a snapshot's files into a store, with digests made from the very bytes that it hands over."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence

from mementum.errors import StoreError
from mementum.execute.beside import Beside
from mementum.execute.plan import RAW
from mementum.execute.snapshot import Image, Snapshot
from mementum.execute.stills import Stills
from mementum.format import context, index
from mementum.format.blocks import encode
from mementum.format.manifest import digest
from mementum.records import Block, Buffer, DataFile, Index, StoredFile
from mementum.storage.pace import Pace
from mementum.storage.store import Home, Store

LARGE = 32 << 20  # bytes of a file: below it, threads gain less than a slow fsync takes away again
PIECE = 8 << 20  # bytes of one write: with 4 MiB a disk that was measured gave 7 % less, with 16 MiB no more
DIGEST_NICE = 10  # digests take a tenth of the time of the writing, so they can wait for the training now and then
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


def write_parts(
    snapshot: Snapshot,
    store: Home,
    folder: str,
    *,
    rank: int = 0,
    pace: Pace | None = None,
    stills: Stills | None = None,
) -> tuple[StoredFile, ...]:
    """All files but the manifest: data first, then the index that proves it, then the context. `pace` holds back the
    data. What `stills` has durable already gets a second name only."""
    stills = stills or Stills()
    linked = stills.link(snapshot.images, store, folder)
    written = _write_images([one for one in snapshot.images if one.layout.name not in linked], store, folder, pace)
    data = tuple((linked | written)[image.layout.name] for image in snapshot.images)
    stills.require_steady(snapshot.images, data)
    tensors = tuple(tensor for image in snapshot.images for tensor in image.layout.tensors)
    proved = Index(rank=rank, files=data, tensors=tensors)
    stills.wrote(folder, proved)
    proof = index.render(proved)
    return (
        *(StoredFile(name=file.name, size=file.size, folder=file.folder) for file in data),
        _write_small(index.name(rank), proof, store, folder),
        _write_small(context.name(rank), snapshot.context(), store, folder),
    )


class _GivenUp(Exception):
    """Ends a put of whose checkpoint another part has failed."""


def _write_images(images: Sequence[Image], store: Store, folder: str, pace: Pace | None) -> dict[str, DataFile]:
    """Two files at a time where they are large, as one stream does not fill a fast disk; the largest first, so that
    both writers end together. If one fails, so does the other, and no byte is written after this has raised."""
    files: dict[str, DataFile] = {}
    failed = threading.Event()

    def write(todo: deque[Image]) -> None:
        try:
            while todo and not failed.is_set():
                try:
                    image = todo.popleft()
                except IndexError:  # the other writer took the last one
                    return
                files[image.layout.name] = _write_data(image, store, folder, pace, failed)
        except BaseException:
            failed.set()
            raise

    large = deque(sorted((image for image in images if _is_large(image)), key=lambda image: -image.layout.raw_size))
    small = deque(image for image in images if not _is_large(image))
    write(small)
    other = Beside(lambda: write(large), name="mementum-write") if len(large) > 1 else None
    try:
        write(large)
    except _GivenUp:
        assert other is not None
        other.outcome()  # says what has failed
        raise
    finally:
        if other is not None:
            other.wait()
    if other is not None:
        other.outcome()
    return files


def _is_large(image: Image) -> bool:
    return image.layout.raw_size >= LARGE


def _write_data(image: Image, store: Store, folder: str, pace: Pace | None, failed: threading.Event) -> DataFile:
    blocks: list[Block] = []
    with contextlib.closing(_chunks(image, blocks, failed)) as chunks:
        stat = store.put(f"{folder}/{image.layout.name}", chunks if pace is None else _paced(chunks, pace))
    return DataFile(name=image.layout.name, size=stat.size, blocks=tuple(blocks))


def _paced(chunks: Iterable[Buffer], pace: Pace) -> Iterator[Buffer]:
    for chunk in chunks:
        pace.take(memoryview(chunk).nbytes)
        yield chunk


def _chunks(image: Image, blocks: list[Block], failed: threading.Event) -> Generator[Buffer]:
    """The file's bytes; `blocks` holds their proof when all were taken. A large file's digests are made, and its
    blocks encoded, while what went before is being written."""
    encoded = encode(image.raw, image.layout.stretches, image.layout.codec)
    if not _is_large(image):
        for block, stored in encoded:
            blocks.append(block)
            yield stored
    elif isinstance(image.raw, memoryview) and image.layout.codec == RAW:  # what is fetched is to be fetched once
        yield from _pieces(image.raw, encoded, blocks, failed)
    else:
        for block, stored in _ahead(encoded):
            if failed.is_set():
                raise _GivenUp
            blocks.append(block)
            yield stored


def _pieces(
    raw: memoryview, encoded: Iterator[tuple[Block, Buffer]], blocks: list[Block], failed: threading.Event
) -> Iterator[Buffer]:
    """The raw stream as it lies, in pieces that fill a disk, while the digests of its blocks are made beside it."""
    stop = threading.Event()

    def prove() -> None:
        for block, _ in encoded:
            blocks.append(block)
            if stop.is_set():
                return

    proving = Beside(prove, name="mementum-digest", nice=DIGEST_NICE)
    try:
        for start in range(0, len(raw), PIECE):
            if failed.is_set():
                raise _GivenUp
            yield raw[start : start + PIECE]
        proving.outcome()
    finally:
        stop.set()
        proving.wait()  # who gives up may take the memory away


def _ahead(encoded: Iterator[tuple[Block, Buffer]]) -> Iterator[tuple[Block, Buffer]]:
    """The same, with the next one always in the making. A thread for each costs a hundredth of what it does."""
    coming = Beside(lambda: next(encoded, None), name="mementum-encode")
    try:
        while (one := coming.outcome()) is not None:
            coming = Beside(lambda: next(encoded, None), name="mementum-encode")
            yield one
    finally:
        coming.wait()


def _write_small(name: str, data: bytes, store: Store, folder: str) -> StoredFile:
    store.put(f"{folder}/{name}", [data])
    return StoredFile(name=name, size=len(data), digest=digest(data))
