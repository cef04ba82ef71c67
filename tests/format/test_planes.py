"""Planes put like bytes beside like, leave a rest as it is, and are their own inverse."""

from __future__ import annotations

import numpy as np
import pytest

from mementum.errors import UnknownFormat, UsageError
from mementum.format.planes import WIDTHS, Planes


@pytest.mark.parametrize(
    ("width", "raw", "stored"),
    [
        ("1", b"abcd", b"abcd"),
        ("2", b"aAbBcC", b"abcABC"),
        ("2", b"aAbBx", b"abABx"),
        ("4", b"1aA!2bB?rest", b"12rabeABs!?t"),
        ("4", b"1aA!2bB?", b"12abAB!?"),
        ("4", b"1aA!2bB?xyz", b"12abAB!?xyz"),
        ("8", b"short", b"short"),
        ("4", b"", b""),
    ],
)
def test_the_bytes_are_these(width: str, raw: bytes, stored: bytes) -> None:
    planes = Planes(width)
    assert bytes(planes.encode(raw)) == stored
    assert bytes(planes.decode(stored, len(raw))) == raw


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_a_transpose(width: str) -> None:
    numbers = np.random.default_rng(1).integers(0, 256, (1000, int(width)), np.uint8)
    assert bytes(Planes(width).encode(numbers.tobytes())) == numbers.T.tobytes()


def test_the_input_is_not_changed() -> None:
    raw = bytearray(range(64))
    Planes("4").encode(raw)
    Planes("4").decode(raw, 64)
    assert raw == bytearray(range(64))


@pytest.mark.parametrize("parameters", [(), ("3",), ("0",), ("-4",), ("04",), ("4", "4"), ("",), ("four",)])
def test_other_widths_are_refused(parameters: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="one of the widths 1, 2, 4, 8, 16"):
        Planes(*parameters)


@pytest.mark.parametrize("size", [0, 7, 9, 1 << 60])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(UnknownFormat, match=f"planes of {size} bytes have 8"):
        Planes("4").decode(b"12345678", size)
