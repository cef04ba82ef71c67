"""Five hundred saves take no more of the machine than twenty, and a clean end leaves nothing of it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

import mementum
from mementum import ram
from mementum.events import Committed, Failed, SaveSkipped, SnapshotKept
from mementum.execute.room import WANTED
from mementum.records import Decision, Reach, Save, Situation
from trips import Told

SAVES = 500
WARM = 40  # saves until all slots, threads and caches are there
RSS_SLACK = (
    24 << 20
)  # bytes: arenas, SQLite's cache, and 8 MB that a process moves by which holds gigabytes of other tests
WIDTH = 256  # the state has 0.8 MB: what stayed behind of 460 would be 360 MB


@dataclass(frozen=True)
class Held:
    """What the process holds of the machine."""

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    slots: tuple[str, ...]
    hooks: int

    @classmethod
    def now(cls, root: Path) -> Held:
        gc.collect()  # also what other tests have left to it
        return cls(
            descriptors=tuple(sorted(open_files(root))),
            threads=tuple(sorted(thread.name for thread in threading.enumerate())),
            slots=tuple(sorted(path.name for path in slots_of(root))),
            hooks=len(_global_optimizer_pre_hooks),
        )


def open_files(root: Path) -> Iterator[str]:
    """What is open of the run's files and slots. Not the catalog's: its pool has a connection for each of
    the run's threads that ask at the same time, and how many do depends on the machine. Not what other tests of this
    process have left open: it goes when it is collected, or when a server closes its end."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            ours = target.startswith(f"{root.resolve()}/") or ram.key_of(root.resolve(), "t") in target
            if ours and "/catalog.db" not in target:
                yield target


def slots_of(root: Path) -> list[Path]:
    return list(Path(ram.FOLDER).glob(f"*{ram.key_of(root.resolve(), 't')}*"))


class Made:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.told = Told()

    def step(self) -> None:
        self.model(torch.ones(2, WIDTH)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        when = {} if "policy" in wishes else {"every_steps": 1}
        opening = {"model": self.model, "optimizer": self.optimizer, "keep_last": 2, **when}
        return mementum.open_run(root, task="t", on_event=self.told, **opening, **wishes)


@pytest.fixture(params=["overlapped", "blocking"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is counted here is not what a disk does
    return request.param


def test_what_is_held_stays_the_same_over_500_saves(tmp_path: Path, way: Any) -> None:
    saves = SAVES if way == "overlapped" else 2 * WARM
    before = Held.now(tmp_path)
    made = Made()
    process = psutil.Process()
    with made.open(tmp_path, capture=way) as run:
        for number in range(1, saves + 1):
            made.step()
            run.record()
            assert run.wait()
            if number == WARM:
                gc.collect()
                warm, rss = Held.now(tmp_path), process.memory_info().rss
            assert len(made.told.of(Committed)) == number
            if number > WARM and number % 40 == 0:
                assert Held.now(tmp_path) == warm
        gc.collect()
        assert process.memory_info().rss - rss < RSS_SLACK
    assert len(warm.slots) == WANTED
    assert made.told.of(Failed) == made.told.of(SaveSkipped) == []
    assert Held.now(tmp_path) == before


class InMemory:
    def decide(self, situation: Situation) -> Decision:
        return Save(reason="r", reach=Reach.PROCESS)


def test_what_is_held_stays_the_same_over_500_snapshots_in_memory(tmp_path: Path, way: Any) -> None:
    saves = SAVES if way == "overlapped" else 2 * WARM
    before = Held.now(tmp_path)
    made = Made()
    process = psutil.Process()
    with made.open(tmp_path, capture=way, policy=InMemory()) as run:
        for number in range(1, saves + 1):
            made.step()
            run.record()
            if number == WARM:
                gc.collect()
                warm, rss = Held.now(tmp_path), process.memory_info().rss
            if number > WARM and number % 40 == 0:
                assert Held.now(tmp_path) == warm
        gc.collect()
        assert process.memory_info().rss - rss < RSS_SLACK
        assert len(run._taker.ledger._active) <= 1
        assert len(run._deciding._watchers.perception._saving) <= 2  # what was told is counted at the next step
    assert len(warm.slots) == WANTED
    assert made.told.of(Failed) == made.told.of(SaveSkipped) == []
    assert [event.step for event in made.told.of(SnapshotKept)] == list(range(1, saves + 1))
    assert [event.step for event in made.told.of(Committed)] == [saves]  # the end
    assert Held.now(tmp_path) == before


def test_runs_that_fall_behind_leave_nothing_either(tmp_path: Path, way: Any) -> None:
    """Nobody waits for the disk, so that saves take the place of others, and others are skipped."""
    before = Held.now(tmp_path)
    made = Made()
    for _ in range(3):
        with made.open(tmp_path, capture=way) as run:
            for _ in range(40):
                made.step()
                run.record()
    assert made.told.of(Failed) == []
    assert made.told.of(Committed)[-1].step == 120
    assert len(made.told.of(Committed)) + len(made.told.of(SaveSkipped)) == 120
    assert Held.now(tmp_path) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_end_by_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    before = Held.now(tmp_path)

    def fail() -> None:
        made = Made()
        with made.open(tmp_path) as run:
            made.step()
            run.record()
            raise error("of the training")

    with pytest.raises(error, match="of the training"):
        fail()
    assert Held.now(tmp_path) == before
