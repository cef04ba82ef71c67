"""Saves behind a slow disk: training never waits, the newest state wins, and no more than three copies exist."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import mementum
from disks import WAIT_S, GatedDisk
from mementum import ram
from mementum.errors import StoreError
from mementum.events import Committed, Failed, SaveSkipped
from mementum.storage.disk import PosixDisk
from trips import Told


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedDisk]:
    made = GatedDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: made)
    yield made
    made.gate.set()


def test_the_newest_state_wins_while_the_disk_is_slow(tmp_path: Path, disk: GatedDisk) -> None:
    told, model = Told(), torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="t", model=model, every_steps=1, on_event=told) as run:
        for number in range(1, 8):
            with torch.no_grad():
                model.weight.fill_(number)
            run.record()  # returns, though no byte can be written
            assert disk.reached.wait(WAIT_S)
            assert run._background.saves_in_flight <= 2
            assert not run.wait(0)
        assert told.of(Committed) == []
        disk.gate.set()
        assert run.wait()
    assert [event.step for event in told.of(Committed)] == [1, 7]
    assert [event.step for event in told.of(SaveSkipped)] == [2, 3, 4, 5, 6]
    assert {event.reason for event in told.of(SaveSkipped)} == {"another save took its place while the disk was behind"}
    fresh = torch.nn.Linear(1, 1)
    with mementum.open_run(tmp_path, task="t", model=fresh, resume="must") as run:
        assert (run.step, fresh.weight.item()) == (7, 7.0)


def test_a_copy_is_of_the_moment_of_its_save(tmp_path: Path, disk: GatedDisk) -> None:
    """What training does while the bytes are written is not in them."""
    model, values = torch.nn.Linear(1, 1), {"held": [1]}
    with mementum.open_run(tmp_path, task="t", model=model, state={"s": values}, every_steps=2) as run:
        torch.manual_seed(1)
        with torch.no_grad():
            model.weight.fill_(1)
        run.values["seen"] = [1]
        run.save()
        assert disk.reached.wait(WAIT_S)
        with torch.no_grad():
            model.weight.fill_(2)
        values["held"].append(2)
        run.values["seen"].append(2)
        torch.manual_seed(2)
        disk.gate.set()
    fresh, held = torch.nn.Linear(1, 1), {}
    with mementum.open_run(tmp_path, task="t", model=fresh, state={"s": held}, resume="must") as run:
        assert (fresh.weight.item(), held, run.values) == (1.0, {"held": [1]}, {"seen": [1]})
        drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))


def test_no_more_than_three_copies_of_the_state_exist(tmp_path: Path, disk: GatedDisk) -> None:
    def slots() -> list[Path]:
        return list(Path(ram.FOLDER).glob(f"*{ram.key_of(tmp_path.resolve(), 't')}*"))

    model = torch.nn.Linear(1 << 10, 1 << 8)
    with mementum.open_run(tmp_path, task="t", model=model, every_steps=1) as run:
        for _ in range(6):
            run.record()
            assert disk.reached.wait(WAIT_S)
        disk.gate.set()
        for _ in range(3):
            run.record()
            run.wait()
        assert len(slots()) == 3  # reused, and never a fourth
    assert slots() == []


def test_an_error_in_the_body_saves_nothing_more_and_finishes_what_is_in_flight(
    tmp_path: Path, disk: GatedDisk
) -> None:
    told = Told()

    def fail() -> None:
        with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=2, on_event=told) as run:
            run.record()
            run.record()
            assert disk.reached.wait(WAIT_S)
            run.record()
            threading.Timer(0, disk.gate.set).start()
            raise ZeroDivisionError("of the training")

    with pytest.raises(ZeroDivisionError, match="of the training"):
        fail()
    assert [event.step for event in told.of(Committed)] == [2]
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, resume="must") as run:
        assert run.resumed.step == 2


def test_late_metrics_stand_beside_the_checkpoint(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1) as run:
        for loss in (2.0, 1.0):
            run.record(loss=loss)
            run.wait()
        run.metrics(1, accuracy=torch.tensor(0.25), best=numpy.float32(0.5), note="late")
        run.metrics(1, accuracy=0.5)
        run.metrics(77, accuracy=0.1)  # a step that no checkpoint has
        run.metrics(1, accuracy=[1], left="out")  # what is no number is left out and told, as in record
        with pytest.raises(mementum.errors.UsageError, match="a step is a whole number"):
            run.metrics("one", accuracy=1.0)  # type: ignore[arg-type]
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        metrics = {entry.manifest.step: dict(entry.metrics) for entry in run._opened.catalog.entries(run._opened.home)}
    assert metrics == {1: {"loss": 2.0, "accuracy": 0.5, "best": 0.5, "note": "late", "left": "out"}, 2: {"loss": 1.0}}


def test_what_cannot_be_removed_does_not_stop_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sticky(PosixDisk):
        sticks = True

        def unlink(self, path: str) -> None:
            if self.sticks and path.endswith("meta.json"):
                raise PermissionError(13, "Permission denied", path)
            super().unlink(path)

    disk, told = Sticky(), Told()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: disk)
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, every_steps=1, keep_last=1, on_event=told) as run:
        for _ in range(3):
            run.record()
            run.wait()
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]
    assert [event.what for event in told.of(Failed)] == [f"removing {event.id}" for event in told.of(Committed)[:2]]
    disk.sticks = False
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, keep_last=1) as run:
        assert run.step == 3
        run.record()
    assert sorted(path.parent.name for path in tmp_path.rglob("meta.json")) == ["step_0000000004"]


def test_a_catalog_that_cannot_be_asked_what_to_compress_costs_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {"a": 1}}, codec="zstd:1", on_event=told) as run:

        def refuse(home: str) -> None:
            raise StoreError("catalog.db", "the catalog is torn", next_command="mementum rebuild ROOT")

        monkeypatch.setattr(run._background, "_tidy", lambda: None)
        monkeypatch.setattr(run._opened.catalog, "entries", refuse)
        run.save()
        run.wait()
        monkeypatch.undo()
    assert [event.what for event in told.of(Failed)] == ["looking for a checkpoint to compress"]
    assert len(told.of(Committed)) == 1
