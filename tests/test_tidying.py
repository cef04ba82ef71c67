"""What is judged after a save is what lies there, by a clock that is believed, and what cannot go is told once."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import pytest

from deltas import HOME, Moving, folder
from mementum.catalog import facts, noted
from mementum.catalog.sql import open_sqlite
from mementum.clearing import forget_now
from mementum.clock import ManualClock, unhurried
from mementum.decide.ageing import DAY_S, Ageing
from mementum.decide.retain import Retention
from mementum.errors import StoreError
from mementum.events import Event, Failed, Removed, Withered
from mementum.format import blocks
from mementum.journal import Journal
from mementum.records import Fact, Manifest
from mementum.recover.verify import read_manifest, verify
from mementum.rewriting import NEEDED, Unsettled
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk
from mementum.tidying import AGE_EVERY_S, Tidying
from mementum.withering import wither

SAVED_S = 1_796_019_009.0  # when those of `deltas` were saved


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


class Jumping(ManualClock):
    """A wall clock that somebody sets."""

    def jump(self, duration_s: float) -> None:
        self._now_s += duration_s


class Refusing(LocalStore):
    """A home in which no key that holds `stuck` can be deleted, and none that holds `full` can be put."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.stuck = self.full = "none"

    def put(self, key: str, chunks: Any) -> Any:
        if self.full in key:
            raise StoreError(key, "the disk is full")
        return super().put(key, chunks)

    def delete(self, key: str) -> None:
        if self.stuck in key:
            raise StoreError(key, f"{key}: no permission")
        super().delete(key)


class Task:
    def __init__(self, count: int, retention: Retention, *, days: float = 0.0) -> None:
        self.store = Refusing()
        self.moving = Moving(Random(3), store=self.store)
        self.catalog = self.moving.catalog
        self.count = 0
        for _ in range(count):
            self.save()
        self.events: list[Event] = []
        self.clock = Jumping(now_s=SAVED_S + days * DAY_S)
        self.tidying = Tidying(
            home=HOME,
            store=self.store,
            catalog=self.catalog,
            retention=retention,
            journal=Journal(self.store, 9, clock=self.clock, emit=self.events.append),
            turn=nullcontext(),
            sure=True,
            clock=self.clock,
            emit=self.events.append,
        )

    def save(self) -> None:
        self.count += 1
        self.moving.save(self.count)

    def tidy(self) -> list[int]:
        """What is there afterwards."""
        self.tidying.tidy(lambda: None)
        return [number for number in range(1, self.count + 1) if self.moving.names(number)]

    def told(self) -> list[tuple[str, str | None]]:
        return [(one.kind, one.checkpoint) for one in facts.parse(self.store.get("journal/0009.jsonl"))]

    def failed(self) -> list[str]:
        return [event.what for event in self.events if isinstance(event, Failed)]

    def levels(self) -> list[tuple[int, ...]]:
        return [entry.manifest.levels for entry in self.catalog.entries(HOME)]

    def whole(self, number: int) -> bool:
        found = read_manifest(self.store, folder(number))
        return isinstance(found, Manifest) and verify(self.store, folder(number), found, deep=True) == ()


def losses(count: int) -> list[Fact]:
    return [
        Fact(kind="metrics", time="2026-11-30T06:10:10Z", step=step, values={"loss": float(step)})
        for step in range(1, count + 1)
    ]


def test_what_another_machine_has_removed_takes_no_place() -> None:
    """It has a catalog of its own. The best of what is left stays, not one less."""
    task = Task(8, Retention(last=2, best=1))
    task.catalog.learn(HOME, "facts/m.json", losses(8), size=1)
    there = open_sqlite(None)
    forget_now(task.store, HOME, there, Retention(last=6), clock=task.clock, emit=task.events.append, dry_run=False)
    assert task.tidy() == [3, 7, 8]
    assert [entry.manifest.step for entry in task.catalog.entries(HOME)] == [3, 7, 8]


def test_what_the_catalog_has_lost_is_judged_too() -> None:
    task = Task(4, Retention(last=2))
    for number in (1, 4):
        task.catalog.forget(HOME, folder(number))
    assert task.tidy() == [3, 4]


