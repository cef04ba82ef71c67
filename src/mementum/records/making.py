"""How a record of ours is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


Buffer = bytes | bytearray | memoryview


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen, slotted, keyword-only dataclass: what every record of ours is."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
