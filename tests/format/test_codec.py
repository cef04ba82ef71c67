"""Codecs give back what they were given, refuse what is not theirs, and believe no size that a frame claims."""

from __future__ import annotations

import tracemalloc
import warnings

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mementum.errors import UnknownFormat, UsageError
from mementum.format.codec import MAX_STAGES, check, for_width, parse

SPECS = (
    "raw",
    "zstd",
    "zstd:1",
    "zstd:3",
    "planes:1",
    "planes:2",
    "planes:4",
    "planes:8+zstd:1",
    "planes:16+zstd:2",
    "planes:4+planes:2+raw+zstd:1",
    "raw+raw",
)
TERABYTE = 1 << 40
MANY = b"optimizer state " * 1000


def bomb(size: int) -> bytes:
    """The start of a zstd frame that says it unpacks to `size` bytes, with one empty last block."""
    magic, descriptor = b"\x28\xb5\x2f\xfd", b"\xe0"  # eight bytes of content size, one segment, no checksum
    return magic + descriptor + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("spec", SPECS)
@given(raw=st.binary(max_size=700))
def test_what_was_encoded_comes_back(spec: str, raw: bytes) -> None:
    codec = parse(spec)
    for given_as in (raw, bytearray(raw), memoryview(raw)):
        assert bytes(codec.decode(codec.encode(given_as), len(raw))) == raw


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 15, 16, 17, 4095, 4097])
def test_sizes_around_the_widths_come_back(spec: str, size: int, rng) -> None:
    raw = rng.randbytes(size)
    codec = parse(spec)
    assert bytes(codec.decode(codec.encode(raw), size)) == raw


@pytest.mark.parametrize("spec", SPECS)
def test_a_block_that_lacks_or_has_a_byte_is_refused(spec: str) -> None:
    codec = parse(spec)
    stored = bytes(codec.encode(MANY))
    for wrong in (stored[:-1], b"", stored[: len(stored) // 2]):
        with pytest.raises(UnknownFormat):
            codec.decode(wrong, len(MANY))
    for wrong_size in (len(MANY) - 1, len(MANY) + 1, 0, TERABYTE):
        with pytest.raises(UnknownFormat):
            codec.decode(stored, wrong_size)


@given(stored=st.binary(max_size=60), raw_size=st.integers(0, 1 << 20))
def test_foreign_bytes_are_refused_or_are_a_frame_of_that_size(stored: bytes, raw_size: int) -> None:
    try:
        raw = parse("planes:4+zstd:1").decode(stored, raw_size)
    except UnknownFormat:
        return
    assert len(raw) == raw_size


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_frame_never_gives_another_size_nor_another_error(at: int, bit: int) -> None:
    codec = parse("zstd:1")
    stored = bytearray(codec.encode(MANY))
    stored[at % len(stored)] ^= 1 << bit
    try:
        raw = codec.decode(stored, len(MANY))
    except UnknownFormat:
        return
    assert len(raw) == len(MANY)


def test_a_bomb_is_refused_without_its_memory() -> None:
    frame = bomb(TERABYTE)
    assert zstandard.frame_content_size(frame) == TERABYTE
    tracemalloc.start()
    try:
        with pytest.raises(UnknownFormat, match="does not unpack to 4194304 bytes"):
            parse("zstd:1").decode(frame, 4 << 20)
        with pytest.raises(UnknownFormat):
            parse("planes:8+zstd:1").decode(frame, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_that_unpacks_to_less_than_it_says_is_refused() -> None:
    with pytest.raises(UnknownFormat):
        parse("zstd:1").decode(bomb(300), 300)


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(MANY)
    with pytest.raises(UnknownFormat, match="does not unpack"):
        parse("zstd:1").decode(frame, len(MANY))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("", "''"),
        ("lz4", "'lz4'"),
        ("ZSTD:1", "'ZSTD'"),
        (" zstd", "' zstd'"),
        ("zstd:0", "'0'"),
        ("zstd:23", "'23'"),
        ("zstd:-1", "'-1'"),
        ("zstd:1.5", "'1.5'"),
        ("zstd:x", "'x'"),
        ("zstd:", "''"),
        ("zstd:٣", "'٣'"),
        ("zstd:11111", "'11111'"),
        ("zstd:1:2", "'1:2'"),
        ("raw:1", "'1'"),
        ("planes", "''"),
        ("planes:3", "'3'"),
        ("planes:32", "'32'"),
        ("planes:4:4", "'4:4'"),
        ("zstd:1+planes:4", "'zstd:1+planes:4'"),
        ("zstd:1+zstd:1", "'zstd:1+zstd:1'"),
        ("+", "''"),
        ("raw+", "''"),
        ("+".join(["raw"] * (MAX_STAGES + 1)), "'raw+raw+raw+raw+raw'"),
    ],
)
def test_a_bad_spec_is_named(spec: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(spec)
    assert named in str(caught.value)


@pytest.mark.parametrize("spec", ["zstd:9+planes:4", "lz4", "planes:3", "zstd:99", ""])
def test_check_refuses_what_parse_refuses(spec: str) -> None:
    with pytest.raises(UsageError):
        check(spec)


@pytest.mark.parametrize("spec", ["raw", "zstd", "zstd:1", "zstd:3", "planes", "planes+zstd:3", "planes:2+zstd:1"])
def test_check_says_nothing_of_cheap_specs(spec: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(spec) == spec


@pytest.mark.parametrize("spec", ["zstd:4", "planes+zstd:5"])
def test_check_warns_of_dear_levels_with_a_measured_cost(spec: str) -> None:
    with pytest.warns(UserWarning, match=r"zstd level \d takes \d+ times as long here as level 3") as caught:
        assert check(spec) == spec
    assert len(caught) == 1
    assert repr(spec) in str(caught[0].message)


@pytest.mark.parametrize(
    ("spec", "width", "expected"),
    [
        ("planes+zstd:1", 4, "planes:4+zstd:1"),
        ("planes+zstd:1", 1, "zstd:1"),
        ("planes", 1, "raw"),
        ("planes:2+zstd:1", 8, "planes:2+zstd:1"),
        ("raw", 16, "raw"),
        ("planes:1", 8, "raw"),
    ],
)
def test_planes_take_the_width_of_the_numbers(spec: str, width: int, expected: str) -> None:
    assert for_width(spec, width) == expected
    parse(expected)


def test_specs_say_all_that_decoding_needs() -> None:
    assert parse("zstd").spec == "zstd:3"
    assert parse("planes:4+zstd").spec == "planes:4+zstd:3"
    raw = bytes(range(256)) * 9
    stored = parse("planes:4+zstd").encode(raw)
    assert parse(parse("planes:4+zstd").spec).decode(stored, len(raw)) == raw


def test_the_level_is_not_needed_to_decode() -> None:
    assert parse("zstd:1").decode(parse("zstd:19").encode(MANY), len(MANY)) == MANY
