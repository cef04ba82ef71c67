"""A run comes back from what is clean by all that is known, on the disk or in memory, and says what it passes over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from deaths import die, hold_disk, left, steps_left
from mementum import draining
from mementum.catalog import facts
from mementum.catalog.sql import open_sqlite
from mementum.catalog.tasks import tasks
from mementum.clock import SystemClock
from mementum.events import PassedOver
from mementum.records import NON_FINITE, Entry, Fact, Health
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from snapshots import Alternating
from trips import Told

TASK = "t"


class Made:
    """A model and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 8)).pow(2).mean().backward()
        self.optimizer.step()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        wishes = {"every_steps": 1, "keep_last": None, **wishes}
        return mementum.open_run(root, task=TASK, model=self.model, optimizer=self.optimizer, **wishes)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "root"
    made.mkdir()
    yield made
    for one in left(made, TASK):
        one.remove()


def kill_after(root: Path, *, on_disk: int, in_memory: int = 0, broken_at: int | None = None) -> None:
    """Train, with every step on the disk and then the next ones in memory alone, and die."""
    made = Made()
    run = made.open(root, slots=3 if in_memory else 0)
    for number in range(1, on_disk + in_memory + 1):
        if number == on_disk + 1:
            hold_disk(run)
        made.step()
        if number == broken_at:
            with torch.no_grad():
                made.model.weight[0, 0] = float("nan")
        run.record()
        if number <= on_disk:
            run.wait()
    if in_memory:
        die(run)
    else:
        run.close()


def home(root: Path) -> str:
    (found,) = tasks(LocalStore(PosixDisk(), str(root)))
    return found.home


def entries(root: Path) -> dict[int, Entry]:
    """By step, as the catalog in the root tells them."""
    catalog = open_sqlite(root / "catalog.db")
    try:
        return {entry.manifest.step: entry for entry in catalog.entries(home(root))}
    finally:
        catalog.close()


def tell(root: Path, id: str, health: Health, *, why: str = "the loss rose") -> None:
    """As a process writes it into its journal before it dies."""
    values = {"health": health.value, "why": why, "onset": 2}
    fact = Fact(kind="health", time="2099-01-01T00:00:00.000000Z", checkpoint=id, values=values)
    LocalStore(PosixDisk(), f"{root}/{home(root)}").append("journal/0001.jsonl", facts.render(fact))


def snapshots(root: Path) -> dict[int, str]:
    return {one.stamp.step: one.stamp.id for one in left(root, TASK) if one.stamp is not None}


def resumed(root: Path, **wishes: Any) -> tuple[int, str, Told]:
    told = Told()
    with Made().open(root, resume="must", on_event=told, **wishes) as run:
        assert run.resumed is not None
        assert run.wait()
        return run.resumed.step, run.resumed.tier, told


@pytest.mark.parametrize("lost", [True, False], ids=["without its catalog", "with its catalog"])
def test_after_a_run_that_diverged_the_next_start_goes_on_from_the_newest_clean_one(root: Path, lost: bool) -> None:
    kill_after(root, on_disk=5)
    saved = entries(root)
    for step in (3, 4, 5):
        tell(root, saved[step].manifest.id, Health.DIVERGED if step == 5 else Health.SUSPECT)
    if lost:
        (root / "catalog.db").unlink()
    assert resumed(root, slots=0)[:2] == (2, "ssd")
    assert {step: entry.health for step, entry in entries(root).items()} == {
        1: Health.CLEAN,
        2: Health.CLEAN,
        3: Health.SUSPECT,
        4: Health.SUSPECT,
        5: Health.DIVERGED,
    }


def test_where_none_is_clean_the_newest_suspect_one_is_better_than_nothing(root: Path) -> None:
    kill_after(root, on_disk=3)
    saved = entries(root)
    for step, health in ((1, Health.SUSPECT), (2, Health.SUSPECT), (3, Health.DIVERGED)):
        tell(root, saved[step].manifest.id, health)
    assert resumed(root, slots=0)[:2] == (2, "ssd")


