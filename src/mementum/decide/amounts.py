"""Amounts as they stand in reasons: seconds, bytes and shares for people."""

from __future__ import annotations

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0
PLENTY = 3  # how many of a unit there are before it is used: 150 s, then 3 min; fewer would round too much
SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(amount_s: float) -> str:
    """A duration to three digits: 0.4 s, 31 s, 20 min, 4.5 h, 12 d."""
    for unit_s, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if abs(amount_s) >= PLENTY * unit_s:
            return f"{amount_s / unit_s:.3g} {name}"
    return f"{amount_s:.3g} s"


def size(amount: float) -> str:
    """Bytes to three digits, in powers of a thousand: 87 GB."""
    for unit, name in SIZES:
        if abs(amount) >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount:.0f} bytes"


def amount(value: float, unit: str) -> str:
    """A value of a budget in its unit: `s`, and `bytes` with what follows it, as above, others as they are."""
    if unit == "s":
        return seconds(value)
    if unit == "bytes/s":
        return f"{size(value)}/s"
    kind, _, where = unit.partition(" ")
    if kind == "bytes":
        return f"{size(value)} {where}".rstrip()
    return f"{value:.3g} {unit}"


def share(part: float) -> str:
    """A part of the whole: 5 %."""
    return f"{100 * part:.3g} %"