def test_a_manifest_that_cannot_be_read_is_not_looked_for_after_each_save(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(3, Retention(last=None))
    task.store.put("step_0000000099/meta.json", [b"garbage"])
    refreshed: list[str] = []
    monkeypatch.setattr("mementum.tidying.refresh", lambda catalog, home, store: refreshed.append(home))
    for _ in range(3):
        task.tidy()
    assert refreshed == [HOME]
    task.catalog.forget(HOME, folder(2))
    task.tidy()
    assert refreshed == [HOME, HOME]


def stale(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is coded against the first, and the catalog was not told."""
    assert isinstance(task.moving.settle(1), Manifest)

    def refuse(*given: object) -> None:
        raise StoreError("catalog.db", "the database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(task.catalog, "add", refuse)
        assert isinstance(task.moving.settle(2), Manifest)
    assert task.moving.entry(2).manifest.generation == 1
    found = read_manifest(task.store, folder(2))
    assert isinstance(found, Manifest)
    assert [file.folder for file in found.files if file.folder is not None] == [folder(1)]


def test_the_base_of_a_delta_does_not_age_though_the_catalog_knows_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(3, Retention(last=None, ageing=Ageing(level_1=7.0)), days=40)
    stale(task, monkeypatch)
    task.catalog.learn(
        HOME,
        "facts/a.json",
        [Fact(kind="pin", time="2026-11-30T00:00:00Z", checkpoint="c2", values={"by": "me"})],
        size=1,
    )
    assert task.tidy() == [1, 2, 3]
    assert [task.whole(number) for number in (1, 2, 3)] == [True] * 3
    assert task.levels() == [(0, 1, 2)] * 3
    assert task.moving.entry(2).manifest.generation == 2


def test_ageing_looks_at_manifests_for_who_needs_what_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a caller has been told."""
    task = Task(3, Retention(last=None))
    stale(task, monkeypatch)
    before = task.moving.names(1)
    given: dict[str, Any] = {"home": HOME, "store": task.store, "catalog": task.catalog, "emit": task.events.append}
    done = wither(task.moving.entry(1), (0, 2), reason="old", require_newest=lambda: None, **given)
    assert done == Unsettled(reason=NEEDED)
    assert task.moving.names(1) == before
    assert task.whole(2)
    assert isinstance(
        wither(task.moving.entry(1), (0, 1), reason="old", require_newest=lambda: None, **given), Manifest
    )
    assert task.whole(1)
    assert task.whole(2)


def test_one_that_cannot_be_removed_keeps_no_other_one_and_is_told_once() -> None:
    task = Task(4, Retention(last=2))
    task.store.stuck = f"{folder(1)}/meta"
    assert task.tidy() == [1, 3, 4]
    assert task.told() == [("removed", "c1"), ("removed", "c2"), ("stayed", "c1")]
    for _ in range(3):
        task.save()
        task.tidy()
    assert task.tidy() == [1, 6, 7]
    assert task.failed() == ["removing c1"]
    assert [one for one in task.told() if one[1] == "c1"] == [("removed", "c1"), ("stayed", "c1")]
    assert [entry.manifest.step for entry in task.catalog.entries(HOME)] == [1, 6, 7]
    task.store.stuck = "none"
    assert task.tidy() == [6, 7]
    assert task.told()[-1] == ("removed", "c1")
    assert [event.id for event in task.events if isinstance(event, Removed)][-1] == "c1"


def test_what_cannot_be_removed_does_not_keep_others_from_ageing() -> None:
    task = Task(6, Retention(last=5, ageing=Ageing(level_1=7.0)), days=40)
    task.store.stuck = f"{folder(1)}/meta"
    assert task.tidy() == [1, 2, 3, 4, 5, 6]
    assert task.levels() == [*[(0, 2)] * 5, (0, 1, 2)]


def test_what_failed_once_is_aged_an_hour_later() -> None:
    task = Task(3, Retention(last=None, ageing=Ageing(level_1=7.0)), days=40)
    task.store.full = "meta-2"
    task.tidy()
    assert task.levels() == [(0, 1, 2)] * 3
    task.store.full = "none"
    task.clock.advance(AGE_EVERY_S + 1)
    task.tidy()
    assert task.levels() == [(0, 2), (0, 2), (0, 1, 2)]


def test_those_that_fail_leave_their_turn_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.tidying.AGED_MAX", 1)
    task = Task(4, Retention(last=None, ageing=Ageing(level_1=7.0)), days=40)
    task.store.full = f"{folder(1)}/meta-2"
    for _ in range(3):
        task.tidy()
    assert task.levels() == [(0, 1, 2), (0, 2), (0, 2), (0, 1, 2)]


def test_a_clock_that_jumps_ages_nothing() -> None:
    task = Task(3, Retention(last=None, ageing=Ageing(level_1=7.0)))
    for days in (80 * 365.0, -80 * 365.0, 400.0):
        task.clock.jump(days * DAY_S)
        task.clock.advance(AGE_EVERY_S + 1)
        task.tidy()
        assert task.levels() == [(0, 1, 2)] * 3
    task.clock.advance(7 * DAY_S)
    task.tidy()
    assert task.levels() == [(0, 2), (0, 2), (0, 1, 2)]


def test_the_slower_of_two_clocks_counts() -> None:
    clock = Jumping(now_s=1000.0)
    now = unhurried(clock)
    clock.advance(5.0)
    assert now() == 1005.0
    clock.jump(50.0)
    assert now() == 1005.0
    clock.jump(-60.0)
    assert now() == 995.0


def test_a_pin_that_comes_while_others_age_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(3, Retention(last=None, ageing=Ageing(level_1=7.0)), days=40)
    pin = Fact(kind="pin", time="2026-12-30T00:00:00Z", checkpoint="c2", values={"why": "mine", "by": "me"})

    def hear(event: Event) -> None:
        if isinstance(event, Withered) and event.id == "c1":
            noted.from_outside(task.store, "a", [pin])
        task.events.append(event)

    monkeypatch.setattr(task.tidying, "_emit", hear)
    task.tidy()
    assert task.levels() == [(0, 2), (0, 1, 2), (0, 1, 2)]
    assert task.failed() == []


def test_a_pin_that_comes_while_others_go_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, whose fact is on its way, and of another one."""
    task = Task(6, Retention(last=1))
    pin = Fact(kind="pin", time="2026-12-30T00:00:00Z", checkpoint="c3", values={"why": "mine", "by": "me"})
    delete = task.store.delete

    def pinned_first(key: str) -> None:
        if key == f"{folder(1)}/meta.json":
            noted.from_outside(task.store, "a", [pin])
            task.tidying.protect("c4", "an alarm")
        delete(key)

    monkeypatch.setattr(task.store, "delete", pinned_first)
    assert task.tidy() == [3, 4, 6]
    assert [one for one in task.told() if one[1] in ("c3", "c4")] == []
    assert task.whole(3)
