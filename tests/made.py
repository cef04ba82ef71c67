"""Entries of a catalog, made by hand, for tests of what stays and what goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mementum.clock import timestamp
from mementum.records import Entry, Granularity, Health, Manifest, StoredFile

NOW_S = 1_796_000_000.0
DAY_S = 86_400.0
FULL = Granularity.FULL


def entry(
    seq: int,
    *,
    step: int | None = None,
    granularity: Granularity = FULL,
    size: int = 100,
    files: Sequence[StoredFile] = (),
    days: float = 0.0,
    levels: tuple[int, ...] = (0, 1, 2),
    loss: float | None = None,
    **known: Any,
) -> Entry:
    """One of `size` bytes of its own besides `files`, saved `days` before NOW_S."""
    manifest = Manifest(
        id=f"c{seq}",
        seq=seq,
        task="t",
        attempt=1,
        parent=None,
        step=seq * 10 if step is None else step,
        epoch=0,
        time=timestamp(NOW_S - days * DAY_S),
        reason="asked",
        granularity=granularity,
        health=Health.CLEAN,
        files=(StoredFile(name="model.safetensors", size=size), *files),
        levels=levels,
    )
    metrics = {} if loss is None else {"loss": loss}
    return Entry(**{"manifest": manifest, "folder": folder(seq), "metrics": metrics, **known})


def folder(seq: int) -> str:
    return f"step_{seq * 10:010d}"


def named(seq: int, name: str = "model.safetensors", size: int = 100) -> StoredFile:
    """A file of another one."""
    return StoredFile(name=name, size=size, folder=folder(seq))
