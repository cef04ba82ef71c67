"""Snapshots in memory of a state with frozen weights: they count once a disk has those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deaths import die, left
from mementum.errors import StoreError
from mementum.events import CameToNothing, Committed, SaveSkipped, SnapshotKept
from mementum.execute import structure
from mementum.storage.local import LocalStore
from snapshots import TASK, WAIT_S, Made, Stuck, copied


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four kilobytes of frozen weights are worth a file of their own."""
    monkeypatch.setattr(structure, "FROZEN_MIN", 4096)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for one in left(path, TASK):
        one.remove()


class Frozen(Made):
    """Half of it is frozen from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        for parameter in self.model[0].parameters():
            parameter.requires_grad = False
        self.optimizer = torch.optim.AdamW(self.model[1].parameters(), lr=0.1)


def test_frozen_weights_reach_the_disk_before_a_snapshot_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, made = Stuck(monkeypatch), Frozen()
    run = made.open(root)
    made.step(run)
    copied(run)
    assert made.steps(CameToNothing) == [1]
    assert "the frozen weights that it needs are on no disk yet" in made.told.of(SaveSkipped)[0].reason
    made.step(run)  # goes to the disk
    assert stuck.reached.wait(WAIT_S)
    for _ in range(3):  # nothing is copied meanwhile, and nothing more is said
        made.step(run)
    assert made.steps(CameToNothing) == [1]
    assert made.steps(SaveSkipped) == [1]
    stuck.let.set()
    assert run.wait()
    assert made.steps(Committed) == [2]
    assert made.told.of(Committed)[0].reason.startswith("alternating; to the disk, since the frozen weights")
    for _ in range(2):
        made.step(run)
        copied(run)
    assert made.steps(SnapshotKept) == [6, 7]
    die(run)
    fresh = Frozen()
    with fresh.open(root, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (7, "ram")
        assert fresh.state() == made.state()


def test_where_the_disk_fails_it_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, full = LocalStore.put, [True]

    def failing(store: LocalStore, key: str, chunks: Any) -> Any:
        if key.startswith("step_") and full[0]:
            raise StoreError(key, f"{key}: no space is left on the disk")
        return put(store, key, chunks)

    monkeypatch.setattr(LocalStore, "put", failing)
    made = Frozen()
    run = made.open(root)
    for number in range(1, 9):
        full[0] = number < 6
        made.step(run)
        copied(run)
        run.wait()
    assert made.steps(Committed) == [6]
    assert made.steps(SnapshotKept) == [7, 8]
    die(run)
