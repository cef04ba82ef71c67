"""A catalog that is deleted at any moment and made again is the same in all columns as the one that lived on."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.catalog.recovery import best
from mementum.catalog.sql import SqlCatalog, open_scratch, open_sql, open_sqlite
from mementum.catalog.sql_tables import CONTENTS
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import NON_FINITE, Fact, Granularity, Health, Manifest, Start
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

HOME = "20261130/t_000001"
KINDS = (*facts.JUDGING, *facts.OF_ATTEMPTS, "metrics", "cost")


def rows(catalog: SqlCatalog) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables. Of facts the numbers only tell the order within a source, which depends on how much of it
    was read at once."""
    found: dict[str, list[dict[str, Any]]] = {}
    with catalog._engine.begin() as connection:
        for table in CONTENTS:
            every = connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            found[table.name] = [{name: value for name, value in row.items() if name != "number"} for row in every]
    return found


class Root:
    """A task's folder in which something happens again and again, beside a catalog that is told of it as a run does."""

    def __init__(self, choose: Random, live: SqlCatalog) -> None:
        self.store, self.live, self.choose = LocalStore(SimDisk(), "root"), live, choose
        self.seq = self.attempt = self.clock = 0
        self.saved: dict[int, Manifest] = {}
        self.start()

    def time(self) -> str:
        self.clock += self.choose.choice((1, 1, 1, 7, -3))  # a clock may be set back
        return f"2026-11-30T06:{self.clock // 60 % 60:02d}:{self.clock % 60:02d}.000000Z"

    def start(self) -> None:
        self.attempt += 1
        text = f'{{"task": "t", "time": "{self.time()}", "host": "h{self.attempt}", "pid": {self.attempt}}}'
        self.store.put(f"attempts/{self.attempt:04d}.json", [text.encode()])

    def save(self) -> None:
        self.seq += 1
        parent = self.choose.choice((*self.saved, None)) if self.saved else None
        ill = self.choose.random() < 0.1
        made = Manifest(
            id=f"c{self.seq:04d}",
            seq=self.seq,
            task="größe",
            attempt=self.attempt,
            parent=None if parent is None else self.saved[parent].id,
            step=self.choose.randrange(1, 30),
            epoch=self.seq // 10,
            time=self.time(),
            reason="asked",
            granularity=self.choose.choice((Granularity.FULL, Granularity.FULL, Granularity.WEIGHTS)),
            health=Health.DIVERGED if ill else self.choose.choice(tuple(Health)),
            files=(),
            decision={NON_FINITE: "weight"} if ill else {},
            metrics={"loss": self.choose.random()},
            memory={"rss": 1 << 33, **({"gpu_mem_percent": 71} if self.seq % 2 else {})},
        )
        self._commit(made)

    def _commit(self, made: Manifest) -> None:
        name = generations.manifest_name(made.generation)
        self.store.put(f"step_{made.seq:010d}/{name}", [manifests.render(made)])
        self.saved[made.seq] = made
        if self.choose.random() < 0.7:  # else it was killed before it could tell
            self.live.add(HOME, made, f"step_{made.seq:010d}")

    def rewrite(self) -> None:
        """The next generation, of fewer levels."""
        if self.saved:
            old = self.saved[self.choose.choice(tuple(self.saved))]
            fields = {name: getattr(old, name) for name in old.__dataclass_fields__}
            self._commit(Manifest(**{**fields, "generation": old.generation + 1, "granularity": Granularity.WEIGHTS}))
            self.store.delete(f"step_{old.seq:010d}/{generations.manifest_name(old.generation)}")

    def remove(self) -> None:
        if self.saved:
            gone = self.saved.pop(self.choose.choice(tuple(self.saved)))
            if self.choose.random() < 0.7:
                self.live.forget(HOME, f"step_{gone.seq:010d}")
            self.store.delete(f"step_{gone.seq:010d}/{generations.manifest_name(gone.generation)}")

    def tell(self) -> None:
        """A fact of anything, also of what is not there, in a journal, a part of one, or a file."""
        kind = self.choose.choice(KINDS)
        about = f"c{self.choose.randint(1, self.seq + 3):04d}"
        values = {
            "health": {"health": self.choose.choice(tuple(Health)).value, "why": str(self.seq)},
            "pin": {"why": "mine", "by": self.choose.choice(("me", "you"))},
            "unpin": {"by": self.choose.choice(("me", "you"))},
            "damaged": {"what": "index"},
            "placed": {"tier": self.choose.choice(("nas", "s3")), "url": "s3://b", "size": self.seq, "levels": [0, 2]},
            "displaced": {"tier": self.choose.choice(("nas", "s3"))},
            "restored": {"seconds": self.choose.random()},
            "ended": {"why": self.choose.choice(("finished", "OutOfMemory"))},
            "metrics": {"acc": self.choose.random()},
        }.get(kind, {})
        named = about if kind != "metrics" or self.choose.random() < 0.7 else None
        fact = Fact(kind=kind, time=self.time(), checkpoint=named, step=self.choose.randrange(1, 30), values=values)
        line = facts.render(fact)
        match self.choose.randrange(4):
            case 0:
                self.store.put(f"facts/{self.clock:06d}-{self.choose.random()}.json", [line])
            case 1:
                part = facts.part_key(90 + self.choose.randrange(2), 100 * len(list(self.store.list("journal/"))))
                self.store.put(part, [line])
            case _:
                self.store.append(facts.journal_key(self.choose.randint(1, self.attempt)), line)


