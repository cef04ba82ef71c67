"""Levels of an old checkpoint are dropped: what is left of it is loaded, verified and exported as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from copies import content, save, whole
from mementum import functional
from mementum.catalog import facts, tasks
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import ManualClock
from mementum.decide.ageing import Ageing
from mementum.decide.retain import Retention
from mementum.errors import NothingToResume, StateMismatch, StoreError, Superseded
from mementum.events import Event, Failed, Removed, Withered
from mementum.journal import Journal
from mementum.pruning import sweep
from mementum.records import Entry, Fact, Granularity, Manifest
from mementum.recover.verify import verify
from mementum.rewriting import GONE, Unsettled
from mementum.storage.around import Around
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from mementum.testing.simdisk import SimDisk
from mementum.tidying import AGE_EVERY_S, Tidying
from mementum.withering import wither

DAY_S = 86_400.0


def trained(root: Path, *, steps: int = 3) -> torch.nn.Module:
    """A root with a checkpoint of each step, whose weights are all that step's number."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with mementum.open_run(
        root, task="t", model=model, optimizer=optimizer, every_steps=1, keep_last=None, slots=0
    ) as run:
        for step in range(1, steps + 1):
            model(torch.ones(1, 4)).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                model.weight.fill_(step)
            run.record(loss=1.0 / step)
            run.wait()
    return model


class Held:
    """A task's home and catalog, without a run."""

    def __init__(self, root: Path) -> None:
        disk = PosixDisk()
        found = tasks.find(LocalStore(disk, str(root)), "t")
        assert found is not None
        self.home, self.store, self.catalog = found, LocalStore(disk, f"{root}/{found}"), open_sqlite(None)
        self.events: list[Event] = []
        refresh(self.catalog, self.home, self.store)

    def entries(self) -> list[Entry]:
        return list(self.catalog.entries(self.home))

    def wither(self, entry: Entry, *levels: int, **given: Any) -> Manifest | Unsettled:
        wishes: dict[str, Any] = {
            "reason": "old",
            "home": self.home,
            "store": self.store,
            "catalog": self.catalog,
            "emit": self.events.append,
            "require_newest": lambda: None,
        }
        return wither(entry, levels, **{**wishes, **given})


@contextmanager
def held(root: Path) -> Iterator[Held]:
    found = Held(root)
    yield found
    found.catalog.close()


def test_without_its_optimizer_it_is_weights(tmp_path: Path) -> None:
    trained(tmp_path)
    with held(tmp_path) as task:
        first = task.entries()[0]
        done = task.wither(first, 0, 2)
        assert isinstance(done, Manifest)
        assert (done.granularity, done.levels, done.generation) == (Granularity.WEIGHTS, (0, 2), 2)
        assert sorted(file.name for file in done.files) == [
            "context-00000-2.json",
            "index-00000-2.json",
            "model.safetensors",
        ]
        assert task.entries()[0].manifest == done
        assert verify(task.store, first.folder, done, deep=True) == ()
        (told,) = task.events
        assert told == Withered(
            id=done.id, step=1, levels=(0, 2), size_before=first.manifest.size, size=done.size, reason="old"
        )
        names = {stat.key.partition("/")[2] for stat in task.store.list(f"{first.folder}/")}
        assert names == {"meta-2.json", *(file.name for file in done.files)}
    fresh = torch.nn.Linear(4, 4)
    functional.load(tmp_path, {"model": fresh}, checkpoint=1)
    assert torch.equal(fresh.weight, torch.full((4, 4), 1.0))
    optimizer = torch.optim.AdamW(fresh.parameters())
    with pytest.raises(StateMismatch):
        functional.load(tmp_path, {"model": fresh, "optimizer": optimizer}, checkpoint=1)
    functional.load(tmp_path, {"model": fresh, "optimizer": optimizer}, checkpoint=1, fit="partial")
    assert optimizer.state_dict()["state"] == {}


def test_a_resume_takes_the_newest_that_is_whole(tmp_path: Path) -> None:
    trained(tmp_path)
    with held(tmp_path) as task:
        assert isinstance(task.wither(task.entries()[2], 0, 2), Manifest)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with mementum.open_run(tmp_path, task="t", model=model, optimizer=optimizer, slots=0) as run:
        assert run.resumed is not None
        assert run.resumed.step == 2
        assert torch.equal(model.weight, torch.full((4, 4), 2.0))


