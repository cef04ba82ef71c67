"""What is stored, what the catalog knows of it, and what was found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mementum.records.making import record
from mementum.records.words import Granularity, Health

LEVELS = (0, 1, 2)  # weights, optimizer, context


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
    """A file of a checkpoint. `digest` (blake3) stands for files that have no blocks in an index. `folder`: that of the
    checkpoint of the same task whose file it is, where it is not this one's own."""

    name: str
    size: int
    digest: str | None = None
    folder: str | None = None


@record
class DataFile:
    """A data file with the blocks that cover every byte of it. `folder`: as in StoredFile. `base`: the key of the file
    that blocks of it were coded against, each against the one of the same number."""

    name: str
    size: int
    blocks: tuple[Block, ...]
    folder: str | None = None
    base: str | None = None


@record
class Index:
    """One rank's map from tensors to bytes. `bases`: files of other checkpoints that files were coded against."""

    rank: int
    files: tuple[DataFile, ...]
    tensors: tuple[StoredTensor, ...]
    bases: tuple[DataFile, ...] = ()


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
    levels: tuple[int, ...] = LEVELS  # fewer where some were dropped when they grew old, or are not for a tier

    @property
    def size(self) -> int:
        """Bytes of the files that are its own: what it names of other checkpoints counts there."""
        return sum(file.size for file in self.files if file.folder is None)


NON_FINITE = "non_finite"  # what a manifest's decision calls the tensor that made it diverged


@record
class Place:
    """A copy of a checkpoint on a tier besides the task's own folder, as facts say. `generation` is that copy's own."""

    tier: str  # its name in the settings
    url: str
    time: str  # when it was whole there
    generation: int = 1
    size: int = 0  # bytes
    levels: tuple[int, ...] = LEVELS
    damaged: str | None = None  # what is wrong with this copy
    verified: str | None = None  # when every byte of it was last proved


@record
class Start:
    """An attempt: one start of a task's program. They form a tree: each went on from a checkpoint of an earlier one."""

    number: int
    time: str
    host: str = ""
    pid: int = 0
    came_from: str | None = None  # the id of the checkpoint that it went on from
    ended: str | None = None  # why, as its journal says; None: it says nothing


@record
class Blob:
    """Bytes that come free when the last checkpoint that has them goes: a file, by whatever tells it from others."""

    key: str
    size: int


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
    places: tuple[Place, ...] = ()  # copies on tiers, by the tier's name
    restore_s: float | None = None  # seconds that coming back from it took, measured

    @property
    def health(self) -> Health:
        """As far as it is known by now. A state that is not finite stays diverged, whatever the run did later."""
        if self.judged is None or NON_FINITE in self.manifest.decision:
            return self.manifest.health
        return self.judged

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Its files; one that lies with another checkpoint has the key of that one's own. Which files of frozen weights
        have one inode, a manifest does not tell: whoever can look at the files knows better."""
        files = self.manifest.files
        return tuple(Blob(key=f"{file.folder or self.folder}/{file.name}", size=file.size) for file in files)

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


@record
class Usage:
    """How full a place is, in bytes. `size`: what is used, whoever uses it, and what may still be written."""

    used: int
    size: int

    @property
    def free(self) -> int:
        return max(0, self.size - self.used)

    @property
    def share(self) -> float:
        """The part that is used; of a place that holds nothing, all."""
        return self.used / self.size if self.size > 0 else 1.0