@pytest.mark.parametrize("seed", range(4))
def test_deleted_at_any_moment(seed: int) -> None:
    choose = Random(seed)
    live = open_sqlite(None)
    root = Root(choose, live)
    for moment in range(60):
        happening = choose.choice((root.save, root.save, root.save, root.tell, root.tell, root.rewrite, root.remove))
        happening()
        if choose.random() < 0.05:
            root.start()
        if moment % 4 == 0:
            require_equal(root, open_sqlite(None))
    require_equal(root, open_scratch())
    live.close()


def test_deleted_on_postgres(postgres_url: str) -> None:
    choose, live = Random(7), open_sql(postgres_url)
    root = Root(choose, live)
    for _ in range(40):
        choose.choice((root.save, root.save, root.tell, root.tell, root.rewrite, root.remove))()
    require_equal(root, open_sqlite(None))
    live.close()


def require_equal(root: Root, anew: SqlCatalog) -> None:
    refresh(root.live, HOME, root.store)
    refresh(anew, HOME, root.store)
    assert rows(anew) == rows(root.live)
    assert anew.entries(HOME) == root.live.entries(HOME)
    assert [entry.manifest for entry in anew.entries(HOME)] == [root.saved[seq] for seq in sorted(root.saved)]
    assert anew.starts(HOME) == root.live.starts(HOME)
    for step in (None, 1, 10, 25):
        assert root.live.recovery_point(HOME, before_step=step) == best(anew.entries(HOME), before_step=step)
    anew.close()


def test_columns_say_what_can_be_asked_for() -> None:
    live = open_sqlite(None)
    made = Manifest(
        id="c1",
        seq=1,
        task="t",
        attempt=2,
        parent="c0",
        step=7,
        epoch=3,
        time="T",
        reason="asked",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(),
        memory={"gpu_mem_percent": 71},
        metrics={"loss": 0.5},
        generation=2,
    )
    live.add(HOME, made, "f")
    live.begin(HOME, Start(number=2, time="T", host="h", pid=3))
    told = [
        Fact(kind="restored", time="T", checkpoint="c1", values={"seconds": 1.5}),
        Fact(kind="placed", time="U", checkpoint="c1", values={"tier": "nas", "url": "/nas", "size": 9}),
        Fact(kind="health", time="T", checkpoint="c1", values={"health": "suspect", "why": "a jump"}),
        Fact(kind="ended", time="V", values={"why": "finished"}),
    ]
    live.learn(HOME, "journal/0002.jsonl", told, size=50)
    found = rows(live)
    (row,) = found["checkpoints"]
    asked = ("parent", "epoch", "generation", "levels", "health", "judged_why", "gpu_mem_percent", "restore_s")
    assert [row[name] for name in asked] == ["c0", 3, 2, "[0, 1, 2]", "suspect", "a jump", 71.0, 1.5]
    place = {"tier": "nas", "url": "/nas", "time": "U", "generation": 1, "size": 9, "levels": [0, 1, 2]}
    assert json.loads(row["places"]) == [{**place, "damaged": None, "verified": None}]
    assert row["metrics"] == '{"loss": 0.5}'
    (attempt,) = found["attempts"]
    assert (attempt["told_from"], attempt["ended"]) == ("c1", "finished")
    live.close()
