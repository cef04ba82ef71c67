"""A run's catalog answers by itself, and the one that many share hears of everything, sooner or later."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.catalog.shared import SharedCatalog, shared_name
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.errors import AccessRefused, StoreError, Unreachable, UsageError
from mementum.events import Failed, Note
from mementum.format import manifest as manifests
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, JOURNAL, OTHER, fact, folder, ids, manifest
from shared_roots import WAIT_S, Rooted


class Door:
    """Opens the shared catalog, or refuses to."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self.error: Exception | None = None
        self.open, self.asked = threading.Event(), threading.Event()
        self.open.set()
        self.times = 0

    def __call__(self) -> Catalog:
        self.times += 1
        self.asked.set()
        assert self.open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return Kept(self.catalog._engine, self)


class Kept(SqlCatalog):
    """A catalog that fails when its door does, and stays open when it is closed."""

    def __init__(self, engine: object, door: Door) -> None:
        self.__dict__.update(door.catalog.__dict__)
        self._door = door

    def read_sizes(self, home: str) -> dict[str, int]:
        if self._door.error is not None:
            raise self._door.error
        return super().read_sizes(home)

    def close(self) -> None:
        """It is the test's."""


@pytest.fixture
def door() -> Iterator[Door]:
    catalog = open_sqlite(None)
    made = Door(catalog)
    yield made
    made.open.set()
    catalog.close()


@pytest.fixture
def rooted(tmp_path: Path, door: Door) -> Iterator[Rooted]:
    made = Rooted(tmp_path, door)
    yield made
    door.open.set()
    made.catalog.close()


def gone() -> Unreachable:
    return Unreachable("x", "it does not answer")


def test_what_is_entered_is_told(rooted: Rooted, door: Door) -> None:
    assert rooted.catalog.drain(WAIT_S)
    rooted.begin()
    rooted.live(1)
    rooted.catalog.add_all(HOME, [(manifest(7), folder(7)), (manifest(8), folder(8))])
    rooted.require_same(door.catalog)
    assert ids(rooted.catalog) == ["c002", "c003", "c007", "c008"]
    assert door.catalog.homes() == (rooted.name,)
    assert (rooted.events, door.times) == ([], 1)


def test_what_was_there_before_is_told_at_the_beginning(tmp_path: Path, door: Door) -> None:
    first = Rooted(tmp_path, door)
    door.error = gone()
    first.begin()
    first.live(1)
    first.catalog.close()
    door.error = None
    local = open_sqlite(None)
    again = SharedCatalog(local, door, name="n", home=HOME, store=first.store, emit=first.events.append)
    assert again.drain(WAIT_S)
    assert ids(door.catalog, first.name) == ["c002", "c003"]
    assert [start.number for start in door.catalog.starts(first.name)] == [1]
    again.close()


def test_answers_are_the_local_ones(rooted: Rooted, door: Door) -> None:
    door.open.clear()
    rooted.begin()
    rooted.live(1)
    assert ids(rooted.catalog) == ["c002", "c003"]
    point = rooted.catalog.recovery_point(HOME)
    assert point is not None
    assert (point.manifest.id, rooted.catalog.homes()) == ("c003", (HOME,))
    assert [start.pid for start in rooted.catalog.starts(HOME)] == [7]
    assert list(rooted.catalog.read_sizes(HOME)) == [JOURNAL]


def test_another_task_is_not_told(rooted: Rooted, door: Door) -> None:
    assert rooted.catalog.drain(WAIT_S)
    rooted.catalog.add(OTHER, manifest(1), folder(1))
    rooted.add(2)
    rooted.require_same(door.catalog)
    assert (ids(rooted.catalog, OTHER), door.catalog.homes()) == (["c001"], (rooted.name,))


def test_nobody_waits_for_a_server_that_does_not_answer(rooted: Rooted, door: Door) -> None:
    assert rooted.catalog.drain(WAIT_S)
    door.error = gone()
    rooted.add(1)
    wait_for(lambda: any(isinstance(event, Failed) for event in rooted.events))
    door.asked.clear()
    door.open.clear()  # from here on its thread hangs in a connection
    assert door.asked.wait(WAIT_S)
    for first in range(10, 100, 10):
        rooted.live(first)
    assert len(ids(rooted.catalog)) == 19
    assert not rooted.catalog.drain(0.0)
    door.error = None
    door.open.set()
    rooted.require_same(door.catalog)


