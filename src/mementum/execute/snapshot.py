"""A snapshot: a copy of the training state at a step boundary, laid out as the very bytes of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from mementum.execute.plan import FileLayout
from mementum.records import Save, record


@record
class Image:
    """One data file's raw stream in host memory."""

    layout: FileLayout
    raw: memoryview


@record
class Snapshot:
    """What one save will write. `release` gives its memory back; nothing of it may be read afterwards.

    Where the bytes are still being copied, `outcome` waits for that, and says why they are of no use, or None.
    `waited_s` is for how long the copy held up a step, beside the `blocked_s` before it."""

    id: str
    step: int
    epoch: int
    time: str
    save: Save
    images: tuple[Image, ...]
    context: bytes
    debug_info: tuple[Mapping[str, Any], ...]
    metrics: Mapping[str, float]
    exactness: tuple[str, ...]
    blocked_s: float
    release: Callable[[], None]
    outcome: Callable[[], str | None] = field(default=lambda: None)
    waited_s: Callable[[], float] = field(default=lambda: 0.0)

    @property
    def stood_still_s(self) -> float:
        """For how long the loop stood still in all; known once `outcome` has returned."""
        return self.blocked_s + self.waited_s()
