"""Halves: copies of checkpoints that have begun in a store, each with a mark that says which writer has it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping

from mementum.errors import CheckpointError, KeyMissing, KeyTaken
from mementum.execute.remove import MARK
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.storage.store import Store

MARKED = re.compile(rf"{MARK}(c[0-9a-z]{{1,64}})\.json")
MARK_SIZE_MAX = 4096  # bytes: a mark has some tens


class TakenOver(Exception):
    """Another process goes on with this half copy, or has taken it away."""

    def __init__(self) -> None:
        super().__init__("another process copies it there at this moment, or takes its half copy away")


class Half:
    """A copy of the checkpoint `id` that has begun in `folder`, as one of its writers sees it.

    Who begins it, goes on with it or takes it away first puts a number of its own into the mark, and looks for
    manifests before and after it takes away anything. Who puts a manifest looks at the mark afterwards. So of two that
    know nothing of each other at least one sees the other, whichever is killed."""

    def __init__(self, store: Store, folder: str, id: str) -> None:
        self.store, self.folder, self.id = store, folder, id
        self._number = os.urandom(8).hex()

    @property
    def mark(self) -> str:
        """The mark's key."""
        return f"{self.folder}/{mark_name(self.id)}"

    def take(self, said: Mapping[str, object]) -> dict[str, int]:
        """Make it ours; names and sizes of what lies there then. TakenOver where a copy of another checkpoint has
        begun in the folder meanwhile."""
        body = json.dumps({"id": self.id, **said, "number": self._number}).encode()
        try:
            self.store.put(self.mark, [body])
        except KeyTaken:
            self.store.replace(self.mark, [body])
        there = _names(self.store, self.folder)
        if marks(there) != [self.id]:
            self.store.delete(self.mark)
            raise TakenOver
        return {name: size for name, size in there.items() if name != mark_name(self.id)}

    def is_ours(self) -> bool:
        """Whether nobody has made it theirs since."""
        try:
            said = json.loads(bytes(self.store.get(self.mark, 0, MARK_SIZE_MAX)))
        except (KeyMissing, ValueError):
            return False
        return isinstance(said, dict) and said.get("number") == self._number

    def remove(self, names: Iterable[str]) -> None:
        """Take away what an earlier try sent, but for what a manifest names. TakenOver if it is not ours any more."""
        stale = set(names)
        if not stale:
            return
        if not self.is_ours():
            raise TakenOver
        before = _standing(self.store, self.folder)
        stale -= {name for named in before.values() for name in named}
        for name in sorted(stale):
            self.store.delete(f"{self.folder}/{name}")
        self._withdraw(stale, before)

    def clear(self) -> bool:
        """Take all of it away, unless a manifest came there; what marks it goes last. Whether it did."""
        before = _standing(self.store, self.folder)
        names = set(_names(self.store, self.folder)) - {mark_name(self.id)}
        if not before:
            for name in sorted(names, key=lambda name: (name.startswith(MARK), name)):
                self.store.delete(f"{self.folder}/{name}")
            self._withdraw(names, {})
        self.end()
        return not before

    def end(self) -> None:
        """It is whole, or gone."""
        self.store.delete(self.mark)

    def _withdraw(self, gone: set[str], before: Mapping[str, frozenset[str]]) -> None:
        """A manifest that came while we took away what it names stands for nothing."""
        for name, named in _standing(self.store, self.folder).items():
            if name not in before and named & gone:
                self.store.delete(f"{self.folder}/{name}")


def mark_name(id: str) -> str:
    return f"{MARK}{id}.json"


def marks(names: Iterable[str]) -> list[str]:
    """The ids of the checkpoints whose half copies have these names."""
    return [match[1] for name in names if (match := MARKED.fullmatch(name))]


def clear_folder(store: Store, folder: str, names: Iterable[str]) -> bool:
    """Take away a half copy that others have begun. Whether it was one still."""
    half = Half(store, folder, marks(names)[0])
    for id in marks(names):
        other = Half(store, folder, id)
        store.replace(other.mark, [json.dumps({"id": id, "number": half._number}).encode()])
    return half.clear()


def clear_halves(store: Store, wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Take away half copies of checkpoints that are not `wanted`, by their ids, and marks beside what is whole; their
    folders. Only the holder of the task may, and not while it places something there itself."""
    found: dict[str, list[str]] = {}
    for stat in store.list("step_"):
        folder, _, name = stat.key.partition("/")
        found.setdefault(folder, []).append(name)
    cleared: list[str] = []
    for folder, names in found.items():
        ids = marks(names)
        if generations.standing(names):
            for id in ids:
                store.delete(f"{folder}/{mark_name(id)}")
        elif ids and not any(wanted(id) for id in ids) and clear_folder(store, folder, names):
            cleared.append(folder)
    return tuple(cleared)


def _names(store: Store, folder: str) -> dict[str, int]:
    return {stat.key.removeprefix(f"{folder}/"): stat.size for stat in store.list(f"{folder}/")}


def _standing(store: Store, folder: str) -> dict[str, frozenset[str]]:
    """The manifests there, and the names that must stay for each: its own, and those of its files."""
    found: dict[str, frozenset[str]] = {}
    for stat in store.list(f"{folder}/meta"):
        name = stat.key.removeprefix(f"{folder}/")
        if generations.generation_of(name) is None:
            continue
        try:
            files = generations.parse(store.get(stat.key, 0, manifests.READ_MAX), name).files
        except (CheckpointError, KeyMissing):
            files = ()
        found[name] = frozenset({name, *(file.name for file in files if file.folder is None)})
    return found
