"""A task's folder with what a run does to it, told to a catalog that many share, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.catalog.shared import LOOK_S, SharedCatalog, shared_name
from mementum.catalog.sql import open_sqlite
from mementum.events import Event
from mementum.format import manifest as manifests
from mementum.records import Fact, Start
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, JOURNAL, fact, folder, manifest

WAIT_S = 30.0  # for what takes milliseconds on a machine that has time
RETRY_S = 0.01
START = Start(number=1, time="2026-11-30T06:10:09.000000Z", host="h", pid=7)


class Rooted:
    """One task, its local catalog, and the shared one beside it. Durable effects come first, as in a run."""

    def __init__(
        self, root: Path, connect: Callable[[], Catalog], *, retry_s: float = RETRY_S, look_s: float = LOOK_S
    ) -> None:
        self.store = LocalStore(PosixDisk(), f"{root}/{HOME}")
        fields = {"format": 1, "task": "größe", "time": START.time, "host": "h", "pid": 7, "root": str(root)}
        self.store.put("attempts/0001.json", [json.dumps(fields).encode()])
        self.name = shared_name(HOME, self.store)
        self.events: list[Event] = []
        local = open_sqlite(None)
        refresh(local, HOME, self.store)
        self.catalog = SharedCatalog(
            local,
            connect,
            name="redis://host/0",
            home=HOME,
            store=self.store,
            emit=self.events.append,
            retry_s=retry_s,
            look_s=look_s,
        )

    def begin(self) -> None:
        self.catalog.begin(HOME, START)

    def add(self, seq: int) -> None:
        one = manifest(seq)
        self.store.put(f"{folder(seq)}/meta.json", [manifests.render(one)])
        self.catalog.add(HOME, one, folder(seq))

    def forget(self, seq: int) -> None:
        self.catalog.forget(HOME, folder(seq))
        self.store.delete(f"{folder(seq)}/meta.json")

    def tell(self, *told: Fact) -> None:
        known = self.catalog.read_sizes(HOME).get(JOURNAL, 0)
        data = b"".join(map(facts.render, told))
        self.store.append(JOURNAL, data)
        self.catalog.learn(HOME, JOURNAL, told, size=known + len(data), begin=known)

    def pin(self, seq: int, why: str) -> None:
        self.tell(fact("pin", seq % 60, checkpoint=f"c{seq:03d}", why=why))

    def live(self, first: int) -> None:
        """A little of everything."""
        for seq in range(first, first + 3):
            self.add(seq)
        self.pin(first + 1, f"kept {first}")
        self.forget(first)
        self.tell(fact("metrics", 3, step=(first + 2) * 10, acc=first / 8))

    def require_same(self, other: Catalog) -> None:
        """The other one knows all that the local one knows, once all was told."""
        assert self.catalog.drain(WAIT_S)
        assert list(other.entries(self.name)) == list(self.catalog.entries(HOME))
        assert other.read_sizes(self.name) == self.catalog.read_sizes(HOME)
        assert list(other.starts(self.name)) == list(self.catalog.starts(HOME))
