"""A snapshot: a copy of the training state at a step boundary, laid out as the very bytes of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """What one save will write. `release` gives its memory back; nothing of it may be read afterwards."""

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
