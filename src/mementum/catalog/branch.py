"""Branch: of which checkpoints a fact may be that was told of a step, where a run has been at that step twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from mementum.records import Fact, Manifest


class Branches:
    """A fact of a step names the newest checkpoint of the branch on which it was told: it is of that checkpoint and of
    those that it comes from. One that names none is of every checkpoint of that step."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._parents = {manifest.id: manifest.parent for manifest in manifests}
        self._ids = sorted(self._parents)  # by time
        self._lines: dict[str, frozenset[str]] = {}

    def holds(self, fact: Fact, id: str) -> bool:
        """Whether this fact is of the checkpoint `id`, whose step it is of."""
        return fact.checkpoint is None or id in self._line(fact.checkpoint)

    def _line(self, newest: str) -> frozenset[str]:
        """The checkpoint and those it comes from. Where one was removed it goes on from the newest before that."""
        if newest not in self._lines:
            line: set[str] = set()
            at: str | None = newest
            while at is not None and at not in line:  # no checkpoint comes from itself, whatever a manifest says
                if at not in self._parents:
                    place = bisect_left(self._ids, at)
                    at = self._ids[place - 1] if place else None
                    continue
                line.add(at)
                at = self._parents[at]
            self._lines[newest] = frozenset(line)
        return self._lines[newest]
