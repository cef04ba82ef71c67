"""Quantities: durations, sizes, rates and shares as people write them in a configuration, `1h30m`, `1.5 TiB`, `5 %`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from mementum.records import record

AMOUNT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?)\s*(?P<unit>[a-z%]*(?:/s)?)", re.ASCII | re.IGNORECASE)
CLOCK_PARTS = re.compile(r"(?:\d{1,18}(?:\.\d{1,18})?\s*(?:ms|min|[dhms])\s*)+", re.ASCII | re.IGNORECASE)
CLOCK_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|min|[dhms])", re.ASCII | re.IGNORECASE)
TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"b": 1} | {
    form: factor
    for power, letter in enumerate("kmgtp", start=1)
    for form, factor in ((f"{letter}b", 1000**power), (f"{letter}ib", 1024**power))
}
BITS = 8  # in a byte; the speeds of networks are told in bits, with a small b
DURATION_S_MIN = 1e-3  # nothing here is decided more often than once a millisecond
DURATION_S_MAX = 366 * 86400.0  # a year; no interval, tolerance or wall time of a training is longer
SIZE_MAX = 1 << 60  # an EiB; no store that a training writes to holds more
SHOWN_MAX = 40  # characters of a wrong value that a message repeats


@record
class Kind:
    """One kind of quantity. `expected` ends the sentence "… was expected"."""

    name: str
    expected: str


DURATION = Kind(name="a duration", expected="a duration such as 10m, 60s or 1h30m")
SIZE = Kind(name="a size", expected='a size such as 87GB or "1.5 TiB"')
RATE = Kind(name="a rate", expected='a rate such as "1 GB/s"')
SHARE = Kind(name="a share", expected='a share such as "5 %" or 0.05, more than 0 and at most 1')


def wrong(value: object, kind: Kind, why: str | None = None) -> PydanticCustomError:
    """The finding that `value` is not what `kind` is."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"
    reason = why or f"is {kind_of(value)}"
    fields = {"what": f"{shown} {reason}", "expected": kind.expected}
    return PydanticCustomError("quantity", "{what}; expected {expected}", fields)


def kind_of(value: object) -> str:
    """What a value looks like, in words: where a duration was expected, "10 GB" is a size."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if not isinstance(value, str):
        return "a list" if isinstance(value, list | tuple) else _type_of(value)
    text = value.strip()
    found = AMOUNT.fullmatch(text)
    unit = found["unit"].lower() if found is not None else None
    if unit == "%":
        return SHARE.name
    if unit in SIZES:
        return SIZE.name
    if unit is not None and unit.removesuffix("/s") in SIZES:
        return RATE.name
    if CLOCK_PARTS.fullmatch(text):
        return DURATION.name
    if unit == "":
        return "a number in quotes, without a unit"
    return f"a number with the unknown unit {found['unit']!r}" if found is not None else "a text"


def _type_of(value: object) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def duration_s(value: object) -> float:
    """Seconds, of `10m`, `1h30m`, or of a plain number."""
    if isinstance(value, str):
        if not CLOCK_PARTS.fullmatch(value.strip()):
            raise wrong(value, DURATION)
        amount = 0.0
        for part in CLOCK_PART.finditer(value):
            amount += float(part["number"]) * TIMES[part["unit"].lower()]
        return _within(value, amount, DURATION)
    return _within(value, _plain(value, DURATION), DURATION)


def size(value: object) -> int:
    """Bytes, of `87GB`, `1.5 TiB`, or of a plain number. GB is 10^9 of them, GiB 2^30."""
    return round(_within(value, _bytes(value, SIZE, ""), SIZE))


def rate(value: object) -> float:
    """Bytes a second, of `1 GB/s`, or of a plain number."""
    return float(round(_within(value, _bytes(value, RATE, "/s"), RATE)))


def share(value: object) -> float:
    """A part of a whole, more than 0 and at most 1, of `5 %` or of a plain number."""
    if isinstance(value, str):
        found = AMOUNT.fullmatch(value.strip())
        if found is None or found["unit"] != "%":
            raise wrong(value, SHARE)
        part = float(found["number"]) / 100
    else:
        part = _plain(value, SHARE)
    if not 0 < part <= 1:
        raise wrong(value, SHARE, "is out of reach")
    return part


def _bytes(value: object, kind: Kind, ending: str) -> float:
    if not isinstance(value, str):
        return _plain(value, kind)
    found = AMOUNT.fullmatch(value.strip())
    unit = found["unit"] if found is not None else ""
    name = unit.lower().removesuffix(ending)
    if found is None or not unit.lower().endswith(ending) or name not in SIZES:
        raise wrong(value, kind)
    factor: int = SIZES[name]
    amount = float(found["number"]) * factor
    if len(name) > 1 and unit[len(name) - 1] == "b":
        in_bytes = f"{found['number']} {_spelled(name)}{ending}"
        in_bits = f"{size_text(round(amount / BITS))}{ending}"
        raise wrong(value, kind, f"may mean bits: write {in_bytes} for bytes, or {in_bits} for so many bits")
    return amount


def _plain(value: object, kind: Kind) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(value, kind)
    try:
        return float(value)
    except OverflowError:
        return SIZE_MAX * 2.0  # out of reach, which is then said


def _within(value: object, amount: float, kind: Kind) -> float:
    least, most = (DURATION_S_MIN, DURATION_S_MAX) if kind is DURATION else (1, SIZE_MAX)
    if not least <= amount <= most:  # NaN is in no range
        raise wrong(value, kind, f"is out of reach: it must be from {least:g} to {most:g}")
    return amount


def duration_text(amount_s: float) -> str:
    """As `duration_s` reads it back, in the largest units that tell it exactly: 1h30m, 90.5s."""
    if amount_s != int(amount_s):
        return f"{amount_s!r}s"
    left, text = int(amount_s), ""
    for unit in ("d", "h", "m", "s"):
        number, left = divmod(left, int(TIMES[unit]))
        text += f"{number}{unit}" if number else ""
    return text


def size_text(count: int) -> str:
    """As `size` reads it back, in the largest unit that tells it in at most three digits after the point."""
    for unit, factor in sorted(SIZES.items(), key=lambda unit: -unit[1]):
        text = f"{count / factor:.3f}".rstrip("0").rstrip(".")
        if count >= factor and round(float(text) * factor) == count:
            return f"{text} {_spelled(unit)}"
    return f"{count} B"


def rate_text(per_s: float) -> str:
    """As `rate` reads it back."""
    return f"{size_text(int(per_s))}/s"


def share_text(part: float) -> str | float:
    """As `share` reads it back: in percent, where that is the same number."""
    percent = f"{part * 100:.6g}"
    return f"{percent} %" if "e" not in percent and float(percent) / 100 == part else part


def _spelled(unit: str) -> str:
    return unit.upper().replace("I", "i").replace("K", "k" if unit == "kb" else "K")


def _quantity(read: Callable[[Any], Any], text: Callable[[Any], str], kind: Kind) -> tuple[Any, ...]:
    return (
        BeforeValidator(read),
        PlainSerializer(text, when_used="json"),
        WithJsonSchema({"type": ["string", "number"], "format": kind.name.removeprefix("a ")}),
    )


Duration = Annotated[float, *_quantity(duration_s, duration_text, DURATION)]
Size = Annotated[int, *_quantity(size, size_text, SIZE)]
Rate = Annotated[float, *_quantity(rate, rate_text, RATE)]
Share = Annotated[float, *_quantity(share, share_text, SHARE)]
