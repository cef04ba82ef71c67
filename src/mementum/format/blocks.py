"""Blocks: a file cut into runs that each prove themselves, so that any range can be read and trusted alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import xxhash

from mementum.errors import NotReadableHere, UnknownFormat, UsageError
from mementum.format.codec import for_width, is_delta, parse, split, without_delta
from mementum.records import Block, Buffer, record

if TYPE_CHECKING:
    from mementum.format.delta import Delta

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
    """Cut and encode a raw stream; yields each block with the bytes to store, in file order. There is no base: `delta`
    in the codec counts for nothing."""
    offset = 0
    for stretch in stretches:
        spec = for_width(codec, stretch.width)
        for start in range(stretch.offset, stretch.offset + stretch.size, BLOCK):
            piece = raw[start : min(start + BLOCK, stretch.offset + stretch.size)]
            block, stored = encode_block(piece, spec, offset=offset)
            yield block, stored
            offset += len(stored)


def encode_block(raw: Buffer, spec: str, *, offset: int, base: Buffer | None = None) -> tuple[Block, Buffer]:
    """One block, that lies at `offset`, and the bytes to store. With the raw bytes of a base, of the same size, a codec
    with `delta` counts from them, if that is the shortest of all ways; without it the rest of the codec is used, and if
    that does not shrink the block, none."""
    raw_digest = digest(raw)
    stored, used = raw, "raw"
    plain = without_delta(spec)
    if plain != "raw":
        encoded = parse(plain).encode(raw)
        if len(encoded) <= NOT_WORTH * len(raw):
            stored, used = encoded, plain
    if base is not None and is_delta(spec):
        width, rest = split(spec)
        assert width is not None
        encoded = parse(rest).encode(_delta(width).encode(raw, base))
        if len(encoded) <= NOT_WORTH * len(stored):  # what needs another file must be worth that too
            stored, used = encoded, spec
    block = Block(
        offset=offset,
        size=len(stored),
        raw_size=len(raw),
        codec=used,
        digest=raw_digest if used == "raw" else digest(stored),
        raw_digest=raw_digest,
    )
    return block, stored


def _delta(width: int) -> Delta:
    from mementum.format.delta import Delta as late  # it needs numpy, and few readers need it

    return late(width)


def damage(block: Block, stored: Buffer) -> str | None:
    """What is wrong with the stored bytes of a block, or None."""
    if len(stored) != block.size:
        return f"the block at {block.offset} should have {block.size} bytes and has {len(stored)}"
    if digest(stored) != block.digest:
        return f"the block at {block.offset} does not match its digest"
    return None


def decode(block: Block, stored: Buffer, base: Buffer | None = None) -> Buffer:
    """The raw bytes of a block whose stored bytes were found whole; `base`: those of its base's block, where it was
    coded against one. UnknownFormat if they cannot be proved, NotReadableHere if their codec is not installed."""
    if block.codec == "raw":
        return stored
    try:
        width, spec = split(block.codec)
        codec = parse(spec)
    except UsageError as cause:  # the spec is the file's, not the caller's: a codec of a plugin that is not here
        raise NotReadableHere(f"the block at {block.offset} cannot be decoded: {cause.message}") from cause
    raw = codec.decode(stored, block.raw_size)
    if width is not None:
        if base is None or len(base) != block.raw_size:
            raise UnknownFormat(f"the block at {block.offset} cannot be decoded ({block.codec}) without its base")
        raw = _delta(width).decode(raw, base)
    if digest(raw) != block.raw_digest:
        raise UnknownFormat(f"the block at {block.offset} decodes ({block.codec}) to other bytes than were written")
    return raw


def digest(data: Buffer) -> str:
    """xxh3_128 in hex: against accidents, at memory speed. It is no protection against an attacker."""
    return xxhash.xxh3_128_hexdigest(data)