def test_a_record_is_left_and_nothing_loads_it(tmp_path: Path) -> None:
    trained(tmp_path)
    with held(tmp_path) as task:
        entry = task.entries()[0]
        done = task.wither(entry, 2)
        assert isinstance(done, Manifest)
        assert (done.granularity, done.levels) == (Granularity.ESSENTIALS, (2,))
        assert verify(task.store, entry.folder, done, deep=True) == ()
        assert done.metrics == {"loss": 1.0}
    with pytest.raises(NothingToResume, match="only a record of it is left"):
        functional.load(tmp_path, {"model": torch.nn.Linear(4, 4)}, checkpoint=1, fit="partial")


def test_what_it_has_not_is_not_dropped(tmp_path: Path) -> None:
    trained(tmp_path)
    with held(tmp_path) as task:
        (first, *_) = task.entries()
        assert isinstance(task.wither(first, 0, 2), Manifest)
        nothing = Unsettled(reason="it has nothing of what would be dropped")
        assert task.wither(task.entries()[0], 0, 2) == nothing
        assert len(task.events) == 1


def test_what_goes_wrong_leaves_it_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, steps=2)
    with held(tmp_path) as task:
        entry = task.entries()[0]
        before = [stat.key for stat in task.store.list()]
        superseded = Superseded("t", attempt=1, by=2, host="h", pid=3)

        def later() -> None:
            raise superseded

        assert task.wither(entry, 0, 2, require_newest=later) == Unsettled(reason=superseded.message)
        put = LocalStore.put

        def full(store: LocalStore, key: str, chunks: Any) -> Any:
            if "meta" in key:
                raise StoreError(key, "the disk is full")
            return put(store, key, chunks)

        monkeypatch.setattr(LocalStore, "put", full)
        assert task.wither(entry, 0, 2) == Unsettled(reason="the disk is full")
        monkeypatch.undo()
        assert task.events == [
            Failed(what=f"ageing {entry.manifest.id}", error="the disk is full", kept="the checkpoint, as it is")
        ]
        assert [stat.key for stat in task.store.list()] == before
        for key in before:
            if key.startswith(entry.folder):
                task.store.delete(key)
        assert task.wither(entry, 0, 2) == Unsettled(reason=GONE)


class Aged:
    """A tidying whose clock is set by hand."""

    def __init__(self, task: Held, ageing: Ageing) -> None:
        self.task, self.clock = task, ManualClock(now_s=1_796_000_000.0)
        self.journal = Journal(task.store, 9, clock=self.clock, emit=task.events.append)
        self.tidying = Tidying(
            home=task.home,
            store=task.store,
            catalog=task.catalog,
            retention=Retention(last=None, ageing=ageing),
            journal=self.journal,
            turn=nullcontext(),
            sure=True,
            clock=self.clock,
            emit=task.events.append,
        )

    def after(self, days: float) -> list[tuple[int, ...]]:
        """What is left of each checkpoint, oldest first."""
        self.clock.advance(days * DAY_S)
        self.tidying.tidy(lambda: None)
        return [entry.manifest.levels for entry in self.task.entries()]

    def facts(self) -> list[tuple[str, dict[str, Any]]]:
        found = facts.parse(self.task.store.get("journal/0009.jsonl"))
        return [(fact.kind, dict(fact.values)) for fact in found]


def test_levels_go_one_after_the_other_and_then_all(tmp_path: Path) -> None:
    trained(tmp_path, steps=2)
    with held(tmp_path) as task:
        entry = task.entries()[0]
        aged = Aged(task, Ageing(level_0=20.0, level_1=7.0, level_2=20.0))
        saved_s = aged.clock.now()
        begin_days = (_time(entry) - saved_s) / DAY_S
        assert aged.after(begin_days + 6.9) == [(0, 1, 2), (0, 1, 2)]
        assert aged.after(0.2) == [(0, 2), (0, 1, 2)]
        assert aged.after(12.0) == [(0, 2), (0, 1, 2)]
        assert aged.after(1.0) == [(0, 1, 2)]
        assert [type(event) for event in task.events if isinstance(event, Withered | Removed)] == [Withered, Removed]
        assert aged.facts() == [
            ("aged", {"reason": "7.1 days old: optimizer after 7 days", "levels": [0, 2], "by": "ageing"}),
            (
                "removed",
                {"reason": "20.1 days old: weights after 20, context after 20 days", "by": "ageing"},
            ),
        ]


