"""A snapshot: a copy of the training state at a step boundary, laid out as the very bytes of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from mementum.execute.plan import FileLayout
from mementum.format.blocks import Raw
from mementum.records import Save, record


@record
class Image:
    """One data file's raw stream. `steady`: it is the very stream of an earlier checkpoint, unless a look at it
    shows otherwise, and need not be written again."""

    layout: FileLayout
    raw: Raw
    steady: bool = False


@record
class Label:
    """What names a snapshot, known before anything of it is copied."""

    id: str
    seq: int
    attempt: int
    step: int


@record
class Snapshot:
    """What one save will write. `release` gives its memory back; nothing of it may be read afterwards.

    Where the bytes are still being copied, `outcome` waits for that, and says why they are of no use, or None.
    `waited_s` is for how long the copy held up a step, beside the `blocked_s` before it. `context` renders, once, what
    is no tensor."""

    id: str
    seq: int
    step: int
    epoch: int
    time: str
    save: Save
    images: tuple[Image, ...]
    context: Callable[[], bytes]
    debug_info: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, float]
    exactness: tuple[str, ...]
    blocked_s: float
    release: Callable[[], None]
    outcome: Callable[[], str | None] = field(default=lambda: None)
    waited_s: Callable[[], float] = field(default=lambda: 0.0)
    began_s: float = 0.0
    copied_at_s: Callable[[], float] = field(default=lambda: 0.0)  # by the clock, when the copy was whole

    @property
    def stood_still_s(self) -> float:
        """For how long the loop stood still in all; known once `outcome` has returned."""
        return self.blocked_s + self.waited_s()

    @property
    def snapshot_s(self) -> float:
        """From its beginning until the copy was whole; known once `outcome` has returned."""
        return max(self.blocked_s, self.copied_at_s() - self.began_s)
