"""Amounts in reasons: three digits, in the unit that a person would use."""

from __future__ import annotations

import pytest

from mementum.decide.amounts import amount, seconds, share, size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0123, "0.0123 s"),
        (150.0, "150 s"),
        (180.0, "3 min"),
        (16_200.0, "4.5 h"),
        (1_036_800.0, "12 d"),
        (-1.0, "-1 s"),
    ],
)
def test_durations(value: float, said: str) -> None:
    assert seconds(value) == said


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (87e9, "bytes", "87 GB"),
        (87e9, "bytes to the ssd", "87 GB to the ssd"),
        (1.5e6, "bytes/s", "1.5 MB/s"),
        (600.0, "s", "10 min"),
        (2.5, "a day", "2.5 a day"),
    ],
)
def test_values_of_budgets(value: float, unit: str, said: str) -> None:
    assert amount(value, unit) == said


def test_bytes_and_shares() -> None:
    assert [size(999), size(1e3), size(7.5e12)] == ["999 bytes", "1 kB", "7.5 TB"]
    assert [share(0.05), share(0.125)] == ["5 %", "12.5 %"]