def test_a_pin_that_comes_while_it_is_aged_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next generation is there by then, and is taken back."""
    trained(tmp_path)
    with held(tmp_path) as task:
        first, second, _ = task.entries()
        before, put = [stat.key for stat in task.store.list(first.folder)], LocalStore.put

        def pinned(store: LocalStore, key: str, chunks: Any) -> Any:
            if key == f"{first.folder}/meta-2.json":
                put(store, "facts/pin.json", [facts.render(_pin(first, "pin"))])
            return put(store, key, chunks)

        monkeypatch.setattr(LocalStore, "put", pinned)
        aged = Aged(task, Ageing(level_1=7.0))
        full = (0, 1, 2)
        assert aged.after((_time(first) - aged.clock.now()) / DAY_S + 7.1) == [full, (0, 2), full]
        assert [stat.key for stat in task.store.list(first.folder)] == before
        assert verify(task.store, first.folder, first.manifest, deep=True) == ()
        assert [(type(event), event.id) for event in task.events if isinstance(event, Withered | Failed)] == [
            (Withered, second.manifest.id)
        ]
        assert [kind for kind, _ in aged.facts()] == ["aged"]


def test_a_manifest_that_comes_after_a_sweep_of_its_parts_is_withdrawn() -> None:
    """The request was on its way for minutes: another machine has taken the tier meanwhile, and cleared it."""
    far, catalog, events = LocalStore(SimDisk(), "far"), open_sqlite(None), list[Event]()
    entry = save(far, 3)
    catalog.add("h", entry.manifest, entry.folder)
    before, swept = content(far), list[str]()

    class Late(Around):
        def put(self, key: str, chunks: Any) -> Stat:
            if key.endswith("/meta-2.json"):
                swept.extend(sweep(far, emit=lambda event: None))
            return super().put(key, chunks)

    done = wither(
        entry,
        (0, 2),
        reason="old",
        home="h",
        store=Late(far),
        catalog=catalog,
        emit=events.append,
        require_newest=lambda: None,
    )
    assert isinstance(done, Unsettled)
    assert swept == [f"{entry.folder}/context-00000-2.json", f"{entry.folder}/index-00000-2.json"]
    assert whole(far, entry.folder) == entry.manifest
    assert content(far) == before
    assert [held.manifest for held in catalog.entries("h")] == [entry.manifest]
    assert events == []
    catalog.close()


def _time(entry: Entry) -> float:
    return datetime.fromisoformat(entry.manifest.time).timestamp()


def test_a_clock_that_is_set_ahead_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    with held(tmp_path) as task:
        aged = Aged(task, Ageing(level_1=30.0))
        right = aged.clock.now
        with monkeypatch.context() as ahead:
            ahead.setattr(aged.clock, "now", lambda: right() + 365 * DAY_S)
            assert aged.after(0.5) == [(0, 1, 2)] * 3
            assert aged.after(0.5) == [(0, 1, 2)] * 3
        assert aged.after(1.0) == [(0, 1, 2)] * 3
        assert aged.after((_time(task.entries()[0]) - aged.clock.now()) / DAY_S + 30.0)[0] == (0, 2)


def test_it_is_looked_at_once_an_hour_and_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.tidying.AGED_MAX", 2)
    trained(tmp_path, steps=5)
    full = (0, 1, 2)
    with held(tmp_path) as task:
        (first, *_, newest) = task.entries()
        task.catalog.learn(task.home, "facts/a.json", [_pin(first, "pin")], size=1)
        aged = Aged(task, Ageing(level_1=7.0))
        assert aged.after(365.0) == [full, (0, 2), (0, 2), full, full]
        assert aged.after(0.0) == [full, (0, 2), (0, 2), (0, 2), full]  # there were more: the next save goes on
        task.catalog.learn(task.home, "facts/b.json", [_pin(first, "unpin")], size=1)
        assert aged.after((AGE_EVERY_S - 1) / DAY_S)[0] == full
        assert aged.after(2 / DAY_S) == [(0, 2)] * 4 + [full]
        assert task.entries()[-1].manifest == newest.manifest


def _pin(entry: Entry, kind: str) -> Fact:
    time = "2026-11-30T00:00:00.000000Z" if kind == "pin" else "2026-12-01T00:00:00.000000Z"
    return Fact(kind=kind, time=time, checkpoint=entry.manifest.id, values={"why": "mine"})
