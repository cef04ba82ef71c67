"""Amounts: sizes, counts and times as people write them, `1.2GB`, `7B`, `10m`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mementum.errors import UsageError

NUMBER = r"(?P<number>\d{1,18}(?:\.\d{1,18})?(?:[eE]\+?\d{1,2})?)"
AMOUNT = re.compile(rf"{NUMBER}\s*(?P<unit>[a-zA-Z]*)", re.ASCII)
SIZES = {"": 1, "b": 1}
SIZES |= {
    form: factor
    for power, letter in enumerate("kmgt", start=1)
    for forms, factor in (((letter, f"{letter}b"), 1000**power), ((f"{letter}i", f"{letter}ib"), 1024**power))
    for form in forms
}
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
TIMES = {"ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
STEPS = {"step": 1, "steps": 1}
BYTES_MAX = 1 << 50  # no machine has that much memory
COUNT_MAX = 10**14  # of parameters; no model has a thousandth of it
TIME_S_MAX = 366 * 86400.0  # a year; who saves less often does not save


def size(option: str, text: str) -> int:
    """Bytes. GB is 10^9 of them, GiB 2^30."""
    return round(_amount(option, text, SIZES, "a size such as 1.2GB or 800MiB", least=1, most=BYTES_MAX))


def count(option: str, text: str) -> int:
    """How many: 124000000, 124M, 7B."""
    return round(_amount(option, text, COUNTS, "a number such as 124M or 7B", least=1, most=COUNT_MAX))


def time_s(option: str, text: str) -> float:
    """Seconds. There is no bare number: it could mean minutes or steps."""
    return _amount(option, text, TIMES, "a time such as 500ms, 0.5s, 10m or 2h", least=1e-6, most=TIME_S_MAX)


def interval(option: str, text: str) -> tuple[float | None, int | None]:
    """Seconds, or steps; the other one is None."""
    wanted = "an interval such as 10m or 100steps"
    found = AMOUNT.fullmatch(text.strip())
    if found is not None and found["unit"].lower() in STEPS:
        return None, round(_amount(option, text, STEPS, wanted, least=1, most=COUNT_MAX))
    return _amount(option, text, TIMES, wanted, least=1e-3, most=TIME_S_MAX), None


def _amount(option: str, text: str, units: Mapping[str, float], wanted: str, *, least: float, most: float) -> float:
    found = AMOUNT.fullmatch(text.strip())
    if found is None or found["unit"].lower() not in units:
        raise UsageError(f"{option}: {text[:60]!r} is not {wanted}", next_command="mementum plan --help")
    amount = float(found["number"]) * units[found["unit"].lower()]
    if not least <= amount <= most:
        raise UsageError(
            f"{option}: {text[:60]!r} is out of reach: from {least:g} to {most:g} can be planned",
            next_command="mementum plan --help",
        )
    return amount
