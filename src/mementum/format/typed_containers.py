"""The tagged JSON forms of containers: what is written around the values that a walk goes down to."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mementum.format.typed_classes import class_name, is_namedtuple, namedtuple_class
from mementum.format.typed_scalars import JSON, NoTypedForm, encode_str, parts, read

if TYPE_CHECKING:
    from mementum.format.typed_json import Decoder, Encoder

FACTORIES: dict[str, type] = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}
"""What a defaultdict may make: builtins, told by name. Any other is a function, and functions are not data."""

SLICE = ("start", "stop", "step")


def encoder_of(value: object) -> Callable[[Encoder, Any], JSON] | None:
    """How a container is written; None if it is none that we know."""
    return ENCODERS.get(type(value)) or (_encode_namedtuple if is_namedtuple(value) else None)


def _encode_dict(walk: Encoder, value: dict[Any, Any]) -> JSON:
    if not all(map(_is_field, value)):
        return {"$dict": walk.pairs(value)}
    walk.counted(value)
    encoded: dict[str, JSON] = {}
    for key, item in value.items():
        walk.trail.append(key)
        encoded[key] = walk.value(item)
        walk.trail.pop()
    return encoded


def _is_field(key: object) -> bool:
    """Whether a key may stand as it is: text that is no tag."""
    return type(key) is str and key[:1] != "$" and encode_str(key) is key


def _decode_dict(walk: Decoder, data: dict[str, Any]) -> dict[str, Any]:
    decoded = {}
    for key, item in data.items():
        walk.trail.append(key)
        decoded[key] = walk.value(item)
        walk.trail.pop()
    return decoded


def _encode_set(walk: Encoder, value: set[Any] | frozenset[Any]) -> JSON:
    """In the order of their JSON, because a set's own differs from process to process."""
    members = sorted(walk.members(value), key=lambda member: json.dumps(member, ensure_ascii=False))
    return {"$set" if type(value) is set else "$frozenset": members}


def _encode_deque(walk: Encoder, value: deque[Any]) -> JSON:
    return {"$deque": [walk.items(value), value.maxlen]}


def _decode_deque(walk: Decoder, payload: Any) -> deque[Any]:
    data, maxlen = parts(payload, 2)
    items = walk.items(data)
    if maxlen is not None and read(maxlen, int) < len(items):
        raise ValueError(f"{len(items)} items in a deque for {maxlen}")
    return deque(items, maxlen)


def _encode_ordered_dict(walk: Encoder, value: OrderedDict[Any, Any]) -> JSON:
    """With its attributes: a module's state_dict keeps its `_metadata` in one."""
    return {"$ordered_dict": [walk.pairs(value), walk.value(vars(value))]}


def _decode_ordered_dict(walk: Decoder, payload: Any) -> OrderedDict[Any, Any]:
    pairs, attributes = parts(payload, 2)
    decoded: OrderedDict[Any, Any] = OrderedDict()
    walk.pairs(pairs, decoded)
    vars(decoded).update(_attributes(walk, attributes))
    return decoded


def _decode_namespace(walk: Decoder, payload: Any) -> SimpleNamespace:
    return SimpleNamespace(**_attributes(walk, payload))


def _attributes(walk: Decoder, payload: Any) -> dict[str, Any]:
    attributes = walk.value(payload)
    if type(attributes) is not dict or not all(type(name) is str for name in attributes):
        raise TypeError("attributes are not a dict of names")
    return attributes


def _encode_defaultdict(walk: Encoder, value: defaultdict[Any, Any]) -> JSON:
    factory = value.default_factory
    name = next((name for name, known in FACTORIES.items() if known is factory), None)
    if name is None and factory is not None:
        walk.trail.append("default_factory")
        raise walk.refused(factory, f"is none of {', '.join(FACTORIES)}")
    return {"$defaultdict": [name, walk.pairs(value)]}


def _decode_defaultdict(walk: Decoder, payload: Any) -> defaultdict[Any, Any]:
    name, pairs = parts(payload, 2)
    decoded: defaultdict[Any, Any] = defaultdict(None if name is None else FACTORIES[name])
    walk.pairs(pairs, decoded)
    return decoded


def _decode_counter(walk: Decoder, payload: Any) -> Counter[Any]:
    decoded: Counter[Any] = Counter()
    walk.pairs(payload, decoded)
    return decoded


def _encode_slice(walk: Encoder, value: slice) -> JSON:
    return {"$slice": walk.fields(SLICE, (value.start, value.stop, value.step))}


def _decode_slice(walk: Decoder, payload: Any) -> slice:
    start, stop, step = walk.fields(SLICE, parts(payload, 3))
    return slice(start, stop, step)


def _encode_namedtuple(walk: Encoder, value: Any) -> JSON:
    kind = type(value)
    if getattr(value, "__dict__", None):
        raise NoTypedForm("has attributes beside its fields, which would be lost")
    if len(kind._fields) != len(value):
        raise NoTypedForm("has not as many values as fields")
    fields: list[JSON] = [encode_str(field) for field in kind._fields]
    return {"$namedtuple": [class_name(kind), fields, walk.fields(kind._fields, value)]}


def _decode_namedtuple(walk: Decoder, payload: Any) -> Any:
    name, fields, values = parts(payload, 3)
    names = [read(field, str) for field in parts(fields, 0, len(fields))]
    kind = namedtuple_class(name, names)
    return tuple.__new__(kind, walk.fields(names, parts(values, len(names))))  # not by the class's own __new__


ENCODERS: dict[type, Callable[[Encoder, Any], JSON]] = {
    dict: _encode_dict,
    list: lambda walk, value: walk.items(value),
    tuple: lambda walk, value: {"$tuple": walk.items(value)},
    set: _encode_set,
    frozenset: _encode_set,
    deque: _encode_deque,
    Counter: lambda walk, value: {"$counter": walk.pairs(value)},
    OrderedDict: _encode_ordered_dict,
    defaultdict: _encode_defaultdict,
    slice: _encode_slice,
    SimpleNamespace: lambda walk, value: {"$namespace": walk.value(vars(value))},
}

DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "dict": _decode_dict,
    "list": lambda walk, data: walk.items(data),
    "$dict": lambda walk, payload: walk.pairs(payload, {}),
    "$tuple": lambda walk, payload: tuple(walk.items(payload)),
    "$set": lambda walk, payload: walk.members(payload),
    "$frozenset": lambda walk, payload: frozenset(walk.members(payload)),
    "$deque": _decode_deque,
    "$counter": _decode_counter,
    "$ordered_dict": _decode_ordered_dict,
    "$defaultdict": _decode_defaultdict,
    "$slice": _decode_slice,
    "$namespace": _decode_namespace,
    "$namedtuple": _decode_namedtuple,
}
"""By tag; `dict` and `list` are JSON's own."""
