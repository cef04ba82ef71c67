"""Bytes on their way into a store: chunks that may be gone through once, or again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mementum.storage.store import Buffer

COPY_ALONE_MIN = 64 << 10  # bytes: a smaller copy takes microseconds


def can_repeat(chunks: Iterable[Buffer]) -> bool:
    """Whether going through the chunks again begins anew: of a list it does, of a generator it does not."""
    return not isinstance(chunks, Iterator)


def watched(chunks: Iterable[Buffer], look: Callable[[Buffer], None]) -> Iterable[Buffer]:
    """The same chunks, each looked at before it is handed on; they can be repeated if the given ones can."""
    return Watched(chunks, look) if can_repeat(chunks) else _handed_on(chunks, look)


class Watched:
    """Chunks that are looked at each time that somebody goes through them."""

    def __init__(self, chunks: Iterable[Buffer], look: Callable[[Buffer], None]) -> None:
        self._chunks, self._look = chunks, look

    def __iter__(self) -> Iterator[Buffer]:
        return _handed_on(self._chunks, self._look)


def _handed_on(chunks: Iterable[Buffer], look: Callable[[Buffer], None]) -> Iterator[Buffer]:
    for chunk in chunks:
        look(chunk)
        yield chunk


def copied(chunk: Buffer) -> Buffer:
    """Bytes that nobody changes any more: a copy, unless they are that already.

    A thread of low priority may be set aside in the midst of a copy, and whoever wants Python's lock would wait for it;
    numpy copies without that lock."""
    if isinstance(chunk, bytes):
        return chunk
    if memoryview(chunk).nbytes < COPY_ALONE_MIN:
        return memoryview(chunk).tobytes()
    import numpy as np  # late: who only reads has no use for it

    return np.frombuffer(chunk, np.uint8).copy().data


def flat(chunk: Buffer) -> memoryview:
    """The same memory as plain bytes, of one dimension."""
    view = memoryview(chunk)
    return view.cast("B") if view.nbytes else memoryview(b"")  # what has a zero in its shape cannot be cast


def pieces(chunks: Iterable[Buffer], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size`, the last one shorter; none is empty."""
    piece = bytearray()
    for chunk in chunks:
        left = flat(chunk)
        while len(left):
            taken = left[: size - len(piece)]
            piece += taken
            left = left[len(taken) :]
            if len(piece) == size:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
