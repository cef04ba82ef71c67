"""The nouns: frozen records that cross the border between two stages. They hold facts, and know no stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen, slotted, keyword-only dataclass: what every record of ours is."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


class Granularity(IntEnum):
    """What a checkpoint holds. Only FULL resumes bit for bit."""

    FULL = 0
    WEIGHTS = 1
    WEIGHTS_AND_OPTIMIZER = 2
    ESSENTIALS = 3


class Reach(IntEnum):
    """The loss that a checkpoint must outlive; each includes the ones before it."""

    PROCESS = 1
    REBOOT = 2
    MACHINE = 3


class Health(StrEnum):
    """What the run's vital signs said of the state that was saved."""

    CLEAN = "clean"
    SUSPECT = "suspect"
    DIVERGED = "diverged"


@record
class Situation:
    """All that a policy may know. A policy is a pure function of it, so that a past run can be replayed."""

    step: int
    epoch: int
    ends_epoch: bool = False
    since_save_steps: int
    since_save_s: float
    saves_in_flight: int = 0


@record
class Save:
    """A decision to save, with its reason."""

    reason: str
    granularity: Granularity = Granularity.FULL
    reach: Reach = Reach.REBOOT
    numbers: Mapping[str, float] = field(default_factory=dict)


@record
class Skip:
    """A decision not to save, with its reason."""

    reason: str


Decision = Save | Skip


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


@record
class Entry:
    """What the catalog knows of a checkpoint: its manifest, where it lies, and the facts that came later."""

    manifest: Manifest
    folder: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    damaged: str | None = None
    verified: str | None = None

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
class Exactness:
    """Whether a resume will be bit for bit. No reasons: it will, if the program itself is deterministic and the
    `conditions`, which nobody can see from outside, hold."""

    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self.reasons:
            return "not exact: " + "; ".join(self.reasons)
        return "exact" + "".join(f", if {condition}" for condition in self.conditions)


@record
class Resumed:
    """From what a run came back, and how. `tier`: `ram` if from a snapshot that outlived its process."""

    checkpoint: str
    step: int
    epoch: int
    reason: str
    rung: str = "exact"
    tier: str = "ssd"
    passed_over: tuple[Damage, ...] = ()
    differs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    duration_s: float
