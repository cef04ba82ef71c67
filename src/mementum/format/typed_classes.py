"""The classes that typed JSON names (of enum members, of namedtuples): found among what is imported, never imported."""

from __future__ import annotations

import sys
from enum import Enum, Flag
from typing import Any

from mementum.format.typed_scalars import JSON, NoTypedForm, encode_int, encode_str, parts, read


class ClassGone(LookupError):
    """A class that the state names is not there; whoever knows the path turns this into NotReadableHere."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}")
        module = name.partition(":")[0]
        self.next_command = f"import {module} before resuming, in the version that saved the state"


def class_name(kind: type) -> str:
    """`module:Qualname`. NoTypedForm where that does not lead back to `kind` (it is local to a function, or hidden)."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(name) is not kind:
        raise NoTypedForm("is of a class that cannot be found by its name; define it at the top of a module")
    return name


def stored_class(name: Any, parent: type) -> Any:
    """The class that was saved as `name`. ClassGone if there is none, or none that is a `parent`."""
    kind = _find(read(name, str))
    if kind is None:
        raise ClassGone(name, "is not among the imported modules")
    if not isinstance(kind, type) or not issubclass(kind, parent):
        raise ClassGone(name, f"is not a class of the kind {parent.__name__} any more")
    return kind


def _find(name: str) -> object:
    """Through namespaces only: getattr could run a module's code, and an import certainly would."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(step)
    return found


def encode_member(member: Enum) -> JSON:
    """A member by its name; a combination of flags, which may have none, by its value."""
    kind = type(member)
    name = class_name(kind)
    if kind.__members__.get(str(member._name_)) is member:
        return {"$enum": [name, encode_str(str(member._name_))]}
    if isinstance(member, Flag):
        return {"$enum": [name, encode_int(member._value_)]}
    raise NoTypedForm("is no member of its own class")


def decode_member(payload: Any) -> Enum:
    name, which = parts(payload, 2)
    kind = stored_class(name, Enum)
    if type(which) is str or (type(which) is dict and "$str" in which):
        member: Enum | None = kind.__members__.get(read(which, str))
        if member is None:
            raise ClassGone(name, f"has no member {which!r} any more")
        return member
    value = read(which, int)
    combined: Any = kind(value) if issubclass(kind, Flag) and kind.__members__ else None
    if not isinstance(combined, Flag) or type(combined) is not kind or combined._value_ != value:
        raise ValueError(f"{value} is no combination of flags of {name}")
    return combined


def is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and type(getattr(type(value), "_fields", None)) is tuple


def namedtuple_class(name: Any, fields: list[str]) -> Any:
    """The class of a namedtuple with exactly these fields. ClassGone where it has others now."""
    kind = stored_class(name, tuple)
    present = getattr(kind, "_fields", None)
    if present != tuple(fields):
        raise ClassGone(name, f"has the fields {present} now, and had {tuple(fields)} when it was saved")
    return kind
