"""The seam to what can be asked about checkpoints. A catalog is a cache: losing it loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mementum.records import Entry, Fact, Manifest, Start


class Catalog(Protocol):
    """Entries by task folder (`20261130/byte-gpt_3fa9c1`), which is unique within a root."""

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        """Enter a committed checkpoint; entering it again changes nothing."""
        ...

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        """Enter many, each with its folder, in one transaction: a rebuild has a hundred thousand of them."""
        ...

    def forget(self, home: str, folder: str) -> None:
        """Drop the entry of a checkpoint that is about to be removed, or is gone."""
        ...

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        """Take in what a journal says from its byte `begin` on, in the place of what it was known to say from there;
        `size` is how much of `source` was read. Known facts change nothing.

        How much of the source is known then. Less than `begin` where no more was: somebody has made the catalog anew
        meanwhile, nothing was taken in, and the source is to be read from there on."""
        ...

    def read_sizes(self, home: str) -> dict[str, int]:
        """How much of each journal was taken in."""
        ...

    def entries(self, home: str) -> Sequence[Entry]:
        """All checkpoints of a task, oldest first by sequence number."""
        ...

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        """The best checkpoint to come back to, in one indexed query: of the full ones that are not known to be damaged
        the clean before the suspect before the diverged, then the newest, and of equally new ones the one whose
        measured restore was shortest. `before_step`: only those of an earlier step."""
        ...

    def begin(self, home: str, start: Start) -> None:
        """Enter an attempt; entering it again changes nothing. What its journal says of its end is learnt."""
        ...

    def starts(self, home: str) -> Sequence[Start]:
        """All attempts of a task, by number."""
        ...

    def homes(self) -> tuple[str, ...]:
        """All tasks' folders that it knows anything of, sorted."""
        ...

    def close(self) -> None: ...
