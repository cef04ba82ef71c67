"""A small training with tiers, and what lies in a root or on a tier, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import mementum
from mementum.catalog import tasks
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.records import Entry
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.storage.tiers import open_store
from mementum.storage.within import Within
from trips import Told, bits

TASK = "t"


class Training:
    """A small training whose every step is saved."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.told = Told()

    def open(self, root: Path, *tiers: dict[str, Any], **wishes: Any) -> mementum.Run:
        config = {"tiers": list(tiers), "slots": 0, "scrub": "off", **wishes.pop("config", {})}
        objects = {"model": self.model, "optimizer": self.optimizer}
        wishes = {"every_steps": 1, **wishes}  # by argument: then no budget refuses a save
        return mementum.open_run(root, task=TASK, config=config, on_event=self.told, **objects, **wishes)

    def step(self, run: mementum.Run) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 8)).pow(2).mean().backward()
        self.optimizer.step()
        run.record(loss=1.0)

    def run(self, root: Path, total: int, *tiers: dict[str, Any], **wishes: Any) -> mementum.Run:
        with self.open(root, *tiers, **wishes) as run:
            while run.step < total:
                self.step(run)
                run.wait()
        return run

    def state(self) -> dict[str, object]:
        return bits([self.model.state_dict(), self.optimizer.state_dict()])


def home_of(root: Path) -> LocalStore:
    """The task's part of a root, or of a tier in a folder."""
    whole = LocalStore(PosixDisk(), str(root))
    home = tasks.find(whole, TASK)
    assert home is not None
    return whole.below(home)


def far_home(url: str, options: dict[str, str]) -> Store:
    """The task's part of any tier."""
    whole = open_store(url, options)
    home = tasks.find(whole, TASK)
    assert home is not None
    return Within(whole, home)


def entries(place: Path | Store) -> dict[int, Entry]:
    """What lies in a root, or on a tier, by step; every byte of it is proved."""
    store, catalog = home_of(place) if isinstance(place, Path) else place, open_sqlite(None)
    assert refresh(catalog, "h", store) == ()
    found = catalog.entries("h")
    for entry in found:
        assert verify(store, entry.folder, entry.manifest, deep=True) == ()
    return {entry.manifest.step: entry for entry in found}
