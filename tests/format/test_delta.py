"""Differences from a base give back any bytes, and are stored where they are the shortest."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from mementum.errors import NotReadableHere, UnknownFormat, UsageError
from mementum.format import blocks, codec
from mementum.format.delta import Delta

SPEC = "delta+planes+zstd:1"


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_small_differences_of_both_signs_become_small_numbers(width: int) -> None:
    base = np.array([0, 5, 5, 7, 255], f"<u{width}")
    raw = np.array([0, 4, 6, 5, 0], f"<u{width}") if width == 1 else np.array([0, 4, 6, 5, 257], f"<u{width}")
    stored = np.frombuffer(Delta(width).encode(raw.tobytes(), base.tobytes()), f"<u{width}")
    assert stored.tolist() == [0, 1, 2, 3, 2 if width == 1 else 4]  # 255 + 1 is 0 in one byte


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 4099])
def test_any_bytes_come_back(width: int, size: int, rng: Random) -> None:
    raw, base = rng.randbytes(size), rng.randbytes(size)
    stored = Delta(width).encode(raw, base)
    assert len(stored) == size
    assert bytes(Delta(width).decode(stored, base)) == raw


def near(rng: Random, count: int = 2000) -> tuple[bytes, bytes]:
    """Random numbers, and the same moved by little."""
    numbers = [rng.randrange(1 << 31) for _ in range(count)]
    moved = [number + rng.randrange(-40, 40) for number in numbers]
    return (b"".join(each.to_bytes(4, "little", signed=True) for each in numbers) for numbers in (numbers, moved))  # type: ignore[return-value]


def test_a_block_says_what_it_needs(rng: Random) -> None:
    base, raw = near(rng)
    spec = codec.for_width(SPEC, 4)
    block, stored = blocks.encode_block(raw, spec, offset=7, base=base)
    assert (block.codec, block.offset, block.raw_size) == ("delta:4+planes:4+zstd:1", 7, 8000)
    assert block.size == len(stored) < 0.3 * len(raw)
    assert bytes(blocks.decode(block, stored, base)) == raw
    assert block.raw_digest == blocks.digest(raw)
    for wrong in (None, base[:-1]):
        with pytest.raises(UnknownFormat, match=r"cannot be decoded \(delta:4\+planes:4\+zstd:1\) without its base"):
            blocks.decode(block, stored, wrong)
    with pytest.raises(UnknownFormat, match="to other bytes than were written"):
        blocks.decode(block, stored, raw)


def test_without_a_base_the_rest_of_the_codec_counts(rng: Random) -> None:
    base, _ = near(rng)
    plain, stored = blocks.encode_block(base, codec.for_width("planes+zstd:1", 4), offset=0)
    assert blocks.encode_block(base, codec.for_width(SPEC, 4), offset=0) == (plain, stored)
    assert not codec.is_delta(plain.codec)


def test_a_base_that_does_not_help_is_not_named(rng: Random) -> None:
    raw = bytes(8000)
    block, _ = blocks.encode_block(raw, codec.for_width(SPEC, 4), offset=0, base=rng.randbytes(8000))
    assert block.codec == "planes:4+zstd:1"
    noise = rng.randbytes(8000)
    block, stored = blocks.encode_block(noise, codec.for_width(SPEC, 4), offset=0, base=rng.randbytes(8000))
    assert (block.codec, stored) == ("raw", noise)


@pytest.mark.parametrize(
    ("width", "spec"),
    [
        (1, "delta:1+zstd:1"),
        (2, "delta:2+planes:2+zstd:1"),
        (8, "delta:8+planes:8+zstd:1"),
        (16, "delta:8+planes:16+zstd:1"),
    ],
)
def test_the_width_is_that_of_the_numbers(width: int, spec: str) -> None:
    assert codec.for_width(SPEC, width) == spec
    assert codec.split(spec) == (min(width, 8), spec.partition("+")[2])
    assert codec.is_delta(spec)
    assert codec.check(SPEC) == SPEC


def test_delta_alone_is_a_codec() -> None:
    assert codec.split("delta:4") == (4, "raw")
    assert codec.without_delta("delta:4") == "raw"
    assert codec.without_delta(SPEC) == "planes+zstd:1"
    assert codec.without_delta("zstd:1") == "zstd:1"
    block, stored = blocks.encode_block(b"abcd", "delta:4", offset=0, base=b"abcd")
    assert (block.codec, bytes(stored)) == ("raw", b"abcd")  # it saves nothing


@pytest.mark.parametrize("spec", ["delta:3+zstd:1", "delta:16", "delta:4:4", "delta:+zstd:1", "zstd:1+delta:4"])
def test_what_cannot_be_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        codec.check(spec)


def test_a_width_of_a_later_version_is_no_damage(rng: Random) -> None:
    base, raw = near(rng, 10)
    block, stored = blocks.encode_block(raw, "delta:4+zstd:1", offset=0, base=base)
    later = blocks.Block(
        **{**{name: getattr(block, name) for name in block.__slots__}, "codec": "delta:32+zstd:1"}  # type: ignore[attr-defined]
    )
    with pytest.raises(NotReadableHere, match="delta takes one of the widths"):
        blocks.decode(later, stored, base)
