"""Codecs: bytes to bytes, each with a spec string that says all that decoding needs.

A spec is one or more stages joined by `+`, applied from left to right when encoding: `raw`, `zstd:1`,
`planes:4+zstd:1`. Only the last stage may change the size, so that the raw size alone bounds every decode. In front of
them `delta:4` may stand: that stage needs the bytes of a base too, and is the blocks' affair.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from typing import Protocol

import zstandard

from mementum.errors import UnknownFormat, UsageError
from mementum.plugins import factory
from mementum.records import Buffer

CHEAP_LEVEL = 3  # above it zstd spends many times the CPU for a few percent on optimizer state
DELTA = "delta"
DELTA_WIDTHS = ("1", "2", "4", "8")  # bytes of the integers that are subtracted
DELTA_WIDTH_MAX = 8  # complex numbers of 16 bytes are two of 8
MAX_STAGES = 4  # more stages than this is a typing error, or an attack on the reader
SPECS_MAX = 64  # codecs kept once made: looking for plugins takes milliseconds, and every block of a file asks anew


class Codec(Protocol):
    """One stage or a chain of them."""

    spec: str
    keeps_size: bool

    def encode(self, raw: Buffer) -> Buffer: ...

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        """The `raw_size` bytes that were encoded; UnknownFormat if `stored` cannot be that."""
        ...


class Raw:
    """The bytes as they are."""

    keeps_size = True

    def __init__(self, *parameters: str) -> None:
        _expect(parameters, "raw", at_most=0)
        self.spec = "raw"

    def encode(self, raw: Buffer) -> Buffer:
        return raw

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        if len(stored) != raw_size:
            raise UnknownFormat(f"a raw block of {raw_size} bytes has {len(stored)}")
        return stored


class Zstd:
    """Zstandard at a level (1 to 22; 3 where none is given). The level is not needed to decode."""

    keeps_size = False

    def __init__(self, *parameters: str) -> None:
        _expect(parameters, "zstd", at_most=1)
        self.level = _number(parameters[0], "zstd level", 1, 22) if parameters else CHEAP_LEVEL
        self.spec = f"zstd:{self.level}"

    def encode(self, raw: Buffer) -> Buffer:
        # A compressor holds state and must not be shared by threads; making one costs microseconds a block.
        return zstandard.ZstdCompressor(level=self.level).compress(raw)

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        try:
            # The frame says how much it will unpack to; it is believed only where it says what the index says.
            if zstandard.frame_content_size(stored) != raw_size:
                raise UnknownFormat(f"a zstd block does not unpack to {raw_size} bytes")
            raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_size)
        except zstandard.ZstdError as cause:
            raise UnknownFormat(f"a zstd block cannot be decoded: {cause}") from cause
        if len(raw) != raw_size:
            raise UnknownFormat(f"a zstd block of {raw_size} bytes unpacked to {len(raw)}")
        return raw


class Chain:
    """Several stages as one codec."""

    keeps_size = False

    def __init__(self, stages: Sequence[Codec]) -> None:
        self._stages = tuple(stages)
        self.spec = "+".join(stage.spec for stage in stages)

    def encode(self, raw: Buffer) -> Buffer:
        for stage in self._stages:
            raw = stage.encode(raw)
        return raw

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        for stage in reversed(self._stages):
            stored = stage.decode(stored, raw_size)
        return stored


@functools.lru_cache(maxsize=SPECS_MAX)
def parse(spec: str) -> Codec:
    """The codec that `spec` names, shared by all who ask for it. UsageError says what is wrong with the spec."""
    words = spec.split("+")
    if len(words) > MAX_STAGES:
        raise UsageError(f"codec {spec!r} has more than {MAX_STAGES} stages")
    stages: list[Codec] = []
    for word in words:
        name, *parameters = word.split(":")
        stages.append(factory("mementum.codecs", name)(*parameters))
    if any(not stage.keeps_size for stage in stages[:-1]):
        raise UsageError(f"codec {spec!r}: only the last stage may change the size")
    return stages[0] if len(stages) == 1 else Chain(stages)


def is_delta(spec: str) -> bool:
    """Whether decoding needs a base."""
    return spec.partition("+")[0].partition(":")[0] == DELTA


def split(spec: str) -> tuple[int | None, str]:
    """The width of the numbers whose differences from a base the rest codes, or None; and the rest. UsageError says
    what is wrong with the spec."""
    if not is_delta(spec):
        return None, spec
    first, _, rest = spec.partition("+")
    _, *parameters = first.split(":")
    if len(parameters) != 1 or parameters[0] not in DELTA_WIDTHS:
        raise UsageError(f"codec {first!r}: delta takes one of the widths {', '.join(DELTA_WIDTHS)}")
    return int(parameters[0]), rest or "raw"


def without_delta(spec: str) -> str:
    """The same codec for what has no base."""
    return (spec.partition("+")[2] or "raw") if is_delta(spec) else spec


def for_width(spec: str, width: int) -> str:
    """`planes` and `delta` without a number take the element's width in bytes; a width of 1 needs no planes."""
    own = {"planes": f"planes:{width}", DELTA: f"{DELTA}:{min(width, DELTA_WIDTH_MAX)}"}
    words = [own.get(word, word) for word in spec.split("+")]
    kept = [word for word in words if word != "planes:1"]
    return "+".join(kept) if kept else "raw"


def check(spec: str) -> str:
    """`spec` itself if it can be used; warns, with a cost measured here, where a level is needlessly high."""
    if not isinstance(spec, str):
        raise UsageError(f"a codec is a text such as planes+zstd:1, got {spec!r}")
    split(for_width(spec, 4))
    parse(for_width(without_delta(spec), 4))
    for word in spec.split("+"):
        name, _, parameter = word.partition(":")
        level = int(parameter or CHEAP_LEVEL) if name == "zstd" else 0
        if level > CHEAP_LEVEL:
            ratio = _seconds(level) / _seconds(CHEAP_LEVEL)
            warnings.warn(
                f"codec {spec!r}: zstd level {level} takes {ratio:.0f} times as long here as level {CHEAP_LEVEL} "
                "and gains a few percent on optimizer state",
                stacklevel=2,
            )
    return spec


def _seconds(level: int) -> float:
    sample = b"".join(i.to_bytes(4, "little") + (i * i % 251).to_bytes(4, "little") for i in range(1 << 15))
    began = time.process_time()
    zstandard.ZstdCompressor(level=level).compress(sample)
    return max(time.process_time() - began, 1e-6)


def _expect(parameters: Sequence[str], name: str, *, at_most: int) -> None:
    if len(parameters) > at_most:
        raise UsageError(f"codec {name} takes at most {at_most} numbers, got {':'.join(parameters)!r}")


def _number(text: str, what: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and low <= int(text) <= high):
        raise UsageError(f"{what} must be a whole number from {low} to {high}, got {text!r}")
    return int(text)
