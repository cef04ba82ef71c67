"""The seam to what can be asked about checkpoints. A catalog is a cache: losing it loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mementum.records import Entry, Fact, Manifest


class Catalog(Protocol):
    """Entries by task folder (`20261130/byte-gpt_3fa9c1`), which is unique within a root."""

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        """Enter a committed checkpoint; entering it again changes nothing."""
        ...

    def forget(self, home: str, folder: str) -> None:
        """Drop the entry of a checkpoint that is about to be removed, or is gone."""
        ...

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> None:
        """Take in what a journal says from its byte `begin` on, in the place of what it was known to say from there;
        `size` is how much of `source` was read. Known facts change nothing."""
        ...

    def read_sizes(self, home: str) -> dict[str, int]:
        """How much of each journal was taken in."""
        ...

    def entries(self, home: str) -> Sequence[Entry]:
        """All checkpoints of a task, oldest first by sequence number."""
        ...

    def close(self) -> None: ...
