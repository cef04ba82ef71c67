"""What is stored, what the catalog knows of it, and what was found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mementum.records.making import record
from mementum.records.words import Granularity, Health


@record
class Block:
    """A run of a file that proves itself: `digest` is of the stored bytes, `raw_digest` of the decoded ones."""

    offset: int
    size: int
    raw_size: int
    codec: str
    digest: str
    raw_digest: str


@record
class StoredTensor:
    """Where one tensor lies. `offset` and `size` are bytes in the file's raw (decoded) stream."""

    component: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int


@record
class StoredFile:
    """A file of a checkpoint. `digest` (blake3) stands for files that have no blocks in an index."""

    name: str
    size: int
    digest: str | None = None


@record
class DataFile:
    """A data file with the blocks that cover every byte of it."""

    name: str
    size: int
    blocks: tuple[Block, ...]


@record
class Index:
    """One rank's map from tensors to bytes."""

    rank: int
    files: tuple[DataFile, ...]
    tensors: tuple[StoredTensor, ...]


@record
class Manifest:
    """A checkpoint exists if, and only if, its manifest does. Written last, removed first, never changed: one that
    names other files is the next generation, beside which the one before is removed."""

    id: str
    seq: int
    task: str
    attempt: int
    parent: str | None
    step: int
    epoch: int
    time: str
    reason: str
    granularity: Granularity
    health: Health
    files: tuple[StoredFile, ...]
    world_size: int = 1
    decision: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    debug_info: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    exactness: tuple[str, ...] = ()
    user: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 1

    @property
    def size(self) -> int:
        """Bytes of all files that it names."""
        return sum(file.size for file in self.files)


NON_FINITE = "non_finite"  # what a manifest's decision calls the tensor that made it diverged


@record
class Entry:
    """What the catalog knows of a checkpoint: its manifest, where it lies, and the facts that came later."""

    manifest: Manifest
    folder: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    damaged: str | None = None
    verified: str | None = None
    judged: Health | None = None  # what became known of its health after it was saved
    judged_why: str | None = None
    pinned: str | None = None  # why it must stay
    pinned_by: frozenset[str] = frozenset()  # who wants that; each takes back its own alone

    @property
    def health(self) -> Health:
        """As far as it is known by now. A state that is not finite stays diverged, whatever the run did later."""
        if self.judged is None or NON_FINITE in self.manifest.decision:
            return self.manifest.health
        return self.judged

    @property
    def order(self) -> tuple[int, int, str]:
        """Sorts oldest first: by sequence number, never by time or step."""
        return (self.manifest.seq, self.manifest.attempt, self.manifest.id)


@record
class Fact:
    """Something that became known after a manifest was written: one line of a journal, or a file of facts."""

    kind: str
    time: str
    checkpoint: str | None = None
    step: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


@record
class Damage:
    """A finding of verification: which object, and what is wrong with it."""

    key: str
    what: str


@record
class Verdict:
    """Whether retention keeps a checkpoint, and why."""

    id: str
    keep: bool
    reason: str
