"""What the journal could not take when it became known is written later, in its order, if a start goes by it."""

from __future__ import annotations

from typing import Any

import pytest

from disks import FullDisk
from mementum import journal as journals
from mementum.catalog import facts
from mementum.clock import ManualClock
from mementum.events import Failed
from mementum.journal import Journal
from mementum.records import Fact
from mementum.storage.local import LocalStore
from trips import Told


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Any, disk: FullDisk) -> LocalStore:
    return LocalStore(disk, str(tmp_path))


@pytest.fixture
def journal(store: LocalStore, clock: ManualClock, told: Told) -> Journal:
    return Journal(store, 1, clock=clock, emit=told)


def written(store: LocalStore) -> list[tuple[str, str | None]]:
    return [(fact.kind, fact.checkpoint) for fact in facts.parse(store.get(facts.journal_key(1)))]


def tell(journal: Journal, *kinds: str) -> None:
    for number, kind in enumerate(kinds):
        journal.append(kind, f"c{number}", None, {})


def test_what_a_start_goes_by_is_written_later_and_before_what_comes_then(
    store: LocalStore, disk: FullDisk, journal: Journal, told: Told
) -> None:
    tell(journal, "cost")
    disk.full = "journal/"
    tell(journal, "diagnosis", "health", "cost", "pin", "unpin")
    assert [fact.kind for fact in journal.waiting] == ["diagnosis", "health", "pin", "unpin"]
    assert [event.what for event in told.of(Failed)] == ["a fact (diagnosis)", "a fact (cost)"]
    assert "until the disk takes them" in told.of(Failed)[0].kept
    disk.full = ""
    tell(journal, "metrics")
    assert journal.waiting == ()
    late = [("diagnosis", "c0"), ("health", "c1"), ("pin", "c3"), ("unpin", "c4")]
    assert written(store) == [("cost", "c0"), *late, ("metrics", "c0")]
    assert journal.unlearnt


def test_it_keeps_the_time_at_which_it_became_known(
    store: LocalStore, disk: FullDisk, clock: ManualClock, journal: Journal
) -> None:
    disk.full = "journal/"
    tell(journal, "health")
    clock.advance(60.0)
    disk.full = ""
    tell(journal, "health")
    first, second = (fact.time for fact in facts.parse(store.get(facts.journal_key(1))))
    assert (first[14:19], second[14:19]) == ("13:20", "14:20")


def test_what_waits_is_written_when_asked_and_each_time_of_trouble_is_said_once(
    store: LocalStore, disk: FullDisk, journal: Journal, told: Told
) -> None:
    assert not journal.catch_up()
    for _ in range(2):
        disk.full = "journal/"
        tell(journal, "pin", "pin")
        assert not journal.catch_up()
        disk.full = ""
        assert journal.catch_up()
        assert not journal.catch_up()
    assert written(store) == [("pin", "c0"), ("pin", "c1")] * 2
    assert len(told.of(Failed)) == 2


def test_only_the_newest_wait(
    store: LocalStore, disk: FullDisk, clock: ManualClock, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "WAITING_MAX", 3)
    journal = Journal(store, 1, clock=clock, emit=told)
    disk.full = "journal/"
    tell(journal, *["health"] * 5)
    assert [fact.checkpoint for fact in journal.waiting] == ["c2", "c3", "c4"]
    assert len(told.of(Failed)) == 1


class HalfDisk(FullDisk):
    """Takes the first half of a line before it is full."""

    def append(self, path: str) -> Any:
        if self.full and self.full in path:
            with open(path, "ab") as file:
                file.write(b'{"kind":"health","time":"2026')
        return super().append(path)


def test_half_a_line_that_was_left_spoils_none_that_follows(tmp_path: Any, clock: ManualClock, told: Told) -> None:
    disk = HalfDisk()
    store = LocalStore(disk, str(tmp_path))
    journal = Journal(store, 1, clock=clock, emit=told)
    tell(journal, "cost")
    disk.full = "journal/"
    tell(journal, "health", "pin")
    disk.full = ""
    assert journal.catch_up()
    assert written(store) == [("cost", "c0"), ("health", "c0"), ("pin", "c1")]
    assert Fact(kind="pin", time="2023-11-14T22:13:20.000000Z", checkpoint="c1") in facts.parse(
        store.get(facts.journal_key(1))
    )