def test_an_outage_is_told_once_and_its_end_once(rooted: Rooted, door: Door) -> None:
    for first in (10, 20, 30):
        rooted.live(first)
        rooted.require_same(door.catalog)
        before = door.times
        door.error = gone()
        rooted.add(first + 5)
        wait_for(lambda before=before: door.times >= before + 3)
        door.error = None
        rooted.require_same(door.catalog)
    lost, found = rooted.events
    assert lost == Failed(
        what="telling the catalog redis://host/0",
        error="it does not answer",
        kept="all checkpoints, and the run's own catalog; what it misses is told when it answers again",
    )
    assert found == Note(text="the catalog redis://host/0 answers again: it was told what it had missed")


@pytest.mark.parametrize(
    "error",
    [
        AccessRefused("x", "wrong password", next_command="n"),
        UsageError("no such thing is installed"),
    ],
)
def test_what_trying_again_does_not_help_is_told_and_left(tmp_path: Path, door: Door, error: StoreError) -> None:
    door.error = error
    rooted = Rooted(tmp_path, door)
    wait_for(lambda: bool(rooted.events))
    rooted.live(1)
    rooted.catalog.close()
    assert ids(door.catalog, rooted.name) == []
    assert (door.times, [event.error for event in rooted.events]) == (1, [error.message])
    assert "tells the other one nothing more" in rooted.events[0].kept


def test_a_fault_of_ours_in_the_thread_is_told_and_the_run_goes_on(tmp_path: Path, door: Door) -> None:
    door.error = ZeroDivisionError("ours")
    rooted = Rooted(tmp_path, door)
    wait_for(lambda: bool(rooted.events))
    rooted.live(1)
    assert ids(rooted.catalog) == ["c002", "c003"]
    rooted.catalog.close()
    assert [event.error for event in rooted.events] == ["ZeroDivisionError('ours')"]


def test_one_that_has_lost_all_is_filled_again(rooted: Rooted, door: Door) -> None:
    rooted.begin()
    rooted.live(1)
    rooted.require_same(door.catalog)
    empty = open_sqlite(None)
    door.catalog.become(empty)
    empty.close()
    assert door.catalog.homes() == ()
    rooted.add(9)
    rooted.require_same(door.catalog)
    assert ids(door.catalog, rooted.name) == ["c002", "c003", "c009"]
    assert rooted.events == []


def test_one_that_lacks_the_middle_of_a_journal_is_filled_again(rooted: Rooted, door: Door) -> None:
    rooted.live(1)
    rooted.require_same(door.catalog)
    door.catalog.learn(rooted.name, JOURNAL, [], size=0)
    rooted.pin(3, "later")
    rooted.require_same(door.catalog)
    assert [entry.pinned for entry in door.catalog.entries(rooted.name)] == ["kept 1", "later"]


