"""While a run removes: what becomes known then counts, and what cannot go gives nothing, so that others go."""

from __future__ import annotations

from typing import Any

import pytest

from deltas import folder
from mementum.catalog import noted
from mementum.clearing import Cleared, forget_now, free
from mementum.config.tiers import Watermarks
from mementum.decide.ageing import Ageing
from mementum.decide.retain import Retention
from mementum.errors import StoreError
from mementum.events import NoRoom, RoomMade
from mementum.records import Fact, Health, Usage
from mementum.watermarks import Level, marks_of
from test_tidying import HOME, Task

TIME = "2026-12-30T00:00:00Z"
WORSE = {"damaged": {"what": "index"}, "health": {"health": "diverged", "why": "a spike"}}
NEWEST = {"damaged": "the newest full one", "health": "the newest full one that is clean"}
kinds = pytest.mark.parametrize("kind", list(WORSE))


def worse(kind: str, number: int) -> Fact:
    return Fact(kind=kind, time=TIME, checkpoint=f"c{number}", values=WORSE[kind])


def turns_out(task: Task, monkeypatch: pytest.MonkeyPatch, call: str, begin: str, fact: Fact) -> None:
    """Another process tells it, as `mementum verify --deep` does, right before the first such key is put or deleted."""
    before, said = getattr(task.store, call), list[str]()

    def heard(key: str, *given: Any) -> Any:
        if key.startswith(begin) and not said:
            said.append(key)
            noted.from_outside(task.store, "a", [fact])
        return before(key, *given)

    monkeypatch.setattr(task.store, call, heard)


def left(task: Task) -> list[int]:
    return [number for number in range(1, task.count + 1) if task.moving.names(number)]


def cleared(task: Task, **given: Any) -> dict[str, Any]:
    return {"clock": task.clock, "emit": task.events.append, "dry_run": False, **given}


def forget(task: Task) -> Cleared:
    return forget_now(task.store, HOME, task.catalog, Retention(last=1), **cleared(task))


def gc(task: Task) -> Cleared:
    return free(task.store, HOME, task.catalog, **cleared(task, need=1 << 30))


@kinds
def test_where_the_newest_turns_out_worse_retention_leaves_the_last_good_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(5, Retention(last=1))
    turns_out(task, monkeypatch, "delete", folder(1), worse(kind, 5))
    assert task.tidy() == [4, 5]
    assert task.whole(4)
    assert [entry.manifest.step for entry in task.catalog.entries(HOME)] == [4, 5]
    assert sorted(task.told()) == [("removed", f"c{number}") for number in (1, 2, 3)]


@kinds
def test_where_the_newest_turns_out_worse_the_last_good_one_does_not_age(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(5, Retention(last=None, ageing=Ageing(level_1=7.0)), days=40)
    turns_out(task, monkeypatch, "put", f"{folder(1)}/meta-2.json", worse(kind, 5))
    task.tidy()
    assert task.levels()[3:] == [(0, 1, 2), (0, 1, 2)]
    assert task.levels()[1:3] == [(0, 2), (0, 2)]
    assert (task.whole(4), task.failed()) == (True, [])


@kinds
@pytest.mark.parametrize("clear", [forget, gc])
def test_where_the_newest_turns_out_worse_a_person_leaves_the_last_good_one(
    kind: str, clear: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(6, Retention(last=None))
    turns_out(task, monkeypatch, "delete", "step_", worse(kind, 6))
    done = clear(task)
    assert left(task) == [5, 6]
    assert [entry.manifest.step for entry in task.catalog.entries(HOME)] == [5, 6]
    assert {one.id: one.reason for one in done.verdicts if one.keep}["c5"] == NEWEST[kind]
    assert task.whole(5)


def test_what_refuses_to_go_makes_no_room_and_others_go_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are of another user, and come first each time, as they are the least worth."""
    task = Task(0, Retention(last=None))
    for number in range(1, 13):
        task.moving.save(number, health=Health.DIVERGED if number <= 3 else Health.CLEAN)
    task.count = 12
    stuck, delete = tuple(f"{folder(number)}/meta" for number in (1, 2, 3)), task.store.delete

    def refuse(key: str) -> None:
        if key.startswith(stuck):
            raise StoreError(key, f"{key}: no permission")
        delete(key)

    def used() -> int:
        return sum(stat.size for stat in task.store.list() if stat.key.startswith("step_"))

    one = used() // 12
    size = 20 * one
    monkeypatch.setattr(task.store, "delete", refuse)
    task.tidying._level = Level(
        "disk",
        lambda: Usage(used=used(), size=size),
        marks_of(Watermarks(), bounded=False),
        next_command="give it room",
        clock=task.clock,
        emit=task.events.append,
    )
    highest = 0.0
    for _ in range(12):
        task.clock.advance(20.0)
        assert task.tidying.make_room(one, lambda: None) is None
        task.save()
        highest = max(highest, used() / size)
        task.tidy()
    assert highest < 0.85
    assert [number for number in (1, 2, 3) if number in left(task)] == [1, 2, 3]
    assert [event for event in task.events if isinstance(event, NoRoom)] == []
    made = [event for event in task.events if isinstance(event, RoomMade)]
    gone = 24 - len(left(task))
    assert abs(sum(event.freed for event in made) - gone * one) < one


def test_gc_counts_what_came_free_and_takes_others_for_what_refuses() -> None:
    task = Task(0, Retention(last=None))
    for number in range(1, 7):
        task.moving.save(number, health=Health.DIVERGED if number == 1 else Health.CLEAN)
    task.count = 6
    task.store.stuck = f"{folder(1)}/meta"
    for there in (5, 4, 3):
        before = {entry.manifest.id: entry.manifest.size for entry in task.catalog.entries(HOME)}
        done = free(task.store, HOME, task.catalog, **cleared(task, need=3000))
        assert (len(left(task)), left(task)[0], left(task)[-1]) == (there, 1, 6)
        (gone,) = (verdict.id for verdict in done.verdicts if not verdict.keep)
        assert (done.freed, done.missing) == (before[gone], 0)
        why = {one.id: one.reason for one in done.verdicts if one.keep}
        assert why["c1"] == f"{folder(1)}/meta.json: no permission"


def test_what_was_to_go_is_said_to_stay_once_while_the_catalog_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(4, Retention(last=2))

    def refuse(home: str, folder: str) -> None:
        raise StoreError("catalog.db", "the database is locked")

    with monkeypatch.context() as locked:
        locked.setattr(task.catalog, "forget", refuse)
        for _ in range(3):
            assert task.tidy() == [1, 2, 3, 4]
    assert task.told() == [("removed", "c1"), ("stayed", "c1")]
    assert task.tidy() == [3, 4]
    assert sorted(task.told()[2:]) == [("removed", "c1"), ("removed", "c2")]
