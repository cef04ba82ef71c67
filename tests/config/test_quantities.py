"""Quantities: what is read of what people write, what is refused and how, and that what is shown is read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from mementum.config.quantities import (
    DURATION_S_MAX,
    SIZE_MAX,
    duration_s,
    duration_text,
    rate,
    rate_text,
    share,
    share_text,
    size,
    size_text,
)


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        (duration_s, "10m", 600.0),
        (duration_s, "60s", 60.0),
        (duration_s, "1h30m", 5400.0),
        (duration_s, " 1 H 30 min ", 5400.0),
        (duration_s, "0.5d", 43200.0),
        (duration_s, "200ms", 0.2),
        (duration_s, "1m30.5s", 90.5),
        (duration_s, 90, 90.0),
        (duration_s, 0.25, 0.25),
        (size, "87GB", 87 * 10**9),
        (size, "1.5 TiB", 3 * 2**39),
        (size, "4 kB", 4000),
        (size, "4 KB", 4000),
        (size, "512 B", 512),
        (size, 1024, 1024),
        (rate, "1 GB/s", 1e9),
        (rate, "64MiB/s", 64.0 * 2**20),
        (rate, 5e8, 5e8),
        (share, "5 %", 0.05),
        (share, "100%", 1.0),
        (share, 0.05, 0.05),
        (share, 1, 1.0),
    ],
)
def test_what_people_write_is_read(read: Callable[[Any], float], text: object, amount: float) -> None:
    assert read(text) == pytest.approx(amount, rel=1e-12)


@pytest.mark.parametrize(
    ("read", "value", "what"),
    [
        (duration_s, "10 GB", "'10 GB' is a size"),
        (duration_s, "1 GB/s", "'1 GB/s' is a rate"),
        (duration_s, "5 %", "'5 %' is a share"),
        (duration_s, "10", "'10' is a number in quotes, without a unit"),
        (duration_s, "3 lightyears", "'3 lightyears' is a number with the unknown unit 'lightyears'"),
        (duration_s, "soon", "'soon' is a text"),
        (duration_s, True, "True is true or false"),
        (duration_s, None, "None is nothing"),
        (duration_s, [10], "[10] is a list"),
        (duration_s, {"m": 10}, "{'m': 10} is a mapping"),
        (duration_s, b"10m", "b'10m' is a bytes"),
        (duration_s, 0, "0 is out of reach: it must be from 0.001 to 3.16224e+07"),
        (duration_s, -1, "-1 is out of reach: it must be from 0.001 to 3.16224e+07"),
        (duration_s, float("nan"), "nan is out of reach: it must be from 0.001 to 3.16224e+07"),
        (duration_s, "999999d", "'999999d' is out of reach: it must be from 0.001 to 3.16224e+07"),
        (size, "10m", "'10m' is a duration"),
        (size, "1 GB/s", "'1 GB/s' is a rate"),
        (size, float("inf"), "inf is out of reach: it must be from 1 to 1.15292e+18"),
        (size, 10**400, f"1{'0' * 39}… is out of reach: it must be from 1 to 1.15292e+18"),
        (size, "10 Mb", "'10 Mb' may mean bits: write 10 MB for bytes, or 1.25 MB for so many bits"),
        (size, "4kb", "'4kb' may mean bits: write 4 kB for bytes, or 500 B for so many bits"),
        (size, "2 Gib", "'2 Gib' may mean bits: write 2 GiB for bytes, or 256 MiB for so many bits"),
        (rate, "1 Gb/s", "'1 Gb/s' may mean bits: write 1 GB/s for bytes, or 125 MB/s for so many bits"),
        (duration_s, "1 Gb/s", "'1 Gb/s' is a rate"),
        (rate, "1 GB", "'1 GB' is a size"),
        (share, "5", "'5' is a number in quotes, without a unit"),
        (share, 5, "5 is out of reach"),
        (share, "0 %", "'0 %' is out of reach"),
        (share, float("nan"), "nan is out of reach"),
    ],
)
def test_a_wrong_one_is_refused_by_what_it_is(read: Callable[[Any], float], value: object, what: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        read(value)
    assert caught.value.context is not None
    assert caught.value.context["what"] == what
    expected = {duration_s: "a duration such as", size: "a size such as", rate: "a rate such as"}
    assert caught.value.context["expected"].startswith(expected.get(read, "a share such as"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (duration_text(5400), "1h30m"),
        (duration_text(90.5), "90.5s"),
        (duration_text(86400), "1d"),
        (size_text(87 * 10**9), "87 GB"),
        (size_text(3 * 2**39), "1.5 TiB"),
        (size_text(1023), "1.023 kB"),
        (size_text(7), "7 B"),
        (rate_text(1e9), "1 GB/s"),
        (share_text(0.05), "5 %"),
        (share_text(1 / 3), 1 / 3),
    ],
)
def test_what_is_shown(text: object, shown: object) -> None:
    assert text == shown


@given(st.floats(1e-3, DURATION_S_MAX) | st.integers(1, int(DURATION_S_MAX)).map(float))
def test_a_duration_is_read_back(amount_s: float) -> None:
    assert duration_s(duration_text(amount_s)) == amount_s


@given(st.integers(1, SIZE_MAX))
def test_a_size_and_a_rate_are_read_back(count: int) -> None:
    assert size(size_text(count)) == pytest.approx(count, rel=2e-16)
    assert rate(rate_text(float(count))) == pytest.approx(count, rel=2e-16)


@given(st.floats(1e-6, 1.0))
def test_a_share_is_read_back(part: float) -> None:
    assert share(share_text(part)) == part
