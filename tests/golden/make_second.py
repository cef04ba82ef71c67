"""Writes the golden checkpoints of format 2: deltas, references, and dropped levels. Run by hand, once:

    python tests/golden/make_second.py

It refuses to write over what is there: golden files never change.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch

import mementum
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import ManualClock
from mementum.events import Event, Settled
from mementum.records import Manifest
from mementum.storage import local
from mementum.storage.disk import PosixDisk
from mementum.withering import wither

HERE = Path(__file__).parent
TASK, SAVES, WITHERED = "second", 4, 3
COUNT = 2000  # numbers: enough for a block that is worth encoding


def objects() -> tuple[torch.nn.Sequential, torch.optim.AdamW]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 2, bias=False))
    for number, parameter in enumerate(model.parameters(), start=1):
        torch.nn.init.constant_(parameter, number / 4)
    model[0].requires_grad_(False)  # nothing trains it: it is written once, and named by what comes later
    return model, torch.optim.AdamW(model[1].parameters(), lr=0.25)


def wide(step: int) -> torch.Tensor:
    """Numbers that move by little in a step."""
    rng = random.Random(7)
    numbers = torch.tensor([rng.randrange(1 << 20) for _ in range(COUNT)], dtype=torch.int32)
    for _ in range(step):
        numbers += torch.tensor([rng.randrange(-3, 4) for _ in range(COUNT)], dtype=torch.int32)
    return numbers


def make(root: Path) -> None:
    """A full checkpoint; one coded against it; two more that also name the frozen weights of the second."""
    model, optimizer = objects()
    held = torch.zeros(COUNT, dtype=torch.int32)
    settled = threading.Semaphore(0)

    def hear(event: Event) -> None:
        if isinstance(event, Settled):
            settled.release()

    with ExitStack() as patched:
        for patch in (
            mock.patch("mementum.execute.origin.versions", return_value={"mementum": "golden"}),
            mock.patch("mementum.execute.origin.code", return_value={"commit": "0" * 40, "dirty": False}),
            mock.patch("platform.node", return_value="golden"),
            mock.patch("os.getpid", return_value=1),
            mock.patch.object(local.os, "urandom", return_value=b"gold"),
            mock.patch("mementum.execute.structure.FROZEN_MIN", 1),
            mock.patch.object(local.LocalStore, "link", return_value=False),  # as where there are no hard links
        ):
            patched.enter_context(patch)
        with mementum.open_run(
            root,
            task=TASK,
            model=model,
            optimizer=optimizer,
            state={"wide": held},
            codec="delta+planes+zstd:1",
            every_steps=1,
            clock=ManualClock(),
            on_event=hear,
        ) as run:
            for step in range(1, SAVES + 1):
                held.copy_(wide(step))
                model[1].weight.grad = torch.full((2, 8), 0.5)
                optimizer.step()
                run.record(loss=1.0 / step)
                assert run.wait()
                assert settled.acquire(timeout=60)
        _wither(root)
    for leftover in (*root.glob("catalog.db*"), *root.glob("*/*/vitals")):
        _remove(leftover)  # a cache is no part of the format, and vital signs have golden files of their own


def _wither(root: Path) -> None:
    (home,) = (path.relative_to(root) for path in root.glob("????????/*_*"))
    store, catalog = local.LocalStore(PosixDisk(), str(root / home)), open_sqlite(None)
    refresh(catalog, str(home), store)
    entry = next(each for each in catalog.entries(str(home)) if each.manifest.step == WITHERED)
    done = wither(
        entry,
        (0,),
        reason="golden",
        home=str(home),
        store=store,
        catalog=catalog,
        emit=lambda event: None,
        require_newest=lambda: None,
    )
    assert isinstance(done, Manifest), done


def _remove(path: Path) -> None:
    if path.is_dir():
        for each in path.iterdir():
            _remove(each)
        path.rmdir()
    else:
        path.unlink()


if __name__ == "__main__":
    target = HERE.resolve() / "v2"
    if target.exists():
        sys.exit(f"{target} exists: golden files never change")
    make(target)
    print(json.dumps(sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()), indent=1))