def test_what_is_clean_after_all_is_gone_on_from(root: Path) -> None:
    kill_after(root, on_disk=2)
    id = entries(root)[2].manifest.id
    tell(root, id, Health.SUSPECT)
    tell(root, id, Health.CLEAN, why="calm since step 2")
    assert resumed(root, slots=0)[:2] == (2, "ssd")


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.DIVERGED])
def test_a_snapshot_that_is_not_clean_is_passed_over_for_a_clean_checkpoint(root: Path, health: Health) -> None:
    kill_after(root, on_disk=2, in_memory=2)
    found = snapshots(root)
    for step in (3, 4):
        tell(root, found[step], health)
    step, _, told = resumed(root)
    assert step == 2
    assert {event.id for event in told.of(PassedOver)} == {found[3], found[4]}
    (what,) = {event.what.partition(": ")[2] for event in told.of(PassedOver)}
    assert what == f"it is {health.value} (the loss rose); the newest that is clean, of step 2, goes before it"
    assert steps_left(root, TASK) == []


def test_an_older_clean_snapshot_goes_before_a_newer_one_that_is_not(root: Path) -> None:
    kill_after(root, on_disk=2, in_memory=2)
    newest = max(snapshots(root))
    clean = sorted(snapshots(root))[-2]
    assert (clean, newest) == (3, 4)
    tell(root, snapshots(root)[newest], Health.SUSPECT)
    assert resumed(root)[:2] == (3, "ram")
    assert {step: entry.health for step, entry in entries(root).items() if step == 3} == {3: Health.CLEAN}


def test_a_clean_snapshot_goes_before_a_newer_checkpoint_that_is_not(root: Path) -> None:
    """As a recorder's snapshot, in memory alone, lies between two saves to the disk."""
    made = Made()
    run = made.open(root, policy=Alternating(1, 3), every_steps=None)
    for _ in range(3):
        made.step()
        run.record()
        run.wait()
    die(run)
    saved = entries(root)
    assert sorted(saved) == [1, 3]
    tell(root, saved[3].manifest.id, Health.SUSPECT)
    assert resumed(root)[:2] == (2, "ram")
    assert sorted(entries(root)) == [1, 2, 3]


def test_where_nothing_is_clean_a_suspect_snapshot_is_come_back_from_and_stays_marked(root: Path) -> None:
    kill_after(root, on_disk=0, in_memory=2)
    for id in snapshots(root).values():
        tell(root, id, Health.SUSPECT)
    assert resumed(root)[:2] == (2, "ram")
    assert entries(root)[2].health is Health.SUSPECT
    assert entries(root)[2].manifest.health is Health.SUSPECT


def test_a_snapshot_that_is_not_finite_is_not_come_back_from(root: Path) -> None:
    kill_after(root, on_disk=2, in_memory=2, broken_at=4)
    step, tier, told = resumed(root)
    assert (step, tier) == (3, "ram")
    (said,) = [event.what.partition(": ")[2] for event in told.of(PassedOver)]
    assert said == "it is diverged (model.weight is not finite); the newest that is clean, of step 3, goes before it"


def test_a_snapshot_that_is_not_finite_is_passed_over_for_an_older_checkpoint(root: Path) -> None:
    kill_after(root, on_disk=2, in_memory=1, broken_at=3)
    step, _, told = resumed(root)
    assert step == 2
    (said,) = [event.what.partition(": ")[2] for event in told.of(PassedOver)]
    assert said == "it is diverged (model.weight is not finite); the newest that is clean, of step 2, goes before it"


def test_where_there_is_nothing_else_what_is_not_finite_is_marked_so_for_ever(root: Path) -> None:
    kill_after(root, on_disk=0, in_memory=1, broken_at=1)
    assert resumed(root)[:2] == (1, "ram")
    entry = entries(root)[1]
    assert (entry.health, entry.manifest.decision[NON_FINITE]) == (Health.DIVERGED, "model.weight")
    tell(root, entry.manifest.id, Health.CLEAN)
    assert resumed(root, slots=0)[0] == 1
    assert entries(root)[1].health is Health.DIVERGED


@pytest.mark.parametrize("broken", [True, False])
def test_a_drain_carries_what_is_healthiest_and_marks_what_is_not_clean(root: Path, broken: bool) -> None:
    kill_after(root, on_disk=1, in_memory=1, broken_at=2 if broken else None)
    if not broken:
        (id,) = [id for step, id in snapshots(root).items() if step == 2]
        tell(root, id, Health.SUSPECT)
    drained = draining.drain(root, TASK, clock=SystemClock(), emit=Told())
    assert drained.placed is not None
    assert (drained.placed.step, drained.placed.health) == (2, Health.DIVERGED if broken else Health.SUSPECT)
    assert resumed(root, slots=0)[0] == 1
