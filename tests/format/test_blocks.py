"""Blocks cover a stream without gap, prove themselves, and are compressed only where that pays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import xxhash

from mementum.errors import NotReadableHere, UnknownFormat
from mementum.format.blocks import BLOCK, NOT_WORTH, Stretch, damage, decode, digest, encode
from mementum.records import Block

EVEN = bytes(range(250)) * 40  # compresses well


def stretch(raw: bytes, width: int = 4) -> tuple[Stretch, ...]:
    return (Stretch(offset=0, size=len(raw), width=width),)


def encoded(raw: bytes, codec: str, width: int = 4) -> list[tuple[Block, bytes]]:
    return [(block, bytes(stored)) for block, stored in encode(memoryview(raw), stretch(raw, width), codec)]


def test_a_small_raw_stream_is_one_block_of_its_own_bytes() -> None:
    ((block, stored),) = encoded(b"0123456789", "raw")
    assert stored == b"0123456789"
    assert block == Block(
        offset=0,
        size=10,
        raw_size=10,
        codec="raw",
        digest=xxhash.xxh3_128_hexdigest(b"0123456789"),
        raw_digest=xxhash.xxh3_128_hexdigest(b"0123456789"),
    )


def test_an_empty_stream_has_no_blocks() -> None:
    assert encoded(b"", "zstd:1") == []


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(BLOCK - 1, [BLOCK - 1]), (BLOCK, [BLOCK]), (BLOCK + 1, [BLOCK, 1]), (2 * BLOCK + 5, [BLOCK, BLOCK, 5])],
)
def test_streams_are_cut_at_the_block_size(size: int, sizes: list[int]) -> None:
    blocks = [block for block, _ in encoded(bytes(size), "raw")]
    assert [block.raw_size for block in blocks] == sizes
    assert [block.offset for block in blocks] == [number * BLOCK for number in range(len(sizes))]


def test_stretches_are_cut_apart_and_have_codecs_of_their_widths() -> None:
    raw = EVEN * 3
    stretches = [Stretch(offset=0, size=10_000, width=8), Stretch(offset=10_000, size=20_000, width=1)]
    pairs = list(encode(memoryview(raw), stretches, "planes+zstd:1"))
    assert [block.codec for block, _ in pairs] == ["planes:8+zstd:1", "zstd:1"]
    assert [block.raw_size for block, _ in pairs] == [10_000, 20_000]
    assert [block.offset for block, _ in pairs] == [0, pairs[0][0].size]
    assert b"".join(bytes(decode(block, stored)) for block, stored in pairs) == raw


def test_a_block_that_does_not_shrink_stays_raw() -> None:
    noise = random.Random(3).randbytes(10_000)
    ((block, stored),) = encoded(noise, "planes+zstd:1")
    assert (block.codec, block.size, stored) == ("raw", 10_000, noise)
    assert block.digest == block.raw_digest


def test_a_shrink_just_under_the_limit_stays_raw() -> None:
    raw = random.Random(4).randbytes(9_900) + bytes(100)  # shrinks to 99 %
    ((block, _),) = encoded(raw, "zstd:1")
    assert block.codec == "raw"
    raw = random.Random(4).randbytes(9_600) + bytes(400)
    ((block, stored),) = encoded(raw, "zstd:1")
    assert block.codec == "zstd:1"
    assert len(stored) <= NOT_WORTH * len(raw)


def test_digests_are_of_the_stored_and_of_the_raw_bytes() -> None:
    ((block, stored),) = encoded(EVEN, "zstd:1")
    assert (block.digest, block.raw_digest) == (digest(stored), digest(EVEN))
    assert block.digest != block.raw_digest
    assert damage(block, stored) is None
    assert bytes(decode(block, stored)) == EVEN


@pytest.mark.parametrize("codec", ["raw", "zstd:1", "planes+zstd:1"])
def test_every_flipped_byte_is_found(codec: str) -> None:
    ((block, stored),) = encoded(EVEN[:600], codec)
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 0x40
        assert damage(block, changed) == "the block at 0 does not match its digest"


def test_another_size_is_found_and_told() -> None:
    ((block, stored),) = encoded(b"0123456789", "raw")
    assert damage(block, stored[:-1]) == "the block at 0 should have 10 bytes and has 9"
    assert damage(block, stored + b"x") == "the block at 0 should have 10 bytes and has 11"


def test_a_decoder_that_gives_other_bytes_is_found() -> None:
    ((block, stored),) = encoded(EVEN, "zstd:1")
    with pytest.raises(UnknownFormat, match=r"at 0 decodes \(zstd:1\) to other bytes"):
        decode(replace(block, raw_digest=digest(b"other")), stored)
    with pytest.raises(UnknownFormat, match=r"decodes \(planes:2\+zstd:1\)"):
        decode(replace(block, codec="planes:2+zstd:1"), stored)


@pytest.mark.parametrize("codec", ["lz4", "zstd:99", "", "zstd:1+planes:4", "raw+raw+raw+raw+raw"])
def test_a_codec_that_is_not_here_is_the_files_fault_not_the_callers(codec: str) -> None:
    ((block, stored),) = encoded(EVEN, "zstd:1")
    with pytest.raises(NotReadableHere, match="the block at 0 cannot be decoded"):
        decode(replace(block, codec=codec), stored)
