"""The JSON that holds level-2 state (RNG, scheduler, counters, optimizer skeletons) exactly, types and bits.

None, bool, int, float, str, list and dict with str keys are plain JSON. All else is an object with one key, its tag:
`{"$tuple": [1, 2]}`, `{"$int": "0x8000000000000000"}`. The state is a tree: what stands in it twice is written twice.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from mementum.errors import MementumError, NotReadableHere, UnknownFormat, UnsupportedState
from mementum.format import typed_containers, typed_scalars, typed_tensors
from mementum.format.typed_classes import ClassGone, decode_member, encode_member
from mementum.format.typed_scalars import JSON, NoTypedForm, encode_float, encode_int, encode_str, parts, read
from mementum.format.typed_tensors import INLINE_LIMIT
from mementum.records import record

__all__ = [
    "INLINE_LIMIT",
    "JSON",
    "MAX_DEPTH",
    "MAX_SIZE",
    "Encoded",
    "TensorParts",
    "TensorRef",
    "decode",
    "dumps",
    "encode",
    "loads",
]

MAX_DEPTH = 200
"""Containers within one another. Python stops at about 1000 frames, and each level needs up to three."""

MAX_SIZE = 256 * 1024 * 1024
"""Bytes of a document. Ten million indices of a sampler take 80 MB; what is larger is a tensor in disguise."""

MAX_VALUES = 32 * 1024 * 1024
"""Values in a document: as many short numbers as fit in MAX_SIZE. Without it a part that is shared at every level
would double at every level."""

MAX_DIGITS = 20
"""Characters of a plain int: larger ones are tagged, and Python's own limit of digits is never met."""

FAULTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError)
"""What the constructors of the known types raise on a payload that is not theirs."""

MAX_FAULT = 200
"""Characters of such a fault that are passed on: torch adds its whole C++ stack."""


@record
class TensorRef:
    """Stands for a tensor that is stored elsewhere, under `name`."""

    name: str


@record
class TensorParts:
    """Stands for a tensor that is stored elsewhere in parts (sparse, quantised): part to name, and plain facts."""

    kind: str
    parts: Mapping[str, str]
    facts: Mapping[str, Any]


@record
class Encoded:
    """What `encode` has made of a value that may change before the document is written: it goes in as it stands."""

    data: JSON


def encode(value: object, *, path: str = "$") -> JSON:
    """`value` as plain data for `json`. UnsupportedState, naming the path, for what has no typed form."""
    try:
        return Encoder(path).value(value)
    except RecursionError:  # ours is a depth that a fresh stack holds; the caller's may be nearly used up
        raise UnsupportedState(path, value, why="is nested too deeply for what is left of the stack") from None


def decode(data: JSON, *, path: str = "$") -> object:
    """The value that `encode` was given. UnknownFormat for what it never returns; NotReadableHere where a class of the
    state is not there any more."""
    try:
        return Decoder(path).value(data)
    except RecursionError:
        raise UnknownFormat(f"{path}: nested too deeply for what is left of the stack") from None