def test_more_than_it_can_hold_is_compared(rooted: Rooted, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20
    monkeypatch.setattr("mementum.catalog.shared.WAITING_MAX", most)
    assert rooted.catalog.drain(WAIT_S)
    held, reached = threading.Event(), threading.Event()
    add_all = door.catalog.add_all

    def slowly(home: str, found: object) -> None:
        reached.set()
        assert held.wait(WAIT_S)
        add_all(home, found)

    rooted.catalog._other.__dict__["add_all"] = slowly
    rooted.add(1)
    assert reached.wait(WAIT_S)
    for second in range(most + 10):
        rooted.tell(fact("metrics", second % 60, step=10, acc=second / 2))
        assert len(rooted.catalog._waiting) <= most
    assert rooted.catalog._behind
    held.set()
    rooted.require_same(door.catalog)
    (entry,) = door.catalog.entries(rooted.name)
    assert entry.metrics["acc"] == (most + 9) / 2


def test_what_goes_while_both_are_compared_is_not_left(rooted: Rooted, door: Door) -> None:
    rooted.live(1)
    rooted.require_same(door.catalog)
    door.error = gone()
    rooted.add(9)
    wait_for(lambda: rooted.catalog._behind)
    rooted.catalog.forget(HOME, folder(9))  # and its manifest lies there still when both are compared
    door.error = None
    assert rooted.catalog.drain(WAIT_S)
    assert ids(door.catalog, rooted.name) == ids(rooted.catalog) == ["c002", "c003"]


@pytest.mark.parametrize("then", ["a save", "nothing"])
def test_what_a_command_enters_is_told(tmp_path: Path, door: Door, then: str) -> None:
    """It enters it in the database that the run has open, and so the run finds nothing new in its folder."""
    rooted = Rooted(tmp_path, door, look_s=0.02 if then == "nothing" else WAIT_S)
    rooted.live(1)
    rooted.require_same(door.catalog)
    local = rooted.catalog._local
    rooted.store.delete(f"{folder(2)}/meta.json")
    rooted.store.put(f"{folder(3)}/meta-2.json", [manifests.render(manifest(3, generation=2))])
    rooted.store.put("facts/a.json", [facts.render(fact("pin", 40, checkpoint="c003", why="by hand"))])
    refresh(local, HOME, rooted.store)
    if then == "a save":
        rooted.add(4)
    wanted = [("c003", 2, "by hand"), *([("c004", 1, None)] if then == "a save" else [])]
    wait_for(
        lambda: (
            [(one.manifest.id, one.manifest.generation, one.pinned) for one in door.catalog.entries(rooted.name)]
            == wanted
        )
    )
    rooted.require_same(door.catalog)
    assert rooted.events == []
    rooted.catalog.close()


def test_an_end_tells_what_became_known_after_the_last_save(tmp_path: Path, door: Door) -> None:
    """As what tiers did: who brings copies there writes facts, and tells the catalog nothing."""
    rooted = Rooted(tmp_path, door, look_s=WAIT_S)
    rooted.live(1)
    rooted.require_same(door.catalog)
    late = fact("placed", 40, checkpoint="c003", tier="nas", url="/nas", generation=1, size=1, levels=[0, 1, 2])
    rooted.store.put("facts/a.json", [facts.render(late)])
    rooted.store.delete(f"{folder(2)}/meta.json")
    refresh(rooted.catalog._local, HOME, rooted.store)
    wanted = [(entry.manifest.id, [place.tier for place in entry.places]) for entry in rooted.catalog.entries(HOME)]
    assert wanted == [("c003", ["nas"])]
    rooted.catalog.close()
    there = door.catalog.entries(rooted.name)
    assert [(entry.manifest.id, [place.tier for place in entry.places]) for entry in there] == wanted
    assert rooted.events == []


@pytest.mark.parametrize("error", [AccessRefused("x", "wrong password"), gone()])
def test_an_end_looks_once_more_and_no_longer(tmp_path: Path, door: Door, error: StoreError) -> None:
    rooted = Rooted(tmp_path, door, retry_s=3600.0, look_s=WAIT_S)
    rooted.live(1)
    rooted.require_same(door.catalog)
    times, door.error = door.times, error
    rooted.catalog.close()
    assert not [one for one in threading.enumerate() if one.name == "mementum-catalog"]
    assert (door.times, [event.error for event in rooted.events]) == (times, [error.message])


def test_an_end_tells_what_waits_and_twice_is_once(rooted: Rooted, door: Door) -> None:
    for seq in range(1, 40):
        rooted.add(seq)
    rooted.catalog.close()
    rooted.catalog.close()
    assert len(ids(door.catalog, rooted.name)) == 39


def test_an_end_does_not_wait_for_a_server_that_is_gone(tmp_path: Path, door: Door) -> None:
    door.error = gone()
    rooted = Rooted(tmp_path, door, retry_s=3600.0)
    wait_for(lambda: bool(rooted.events))
    rooted.catalog.close()
    assert not [one for one in threading.enumerate() if one.name == "mementum-catalog"]


def test_roots_are_apart_and_a_root_that_moves_keeps_its_name(tmp_path: Path, door: Door) -> None:
    roots = [Rooted(tmp_path / name, door) for name in ("a", "b")]
    for number, rooted in enumerate(roots):
        rooted.add(number + 1)
        rooted.require_same(door.catalog)
    assert roots[0].name != roots[1].name
    assert all(rooted.name.startswith(f"{HOME}@") and len(rooted.name) == len(HOME) + 13 for rooted in roots)
    assert [ids(door.catalog, rooted.name) for rooted in roots] == [["c001"], ["c002"]]
    assert door.catalog.homes() == tuple(sorted(rooted.name for rooted in roots))
    shutil.move(tmp_path / "a", tmp_path / "elsewhere")
    moved = LocalStore(PosixDisk(), f"{tmp_path}/elsewhere/{HOME}")
    moved.put("attempts/0002.json", [b"{}"])
    moved.put("attempts/0001.lease-1", [b""])
    assert shared_name(HOME, moved) == roots[0].name
    for rooted in roots:
        rooted.catalog.close()


def test_a_folder_without_an_attempt_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no attempt"):
        shared_name(HOME, LocalStore(PosixDisk(), str(tmp_path)))


def wait_for(happened: object) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if happened():
            return
        pause.wait(0.01)
    pytest.fail("it never happened")
