"""The seam between checkpoints and the places that hold them: named bytes, written once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from mementum.records import Buffer as Buffer
from mementum.records import record


@record
class Stat:
    """An object's key and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    """Named bytes. Keys are relative paths with `/`; no key leaves the store."""

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        """Stream `chunks` into a new object. Returns when it is whole and durable; before that the key does not
        exist. KeyTaken if it exists already: nothing is overwritten. An exception leaves no object and no leftover
        (as far as the disk still answers)."""
        ...

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        """At most `size` bytes from `start` (all that follow where None); shorter only at the object's end.
        KeyMissing if there is no such object."""
        ...

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """All objects whose key starts with `prefix`, in key order. Unfinished ones are not objects."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; durable on return. Deleting nothing is not an error."""
        ...

    def locate(self, key: str) -> Path | None:
        """A local file that may be read or mapped, or None where there is none."""
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove what puts left behind that nobody is writing any more; the names of what was removed."""
        ...


class Hold(Protocol):
    """A lock on a key that ends with its holder, even by kill -9."""

    def release(self) -> None: ...


class Home(Store, Protocol):
    """The store in which a task lives: it can also grow a journal, hold a key, and tell what stands in a key's way."""

    def taken(self, key: str) -> bool:
        """Whether a put of the key would be refused: by an object, or by something of that name that is none."""
        ...

    def link(self, key: str, new_key: str) -> bool:
        """Make `new_key` another name of the bytes of `key`; durable on return. They stay until both are deleted.
        False where the place cannot; KeyMissing, KeyTaken as with get and put. Not for journals, which grow."""
        ...

    def append(self, key: str, data: bytes) -> None:
        """Append to a journal object (made if missing); durable on return. One writer at a time."""
        ...

    def hold(self, key: str) -> Hold | None:
        """Hold an existing key for this process, or None if another living process holds it."""
        ...
