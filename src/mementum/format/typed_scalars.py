"""The tagged JSON forms of single values: numbers, text, bytes, times and paths, each exact to the bit."""

from __future__ import annotations

import base64
import math
import os
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
T = TypeVar("T")

PLAIN_INT = 2**63
"""From here on an int is written as hexadecimal: other readers of JSON (jq, JavaScript, C) lose its last digits."""

HEX_INT = re.compile(r"-?0x[0-9a-f]+")
HEX_DOUBLE = re.compile(r"[0-9a-f]{16}")
NESTED = {int: "$int", float: "$float", str: "$str"}
PATHS: Mapping[str, type[PurePath]] = {
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
    # A system has only its own concrete paths: the other's come back as pure ones.
    "PosixPath": PurePosixPath if os.name == "nt" else PosixPath,
    "WindowsPath": WindowsPath if os.name == "nt" else PureWindowsPath,
}


class NoTypedForm(ValueError):
    """A value that cannot be written; whoever knows its path turns this into UnsupportedState."""


def read(data: Any, kind: type[T]) -> T:
    """A number or text inside another value's payload. TypeError if it is not exactly a `kind`."""
    if type(data) is dict and list(data) == [NESTED[kind]]:
        data = DECODERS[NESTED[kind]](data[NESTED[kind]])
    if type(data) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(data).__name__}")
    return data


def parts(payload: Any, least: int, most: int | None = None) -> list[Any]:
    """The payload as a list of `least` to `most` parts. ValueError if it is none."""
    if type(payload) is not list or not least <= len(payload) <= (least if most is None else most):
        raise ValueError(f"expected a list of {least} parts")
    return payload


def encode_int(value: int) -> JSON:
    return value if -PLAIN_INT < value < PLAIN_INT else {"$int": hex(value)}


def decode_int(payload: Any) -> int:
    if HEX_INT.fullmatch(payload) is None:
        raise ValueError("not a hexadecimal integer")
    return int(payload, 16)  # base 16 has no limit of digits, and its time is linear


def encode_float(value: float) -> JSON:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def decode_float(payload: Any) -> float:
    if HEX_DOUBLE.fullmatch(payload) is None:
        raise ValueError("not the 16 hexadecimal digits of a double")
    value: float = struct.unpack(">d", bytes.fromhex(payload))[0]
    return value


def encode_str(value: str) -> JSON:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not UTF-8
        return {"$str": encode_base64(value.encode("utf-8", "surrogatepass"))}
    return value


def decode_str(payload: Any) -> str:
    return decode_base64(payload).decode("utf-8", "surrogatepass")


def encode_base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def decode_base64(payload: Any) -> bytes:
    return base64.b64decode(read(payload, str), validate=True)


def _encode_complex(value: complex) -> JSON:
    return {"$complex": [encode_float(value.real), encode_float(value.imag)]}


def _decode_complex(payload: Any) -> complex:
    real, imag = parts(payload, 2)
    return complex(read(real, float), read(imag, float))


def _encode_range(value: range) -> JSON:
    return {"$range": [encode_int(value.start), encode_int(value.stop), encode_int(value.step)]}


def _decode_range(payload: Any) -> range:
    start, stop, step = (read(part, int) for part in parts(payload, 3))
    return range(start, stop, step)


def _encode_fraction(value: Fraction) -> JSON:
    return {"$fraction": [encode_int(value.numerator), encode_int(value.denominator)]}


def _decode_fraction(payload: Any) -> Fraction:
    numerator, denominator = parts(payload, 2)
    return Fraction(read(numerator, int), read(denominator, int))


def _encode_path(value: PurePath) -> JSON:
    return {"$path": [type(value).__name__, encode_str(str(value))]}


def _decode_path(payload: Any) -> PurePath:
    name, text = parts(payload, 2)
    return PATHS[read(name, str)](read(text, str))


def _days(value: timedelta) -> list[JSON]:
    return [value.days, value.seconds, value.microseconds]


def _decode_timedelta(payload: Any) -> timedelta:
    days, seconds, microseconds = (read(part, int) for part in parts(payload, 3))
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _zone(value: object) -> JSON:
    """Days, seconds and microseconds of a fixed offset, and its name where it has one of its own."""
    if value is None:
        return None
    if type(value) is not timezone:  # a named zone's rules change with the system's tables: it would not be exact
        raise NoTypedForm("has a time zone that is not a fixed offset")
    offset, name = value.utcoffset(None), value.tzname(None)
    return _days(offset) if name == timezone(offset).tzname(None) else [*_days(offset), encode_str(name)]


def _decode_zone(payload: Any) -> timezone:
    *offset, name = parts(payload, 3, 4) if len(payload) == 4 else [*parts(payload, 3), None]
    span = _decode_timedelta(offset)
    return timezone(span) if name is None else timezone(span, read(name, str))


def _encode_moment(value: datetime | time) -> list[JSON]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)]


def _decode_datetime(payload: Any) -> datetime:
    text, fold, zone = parts(payload, 3)
    tzinfo = None if zone is None else _decode_zone(zone)
    return datetime.fromisoformat(read(text, str)).replace(tzinfo=tzinfo, fold=read(fold, int))


def _decode_time(payload: Any) -> time:
    text, fold, zone = parts(payload, 3)
    tzinfo = None if zone is None else _decode_zone(zone)
    return time.fromisoformat(read(text, str)).replace(tzinfo=tzinfo, fold=read(fold, int))


def _as_it_is(value: JSON) -> JSON:
    return value


ENCODERS: dict[type, Callable[[Any], JSON]] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    int: encode_int,
    float: encode_float,
    str: encode_str,
    complex: _encode_complex,
    bytes: lambda value: {"$bytes": encode_base64(value)},
    bytearray: lambda value: {"$bytearray": encode_base64(value)},
    range: _encode_range,
    Fraction: _encode_fraction,
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    date: lambda value: {"$date": value.isoformat()},
    datetime: lambda value: {"$datetime": _encode_moment(value)},
    time: lambda value: {"$time": _encode_moment(value)},
    timedelta: lambda value: {"$timedelta": _days(value)},
    timezone: lambda value: {"$timezone": _zone(value)},
    PurePosixPath: _encode_path,
    PureWindowsPath: _encode_path,
    type(Path()): _encode_path,
}
"""By exact type: a subclass would come back as what it is not."""

DECODERS: dict[str, Callable[[Any], Any]] = {
    "$int": decode_int,
    "$float": decode_float,
    "$str": decode_str,
    "$complex": _decode_complex,
    "$bytes": decode_base64,
    "$bytearray": lambda payload: bytearray(decode_base64(payload)),
    "$range": _decode_range,
    "$fraction": _decode_fraction,
    "$decimal": lambda payload: Decimal(read(payload, str)),
    "$uuid": lambda payload: UUID(read(payload, str)),
    "$date": lambda payload: date.fromisoformat(read(payload, str)),
    "$datetime": _decode_datetime,
    "$time": _decode_time,
    "$timedelta": _decode_timedelta,
    "$timezone": _decode_zone,
    "$path": _decode_path,
}
