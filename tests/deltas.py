"""A task whose checkpoints move little from one to the next, so that each is worth coding against an older one."""

from __future__ import annotations

from random import Random
from typing import Any

from mementum.catalog.sql import open_sqlite
from mementum.clock import ManualClock
from mementum.events import Event
from mementum.execute.plan import plan
from mementum.format import blocks, index
from mementum.format import manifest as manifests
from mementum.records import DataFile, Entry, Granularity, Health, Index, Manifest, StoredFile
from mementum.recover.verify import Proved, examine, raw_blocks
from mementum.rewriting import Unsettled
from mementum.settling import settle
from mementum.storage.local import LocalStore
from mementum.storage.store import Home
from mementum.testing.simdisk import SimDisk

HOME = "20261130/t_000001"
CODEC = "delta+planes+zstd:1"
COUNT = 1000  # numbers of four bytes
CONTEXT = (
    b'{"format": 1, "step": 1, "components": {"model": {"kind": "module", "state": {"state": {"w": {"$tensor": "w"}}}}'
    b', "optimizer": {"kind": "object", "state": {"exp_avg": {"$tensor": "0.exp_avg"}}}}}\n'
)


def folder(number: int) -> str:
    return f"step_{number:010d}"


class Moving:
    """Checkpoints 1, 2, 3, … that land raw, and what settling them takes."""

    def __init__(self, rng: Random, *, store: Home | None = None, by: int = 40, weights: int = 2) -> None:
        """`by`: how far numbers move from one checkpoint to the next. `weights`: how many there are, all zero where
        they are two, else moving like the optimizer's."""
        self.store: Home = LocalStore(SimDisk(), "root") if store is None else store
        self.catalog = open_sqlite(None)
        self.events: list[Event] = []
        self.raws: dict[int, bytes] = {}
        self._rng, self._by, self._weights = rng, by, weights
        self._numbers = [rng.randrange(1 << 20) for _ in range(COUNT)]

    def save(self, number: int, *, health: Health = Health.CLEAN) -> Entry:
        self._numbers = [each + self._rng.randrange(-self._by, self._by + 1) for each in self._numbers]
        self.raws[number] = b"".join(each.to_bytes(4, "little", signed=True) for each in self._numbers)
        facts = [("0.exp_avg", "float32", (COUNT,), 4, 4 * COUNT)]
        data: list[DataFile] = []
        layouts = plan(
            {"model": [("w", "float32", (self._weights,), 4, 4 * self._weights)]}, {"optimizer": facts}, codec="raw"
        )
        for layout in layouts:
            weights = bytes(8) if self._weights == 2 else self.raws[number][: 4 * self._weights]
            raw = layout.header + weights if layout.header else self.raws[number]
            pairs = list(blocks.encode(memoryview(raw), layout.stretches, layout.codec))
            self.store.put(f"{folder(number)}/{layout.name}", [stored for _, stored in pairs])
            data.append(DataFile(name=layout.name, size=len(raw), blocks=tuple(block for block, _ in pairs)))
        tensors = tuple(tensor for layout in layouts for tensor in layout.tensors)
        proof = index.render(Index(rank=0, files=tuple(data), tensors=tensors))
        files = [StoredFile(name=file.name, size=file.size) for file in data]
        for name, small in (("index-00000.json", proof), ("context-00000.json", CONTEXT)):
            self.store.put(f"{folder(number)}/{name}", [small])
            files.append(StoredFile(name=name, size=len(small), digest=manifests.digest(small)))
        made = Manifest(
            id=f"c{number}",
            seq=number,
            task="t",
            attempt=1,
            parent=None,
            step=number,
            epoch=0,
            time="2026-11-30T06:10:09.000000Z",
            reason="asked",
            granularity=Granularity.FULL,
            health=health,
            files=tuple(files),
        )
        self.store.put(f"{folder(number)}/meta.json", [manifests.render(made)])
        self.catalog.add(HOME, made, folder(number))
        return self.entry(number)

    def entry(self, number: int) -> Entry:
        return next(each for each in self.catalog.entries(HOME) if each.manifest.step == number)

    def settle(self, number: int, **given: Any) -> Manifest | Unsettled:
        wanted: dict[str, Any] = {
            "home": HOME,
            "store": self.store,
            "catalog": self.catalog,
            "codec": CODEC,
            "emit": self.events.append,
            "require_newest": lambda: None,
            "clock": ManualClock(),
            "pause": lambda: None,
        }
        return settle(self.entry(number), **{**wanted, **given})

    def settled(self, number: int, **given: Any) -> Manifest:
        """Save a checkpoint and settle it."""
        self.save(number)
        after = self.settle(number, **given)
        assert isinstance(after, Manifest), after
        return after

    def raw(self, number: int) -> bytes:
        """The optimizer's raw stream, proved."""
        written = self.entry(number).manifest
        proved = examine(self.store, folder(number), written)
        assert isinstance(proved, Proved), proved
        (file,) = (file for file in proved.index.files if file.name.endswith(".blocks"))
        found = list(raw_blocks(self.store, folder(number), file, proved.index.bases))
        assert all(not hasattr(each, "what") for each in found), found
        return b"".join(bytes(each) for each in found)  # type: ignore[arg-type]

    def names(self, number: int) -> set[str]:
        prefix = f"{folder(number)}/"
        return {stat.key.removeprefix(prefix) for stat in self.store.list(prefix)}
