"""A small task that saves without torch: the actor of the crash checks.

What it was told is durable, it tells in words: `saved 3`, `settled 3`, `removing 3`, `removed 3`, `fact 2`,
`claimed 1`. The bytes of checkpoint 3 follow from its number, so that what lies on a disk can be compared bit for bit.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Sequence

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.clock import ManualClock, timestamp
from mementum.decide.retain import Retention, retain
from mementum.events import Event, PhaseBegan, Removed, Settled
from mementum.execute.claim import claim
from mementum.execute.plan import Facts, FileLayout, plan
from mementum.execute.snapshot import Image, Snapshot
from mementum.execute.write import write_parts
from mementum.format import context
from mementum.pruning import prune, sweep
from mementum.records import Fact, Granularity, Health, Manifest, Save, StoredFile
from mementum.rewriting import Unsettled
from mementum.saving import save_checkpoint
from mementum.settling import settle
from mementum.storage.disk import Disk
from mementum.storage.local import LocalStore

TASK = "small"
HOME = "20261130/small_3fa9c1"
FOLDER = f"disk/{HOME}"
NOW_S = 1_796_000_000.0
CODECS = ("planes+zstd:1", "raw")  # of even and odd numbers
WEIGHTS: tuple[Facts, ...] = (("weight", "float32", (6, 4), 4, 96), ("bias", "bfloat16", (4,), 2, 8))
OPTIMIZER: tuple[Facts, ...] = (("0.exp_avg", "float32", (64,), 4, 256), ("0.step", "int64", (), 8, 8))


def id_of(number: int) -> str:
    return f"c{number:016d}"


def number_of(id: str) -> int:
    return int(id[1:])


@functools.cache
def snapshot_of(number: int, *, step: int) -> Snapshot:
    """The snapshot of this number: a file of weights, one of optimizer state, and a context."""
    layouts = plan({"model": WEIGHTS}, {"optimizer": OPTIMIZER}, codec=CODECS[number % 2])
    return Snapshot(
        id=id_of(number),
        seq=number,
        step=step,
        epoch=0,
        time=timestamp(NOW_S + number),
        save=Save(reason="every 10 steps"),
        images=tuple(Image(layout=layout, raw=memoryview(_raw(layout, number))) for layout in layouts),
        context=lambda: context.render({"components": {}, "epoch": 0, "seed": random.Random(number).random()}),
        debug_info=(),
        metrics={"loss": 1.0 / number},
        exactness=(),
        blocked_s=0.0,
        release=lambda: None,
    )


def _raw(layout: FileLayout, number: int) -> bytes:
    rng = random.Random(f"{number} {layout.name}")
    size = layout.raw_size - len(layout.header)
    if layout.header:
        return layout.header + rng.randbytes(size)
    # zstd makes it smaller, and what is the same for all numbers makes a difference from another smaller still
    still = random.Random(layout.name)
    return struct.pack(f"<{size // 4}i", *(still.randrange(1 << 14) + rng.randrange(3) for _ in range(size // 4)))


class Process:
    """One process start of the task. Its catalog may know too little or too much: it starts with a refresh. Its
    journal is its own, so that it never goes on after half a line of an earlier start."""

    def __init__(self, disk: Disk, told: set[str], *, catalog: Catalog, home: str = HOME) -> None:
        self.disk, self.told = disk, told
        self.store = LocalStore(disk, FOLDER)
        self.catalog, self.home = catalog, home
        self.journal = facts.journal_key(1 + sum(1 for _ in self.store.list("journal/")))
        refresh(catalog, home, self.store)

    def save(self, number: int, *, step: int) -> Manifest:
        manifest = save_checkpoint(
            snapshot_of(number, step=step),
            home=self.home,
            store=self.store,
            catalog=self.catalog,
            describe=_describe,
            emit=self._hear,
        )
        self.told.add(f"saved {number}")
        return manifest

    def keep(self, last: int) -> None:
        """Remove all but the newest `last`."""
        entries = self.catalog.entries(self.home)
        verdicts = retain(entries, Retention(last=last))
        prune(verdicts, entries, home=self.home, store=self.store, catalog=self.catalog, emit=self._hear)

    def settle(self, number: int, *, codec: str = "planes+zstd:1") -> Manifest | Unsettled:
        """Compress a checkpoint that landed raw: one with an odd number."""
        (entry,) = (entry for entry in self.catalog.entries(self.home) if number_of(entry.manifest.id) == number)
        return settle(
            entry,
            home=self.home,
            store=self.store,
            catalog=self.catalog,
            codec=codec,
            emit=self._hear,
            require_newest=lambda: None,
            clock=ManualClock(NOW_S),
            pause=lambda: None,
        )

    def sweep(self) -> tuple[str, ...]:
        return sweep(self.store, emit=self._hear)

    def leave_parts(self, number: int, *, step: int) -> None:
        """What a process leaves that dies before its commit."""
        folder = f"step_{step:010d}"
        write_parts(snapshot_of(number, step=step), self.store, folder)
        with self.disk.create(f"{FOLDER}/{folder}/meta.json.0123abcd.tmp") as file:
            file.write(b'{"format": 1, ')

    def note(self, number: int) -> None:
        """Append a fact to the journal."""
        fact = Fact(kind="metrics", time=timestamp(NOW_S), step=number, values={"loss": 0.5})
        self.store.append(self.journal, facts.render(fact))
        self.told.add(f"fact {number}")

    def claim(self) -> int:
        attempt = claim(self.store, task=TASK, facts={}, clock=ManualClock(NOW_S))
        self.told.add(f"claimed {attempt.number}")
        return attempt.number

    def _hear(self, event: Event) -> None:
        match event:
            case PhaseBegan(phase="remove", id=id):
                self.told.add(f"removing {number_of(id)}")
            case Settled(id=id):
                self.told.add(f"settled {number_of(id)}")
            case Removed(id=id):
                self.told.add(f"removed {number_of(id)}")


def _describe(snapshot: Snapshot, files: Sequence[StoredFile]) -> Manifest:
    return Manifest(
        id=snapshot.id,
        seq=number_of(snapshot.id),
        task=TASK,
        attempt=1,
        parent=None,
        step=snapshot.step,
        epoch=snapshot.epoch,
        time=snapshot.time,
        reason=snapshot.save.reason,
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=tuple(files),
        metrics=snapshot.metrics,
    )