def dumps(value: object) -> bytes:
    """UTF-8 JSON, the same bytes for the same value. Dicts keep their order: it is part of the state."""
    encoded = encode(value)
    try:
        text = json.dumps(encoded, ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    except RecursionError:
        raise UnsupportedState("$", value, why="is nested too deeply for what is left of the stack") from None
    data = text.encode()
    if len(data) > MAX_SIZE:
        raise UnsupportedState("$", value, why=f"takes {len(data)} bytes of JSON, which is over {MAX_SIZE}")
    return data


def loads(data: bytes | bytearray | memoryview) -> object:
    """The value whose `dumps` is `data`. Never anything but a MementumError, whatever the bytes are."""
    if len(data) > MAX_SIZE:
        raise UnknownFormat(f"$: {len(data)} bytes of typed JSON are over the limit of {MAX_SIZE}")
    try:
        plain: JSON = json.loads(
            str(data, "utf-8"), object_pairs_hook=_distinct, parse_int=_parse_int, parse_constant=_parse_constant
        )
    except RecursionError:
        raise UnknownFormat("$: nested too deeply") from None
    except ValueError as error:
        raise UnknownFormat(f"$: not typed JSON: {error}") from error
    return decode(plain)


def _distinct(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {_shown(twice)} stands twice in one object")
    return fields


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an int of {len(text)} digits, which would have been tagged")
    return int(text)


def _parse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


class _Literal(str):
    """A step of a path that is written as it stands."""

    __slots__ = ()


class _Member(tuple[object]):
    """A step to a member of a set: it has no place, so it is shown itself."""

    __slots__ = ()


def _step(key: object) -> str:
    if type(key) is _Literal:
        return key
    if type(key) is _Member:
        return f"{{{_shown(key[0])}}}"
    if type(key) is str:
        return f".{key}" if key.isidentifier() and key.isascii() else f"[{json.dumps(key)}]"
    return f"[{_shown(key)}]"


def _shown(key: object) -> str:
    """A short repr. An int of thousands of digits has none."""
    try:
        return reprlib.repr(key)
    except ValueError:
        return f"<{type(key).__qualname__}>"


class _Walk:
    """Where a walk down a value stands. A walk that fails leaves its trail lying: it is the path of the failure."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.trail: list[object] = []

    @property
    def path(self) -> str:
        return self.root + "".join(map(_step, self.trail))


def _encode_rare(value: object) -> JSON:
    """What is not told by its exact type: members of enums, and the types of libraries."""
    encoded = encode_member(value) if isinstance(value, Enum) else typed_tensors.encode(value)
    if encoded is not None:
        return encoded
    known = LEAF_ENCODERS.keys() | typed_containers.ENCODERS.keys()
    plain = next((parent for parent in type(value).__mro__ if parent in known), None)
    if plain is None:
        raise NoTypedForm("has no typed form")
    raise NoTypedForm(f"is a subclass of {plain.__name__}, whose class would be lost")


class Encoder(_Walk):
    """One walk from a value to its JSON. `open` are the containers that it is in, to see a value in itself."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.open: set[int] = set()
        self.count = 0

    def value(self, value: object) -> JSON:
        try:
            leaf = LEAF_ENCODERS.get(type(value))
            if leaf is not None:
                return leaf(value)
            branch = typed_containers.encoder_of(value)
            if branch is None:
                return _encode_rare(value)
            if id(value) in self.open:
                raise NoTypedForm("refers to itself")
            if len(self.open) == MAX_DEPTH:
                raise NoTypedForm(f"lies within {MAX_DEPTH} others, which is the limit")
            self.open.add(id(value))
            encoded = branch(self, value)
            self.open.remove(id(value))
            return encoded
        except NoTypedForm as refusal:
            raise self.refused(value, str(refusal)) from None

    def items(self, values: Collection[object]) -> list[JSON]:
        self.counted(values)
        encoded: list[JSON] = []
        for index, value in enumerate(values):
            self.trail.append(index)
            encoded.append(self.value(value))
            self.trail.pop()
        return encoded

    def fields(self, names: Iterable[str], values: Iterable[object]) -> list[JSON]:
        encoded: list[JSON] = []
        for name, value in zip(names, values, strict=True):
            self.trail.append(name)
            encoded.append(self.value(value))
            self.trail.pop()
        return encoded

    def pairs(self, values: Mapping[Any, object]) -> list[JSON]:
        self.counted(values)
        encoded: list[JSON] = []
        for index, (key, value) in enumerate(values.items()):
            self.trail.append(_Literal(f".keys()[{index}]"))
            self.check_key(key)
            name = self.value(key)
            self.trail[-1] = key
            encoded.append([name, self.value(value)])
            self.trail.pop()
        return encoded

    def members(self, values: Collection[object]) -> list[JSON]:
        self.counted(values)
        encoded: list[JSON] = []
        for value in values:
            self.trail.append(_Member((value,)))
            self.check_key(value)
            encoded.append(self.value(value))
            self.trail.pop()
        return encoded

    def check_key(self, key: object) -> None:
        if not _may_be_key(key):
            raise self.refused(key, "has no equal after a resume, so cannot be a key or a member of a set")

    def counted(self, values: Collection[object]) -> None:
        self.count += len(values)
        if self.count > MAX_VALUES:
            raise self.refused(values, f"brings the state to more than {MAX_VALUES} values, shared ones counted again")

    def refused(self, value: object, why: str) -> UnsupportedState:
        return UnsupportedState(self.path, value, why=why)


class Decoder(_Walk):
    """One walk from JSON to the value. The path is that of the value, as it was when it was encoded."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.depth = 0

    def value(self, data: Any) -> Any:
        kind = type(data)
        if kind is str or kind is bool or data is None:
            return data
        try:
            if kind is int or kind is float:
                return _plain_number(data)
            tag = _tag(data)
            leaf = LEAF_DECODERS.get(tag)
            if leaf is not None:
                return leaf(data[tag])
            branch = typed_containers.DECODERS.get(tag)
            if branch is None:
                raise ValueError(f"the tag {tag!r} is unknown")
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ValueError(f"lies within {MAX_DEPTH} others, which is the limit")
            decoded = branch(self, data[tag] if tag[0] == "$" else data)
            self.depth -= 1
            return decoded
        except (MementumError, RecursionError):
            raise
        except ClassGone as gone:
            raise NotReadableHere(f"{self.path}: {gone}", next_command=gone.next_command) from None
        except FAULTS as fault:
            what = (str(fault).splitlines() or [type(fault).__name__])[0][:MAX_FAULT]
            raise UnknownFormat(
                f"{self.path}: not what this mementum writes: {what}",
                next_command="upgrade mementum, if a newer one wrote it; else verify the checkpoint",
            ) from fault

    def items(self, data: Any) -> list[Any]:
        decoded = []
        for index, item in enumerate(parts(data, 0, MAX_VALUES)):
            self.trail.append(index)
            decoded.append(self.value(item))
            self.trail.pop()
        return decoded

    def fields(self, names: Iterable[str], data: Iterable[Any]) -> list[Any]:
        decoded = []
        for name, item in zip(names, data, strict=True):
            self.trail.append(name)
            decoded.append(self.value(item))
            self.trail.pop()
        return decoded

    def pairs(self, data: Any, into: dict[Any, Any]) -> dict[Any, Any]:
        for index, pair in enumerate(parts(data, 0, MAX_VALUES)):
            name, item = parts(pair, 2)
            self.trail.append(_Literal(f".keys()[{index}]"))
            key = self.value(name)
            if not _may_be_key(key) or key in into:
                raise ValueError("a key that stands twice, or cannot be one")
            self.trail[-1] = key
            into[key] = self.value(item)
            self.trail.pop()
        return into

    def members(self, data: Any) -> set[Any]:
        decoded = set(self.items(data))
        if len(decoded) != len(data) or not all(map(_may_be_key, decoded)):
            raise ValueError("a member that stands twice, or cannot be one")
        return decoded


def _plain_number(value: int | float) -> int | float:
    encoded = encode_int(value) if isinstance(value, int) else encode_float(value)
    if encoded is not value:
        raise ValueError("a number that would have been tagged")
    return value


def _tag(data: Any) -> str:
    """The tag of an object that has one, else "list" or "dict"."""
    if type(data) is list:
        return "list"
    if type(data) is not dict:
        raise TypeError(f"{type(data).__name__} is not JSON")
    marked = [key for key in data if key[:1] == "$"]
    if marked and len(data) > 1:
        raise ValueError(f"the tag {marked[0]!r} stands beside other keys")
    return marked[0] if marked else "dict"


def _may_be_key(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_may_be_key, value))
    return type(value) not in (TensorRef, TensorParts) and not typed_tensors.is_tensor(value)


LEAF_ENCODERS: dict[type, Callable[[Any], JSON]] = {
    **typed_scalars.ENCODERS,
    Encoded: lambda encoded: encoded.data,
    TensorRef: lambda ref: {"$tensor": encode_str(ref.name)},
    TensorParts: lambda it: {"$tensor_parts": [it.kind, dict(it.parts), dict(it.facts)]},
}

LEAF_DECODERS: dict[str, Callable[[Any], Any]] = {
    **typed_scalars.DECODERS,
    **typed_tensors.DECODERS,
    "$enum": decode_member,
    "$tensor": lambda payload: TensorRef(name=read(payload, str)),
    "$tensor_parts": lambda payload: _parts_of(payload),
}


def _parts_of(payload: JSON) -> TensorParts:
    kind, names, facts = parts(payload, 3)
    if not isinstance(names, dict) or not isinstance(facts, dict):
        raise TypeError("parts and facts are objects")
    return TensorParts(kind=read(kind, str), parts={part: read(name, str) for part, name in names.items()}, facts=facts)
