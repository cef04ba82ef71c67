"""Tiers that fill up: a budget and a small disk are kept, what goes there is told, and the root keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mementum
from mementum.errors import StoreError
from mementum.events import Displaced, Failed, NoRoom, Note, Placed, RoomMade
from mementum.storage.local import LocalStore
from mounts import Mounted
from tiered import Training, entries

STEPS = 20
QUICK = {"vitals": "off", "alarms": "off"}


def train(training: Training, run: mementum.Run, steps: int = STEPS) -> list[float]:
    """How full the tier was after each step."""
    (line,) = run._background._forwarding._lines
    seen: list[float] = []
    for _ in range(steps):
        training.step(run)
        assert run.wait()
        assert run._background._forwarding.drain(10)
        usage = line.site.usage(run._opened.store)
        assert usage is not None
        seen.append(usage.share)
    return seen


def test_a_budget_is_kept(tmp_path: Path) -> None:
    training, far = Training(), tmp_path / "far"
    with training.open(tmp_path / "measure", config=QUICK) as run:
        training.step(run)
        run.wait()
        (one,) = run._opened.catalog.entries(run._opened.home)
    training = Training()
    budget = 12 * one.manifest.size
    with training.open(tmp_path / "root", {"url": str(far), "budget": budget}, config=QUICK, keep_last=None) as run:
        seen = train(training, run)
        near = {entry.manifest.step for entry in run._opened.catalog.entries(run._opened.home)}
    assert 0.70 < max(seen) < 0.90
    assert len(training.told.of(Placed)) == STEPS
    there = entries(far)
    assert max(there) == STEPS
    assert near == set(range(1, STEPS + 1))  # the root's disk has room
    gone = training.told.of(Displaced)
    assert {event.step for event in gone} == near - set(there)
    assert all("room is needed" in event.reason for event in gone)
    assert [event.place for event in training.told.of(RoomMade)] == [str(far)] * len(training.told.of(RoomMade))
    assert training.told.of(Failed) == training.told.of(NoRoom) == []


def test_a_budget_that_holds_nothing_more_is_told_once(tmp_path: Path) -> None:
    """It holds no more than one, which is the newest full one there and stays."""
    training, far = Training(), tmp_path / "far"
    with training.open(tmp_path / "measure", config=QUICK) as run:
        training.step(run)
        run.wait()
        (one,) = run._opened.catalog.entries(run._opened.home)
    training = Training()
    budget = round(1.5 * one.manifest.size)
    with training.open(tmp_path / "root", {"url": str(far), "budget": budget}, config=QUICK) as run:
        train(training, run, 4)
    assert list(entries(far)) == [1]
    (told,) = training.told.of(NoRoom)
    assert (told.place, told.saves, told.size) == (str(far), False, budget)
    assert "give the tier" in told.next_command
    assert training.told.of(Failed) == []
    assert [event for event in training.told.of(Note) if "not on" in event.text] == []


def test_of_a_tier_of_weights_the_newest_stays(tmp_path: Path) -> None:
    training, far = Training(), tmp_path / "far"
    with training.open(tmp_path / "root", {"url": str(far), "levels": [0]}, config=QUICK, keep_last=None) as run:
        train(training, run, 3)
        (line,) = run._background._forwarding._lines
        sizes = {step: entry.manifest.size for step, entry in entries(far).items()}
        gave = line.displacing.free(1 << 30)
        assert list(entries(far)) == [3]
        assert (gave.freed, gave.missing) == (sizes[1] + sizes[2], (1 << 30) - gave.freed)
    assert [event.step for event in training.told.of(Displaced)] == [1, 2]


def test_what_cannot_leave_a_tier_gives_no_room_and_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, far = Training(), tmp_path / "far"
    with training.open(tmp_path / "root", {"url": str(far)}, config=QUICK, keep_last=None) as run:
        train(training, run, 5)
        (line,) = run._background._forwarding._lines
        first, delete = entries(far)[1], LocalStore.delete

        def refuse(store: LocalStore, key: str) -> None:
            if key.startswith(f"{first.folder}/meta"):
                raise StoreError(key, f"{key}: no permission")
            delete(store, key)

        monkeypatch.setattr(LocalStore, "delete", refuse)
        every = sum(entry.manifest.size for entry in entries(far).values())
        gave = line.displacing.free(every)
        left = entries(far)
        assert sorted(left) == [1, 5]
        assert gave.freed == every - sum(entry.manifest.size for entry in left.values())
        assert gave.missing == every - gave.freed
    assert {event.step for event in training.told.of(Displaced)} == {2, 3, 4}


def test_a_small_disk_of_a_tier_is_kept_from_filling_up(mount: Callable[[int], Mounted], tmp_path: Path) -> None:
    disk, training = mount(1 << 20), Training()
    far = disk.folder / "far"
    with disk.watched() as seen, training.open(tmp_path / "root", {"url": str(far)}, config=QUICK) as run:
        train(training, run, 36)
    assert 0.70 < max(seen) < 0.90
    assert len(training.told.of(Placed)) == 36
    assert max(entries(far)) == 36
    assert training.told.of(Failed) == training.told.of(NoRoom) == []


def test_without_watermarks_a_tier_may_be_filled(tmp_path: Path) -> None:
    training, far = Training(), tmp_path / "far"
    config = {**QUICK, "watermarks": "off"}
    with training.open(tmp_path / "root", {"url": str(far), "budget": 1000}, config=config) as run:
        train(training, run, 3)
    assert sorted(entries(far)) == [1, 2, 3]
