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
        (as far as the disk still answers). Unreachable, AccessRefused where a server is asked; a lost answer leaves it
        open whether there is an object.

        Who asks for the next chunk gives the last one back: its memory may be used again.

        Chunks may be an iterator, which is gone through once. Of a list, or of anything else that begins anew each
        time, a store may send what got lost again."""
        ...

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        """At most `size` bytes from `start` (all that follow where None); shorter only at the object's end: an answer
        that breaks off is Unreachable. KeyMissing if there is no such object."""
        ...

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """All objects whose key starts with `prefix`, in key order. Unfinished ones are not objects."""
        ...

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """The names right below `prefix`, which is empty or ends with a slash, that have objects below them, sorted.
        It looks no deeper, so that a root with a million checkpoints can be looked over: a name under which nothing is
        left, or is only being put, may be among them."""
        ...

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        """Put whole bytes in the place of damaged ones, or of none: readers find the old object or the new one, and it
        is durable on return. An exception leaves one of both, whole. Only for bytes that a manifest names, for copies
        of journals, which grow, and for marks of half copies, which change hands: all else is created once."""
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


def size_of(store: Store, key: str) -> int | None:
    """Bytes of the object, None where there is none: it comes first of all whose keys begin with its own."""
    first = next(iter(store.list(key)), None)
    return None if first is None or first.key != key else first.size


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
