"""A name to its factory: our own by a table of strings, others' by entry points, both imported late."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from mementum.errors import UsageError

OURS: Mapping[str, Mapping[str, str]] = {
    "mementum.codecs": {
        "raw": "mementum.format.codec:Raw",
        "zstd": "mementum.format.codec:Zstd",
        "planes": "mementum.format.planes:Planes",
    },
}


def factory(group: str, name: str) -> Callable[..., Any]:
    """The factory called `name` in `group`. UsageError names what exists when there is none, or two."""
    ours = OURS[group]
    others = {point.name: point for point in entry_points(group=group)}
    if name in ours:
        if name in others:
            raise UsageError(f"{others[name].value} wants the name {name!r} of {group}, which is ours")
        module, _, attribute = ours[name].partition(":")
        made: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return made
    if name in others:
        loaded: Callable[..., Any] = others[name].load()
        return loaded
    known = ", ".join(sorted({*ours, *others}))
    raise UsageError(f"there is no {name!r} in {group}; there are: {known}")
