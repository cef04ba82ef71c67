"""Blocks: a file cut into runs that each prove themselves, so that any range can be read and trusted alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import xxhash

from mementum.errors import NotReadableHere, UnknownFormat, UsageError
from mementum.format.codec import for_width, parse
from mementum.records import Block, Buffer, record

BLOCK = 4 << 20  # raw bytes: large enough that digests and calls cost nothing, small enough for a range read
MAX_BLOCK = 64 << 20  # a reader allocates no more than this on the word of an index
NOT_WORTH = 0.98  # a block that shrinks by less than this stays raw: its decoding would cost more than its bytes


@record
class Stretch:
    """A part of a raw stream whose numbers all have one width in bytes."""

    offset: int
    size: int
    width: int


class Raw(Protocol):
    """A file's raw stream, piece by piece: memory, or something that fetches a piece when it is asked for it."""

    def __getitem__(self, piece: slice, /) -> memoryview: ...


def encode(raw: Raw, stretches: Sequence[Stretch], codec: str) -> Iterator[tuple[Block, Buffer]]:
    """Cut and encode a raw stream; yields each block with the bytes to store, in file order."""
    offset = 0
    for stretch in stretches:
        spec = for_width(codec, stretch.width)
        coder = None if spec == "raw" else parse(spec)
        for start in range(stretch.offset, stretch.offset + stretch.size, BLOCK):
            piece = raw[start : min(start + BLOCK, stretch.offset + stretch.size)]
            raw_digest = digest(piece)
            stored: Buffer = piece
            used = "raw"
            if coder is not None:
                encoded = coder.encode(piece)
                if len(encoded) <= NOT_WORTH * len(piece):
                    stored, used = encoded, coder.spec
            yield (
                Block(
                    offset=offset,
                    size=len(stored),
                    raw_size=len(piece),
                    codec=used,
                    digest=raw_digest if used == "raw" else digest(stored),
                    raw_digest=raw_digest,
                ),
                stored,
            )
            offset += len(stored)


def damage(block: Block, stored: Buffer) -> str | None:
    """What is wrong with the stored bytes of a block, or None."""
    if len(stored) != block.size:
        return f"the block at {block.offset} should have {block.size} bytes and has {len(stored)}"
    if digest(stored) != block.digest:
        return f"the block at {block.offset} does not match its digest"
    return None


def decode(block: Block, stored: Buffer) -> Buffer:
    """The raw bytes of a block whose stored bytes were found whole. UnknownFormat if they cannot be proved,
    NotReadableHere if their codec is not installed."""
    if block.codec == "raw":
        return stored
    try:
        codec = parse(block.codec)
    except UsageError as cause:  # the spec is the file's, not the caller's: a codec of a plugin that is not here
        raise NotReadableHere(f"the block at {block.offset} cannot be decoded: {cause.message}") from cause
    raw = codec.decode(stored, block.raw_size)
    if digest(raw) != block.raw_digest:
        raise UnknownFormat(f"the block at {block.offset} decodes ({block.codec}) to other bytes than were written")
    return raw


def digest(data: Buffer) -> str:
    """xxh3_128 in hex: against accidents, at memory speed. It is no protection against an attacker."""
    return xxhash.xxh3_128_hexdigest(data)
