"""A training of one weight, which is the number of the step, whose loss is out of order from a step on."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mementum
from mementum.clock import ManualClock
from mementum.opening import open_catalog
from mementum.records import Entry, Health
from trips import Told

TROUBLE = 200  # the first step whose loss is out of order
RECORD = 20  # steps between snapshots
STEP_S = 1.0

Losses = Callable[[int], float]


def loss_of(step: int) -> float:
    """A loss that falls, with a noise of its own."""
    return 3.0 - 0.001 * step + random.Random(step).gauss(0, 0.02)


def jumps(step: int) -> float:
    return loss_of(step) + (2.0 if step >= TROUBLE else 0.0)


def recovers(step: int) -> float:
    return loss_of(step) + (2.0 if TROUBLE <= step < TROUBLE + 15 else 0.0)


def no_number(step: int) -> float:
    return math.nan if step >= TROUBLE else loss_of(step)


def train(
    root: Path,
    losses: Losses,
    until: int,
    *,
    each: Callable[[mementum.Run, int], None] = lambda run, step: run.wait() and None,
    config: dict[str, Any] | None = None,
    **wishes: Any,
) -> Told:
    """Train a model of one weight, which is the number of the step, as far as to a step; then the process "dies"."""
    torch.set_num_threads(1)
    told, model, clock = Told(), torch.nn.Linear(1, 1, bias=False), ManualClock()
    settings = {
        "recorder": {"every": RECORD},
        "health": {"hold": 30, "confirm": 40},
        "policy": [{"steps": 70}],
        **(config or {}),
    }
    wishes = {"keep_last": None, "capture": "blocking", **wishes}
    with (
        contextlib.suppress(ZeroDivisionError),
        mementum.open_run(root, task="t", model=model, config=settings, on_event=told, clock=clock, **wishes) as run,
    ):
        for step in range(run.step + 1, until + 1):
            with torch.no_grad():
                model.weight.fill_(step)
            clock.advance(STEP_S)
            run.record(loss=losses(step))
            each(run, step)
        run.wait()
        raise ZeroDivisionError
    return told


def entries(root: Path) -> dict[int, Entry]:
    """The newest of each step that was saved; as a catalog knows it that is made anew."""
    from mementum.catalog.rebuild import refresh
    from mementum.catalog.sql import open_sqlite
    from mementum.storage.disk import PosixDisk
    from mementum.storage.local import LocalStore

    (home,) = {path.parent.parent for path in root.rglob("meta*.json")}
    catalog = open_sqlite(None)
    refresh(catalog, "home", LocalStore(PosixDisk(), str(home)))
    made = catalog.entries("home")
    kept = open_catalog(root, emit=lambda event: None)
    assert {entry.manifest.id: (entry.health, entry.pinned) for entry in kept.entries(str(home.relative_to(root)))} == {
        entry.manifest.id: (entry.health, entry.pinned) for entry in made
    }
    return {entry.manifest.step: entry for entry in made}


def health(root: Path) -> dict[int, Health]:
    return {step: entry.health for step, entry in entries(root).items()}


def facts(root: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted(root.rglob("*.jsonl")) for line in path.read_text().splitlines() if line]
    return [fact for fact in map(json.loads, lines) if fact["kind"] in kinds]
