"""Branch: of which checkpoints a fact may be that was told of a step, where a run has been at that step twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol

from mementum.records import Fact, Manifest, record


@record
class Link:
    """A checkpoint, as far as the line that it stands in goes."""

    id: str
    parent: str | None
    seq: int


class Chain(Protocol):
    """The checkpoints that are known, each with the one it comes from."""

    def at(self, id: str) -> Link | None:
        """The checkpoint of this id, or the newest before it, by the order of ids, which is that of time."""
        ...


class Branches:
    """The chain of a task's manifests, in memory."""

    def __init__(self, manifests: Iterable[Manifest | Link]) -> None:
        self._links = {one.id: Link(id=one.id, parent=one.parent, seq=one.seq) for one in manifests}
        self._ids = sorted(self._links)

    def at(self, id: str) -> Link | None:
        if id in self._links:
            return self._links[id]
        place = bisect_left(self._ids, id)
        return self._links[self._ids[place - 1]] if place else None

    def holds(self, fact: Fact, id: str) -> bool:
        return holds(fact, self._links[id], self)


def holds(fact: Fact, of: Link, chain: Chain) -> bool:
    """Whether a fact is of this checkpoint, whose step it is of. It names the newest checkpoint of the branch on which
    it was told: it is of that one and of those that it comes from. One that names none is of every checkpoint of that
    step."""
    if fact.checkpoint is None or fact.checkpoint == of.id:
        return True
    passed: set[str] = set()
    link = chain.at(fact.checkpoint)
    # What a checkpoint comes from was saved before it, so that behind `of` there is nothing to be found; and no
    # checkpoint comes from itself, whatever a manifest says.
    while link is not None and link.seq >= of.seq and link.id not in passed:
        if link.id == of.id:
            return True
        passed.add(link.id)
        link = None if link.parent is None else chain.at(link.parent)
    return False
