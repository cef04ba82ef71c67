"""A save on a disk that fails: training goes on, what was saved before resumes, and nothing half done stays."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from disks import FullDisk
from mementum.errors import SaveFailed
from mementum.events import Committed, Failed
from mementum.records import Save, Situation
from mementum.storage.disk import PosixDisk
from mementum.testing.faults import FailingDisk
from trips import Told, files


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    made = FullDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: made)
    return made


def train(root: Path, told: Told, model: torch.nn.Module, total: int, **wishes: Any) -> Any:
    return mementum.open_run(root, task="t", model=model, on_event=told, every_steps=1, **wishes)


@pytest.mark.parametrize("full", ["/step_", ".safetensors", "index-", "context-", "meta.json"])
def test_a_full_disk_costs_one_save(tmp_path: Path, disk: FullDisk, full: str) -> None:
    told, model = Told(), torch.nn.Linear(2, 2)
    with train(tmp_path, told, model, 3) as run:
        run.record()
        assert run.wait()
        disk.full = full
        run.record()
        assert run.wait()
        assert not [name for name in files(tmp_path) if "step_0000000002" in name or name.endswith(".tmp")]
        disk.full = ""
        run.record()
    (failed,) = told.of(Failed)
    assert failed.what == "the save of step 2"
    assert "the disk is full" in failed.error
    assert [event.step for event in told.of(Committed)] == [1, 3]
    with train(tmp_path, told, model, 3, resume="must") as run:
        assert run.resumed.step == 3


def test_what_was_saved_before_the_disk_was_full_resumes(tmp_path: Path, disk: FullDisk) -> None:
    told, model = Told(), torch.nn.Linear(2, 2)
    with train(tmp_path, told, model, 3) as run:
        run.record()
        run.wait()
        disk.full = "/step_"
        run.record()
    assert len(told.of(Failed)) == 2  # of the step, and of the last try when the run ended
    with train(tmp_path, told, model, 3, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (2, "ram")  # what no disk has taken stays in memory


def test_every_operation_of_a_save_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the save before is whole, the save after works, and no leftover stays behind."""
    fails = 0
    for fail_at in itertools.count(0, 2):
        root, told, model = tmp_path / str(fail_at), Told(), torch.nn.Linear(1, 1)
        disk = FailingDisk(PosixDisk(), fail_at=1_000_000)
        monkeypatch.setattr("mementum.opening.PosixDisk", lambda disk=disk: disk)
        with train(root, told, model, 3, keep_last=2) as run:
            for _ in range(2):
                run.record()
                run.wait()
            disk._left = fail_at
            run.record()
            run.wait()
            disk.heal()
            broke = disk.failed
            run.record()
        if broke:
            fails += 1
            assert told.of(Failed) or 3 in [event.step for event in told.of(Committed)], fail_at  # a look need not
        left = [name for name in files(root) if name.endswith(".tmp")]
        assert not left, (fail_at, left)
        assert told.of(Committed)[-1].step == 4
        with train(root, told, model, 3, resume="must") as run:
            assert (run.resumed.step, run.resumed.passed_over) == (4, ())
        if not broke:
            break
    assert fails >= 10


def test_raise_is_raised_once_at_the_next_record(tmp_path: Path, disk: FullDisk) -> None:
    told = Told()
    with train(tmp_path, told, torch.nn.Linear(1, 1), 3, on_error="raise") as run:
        disk.full = "/step_"
        run.record()
        assert run.wait()
        disk.full = ""
        with pytest.raises(SaveFailed) as raised:
            run.record()
        assert "the disk is full" in str(raised.value.__cause__)
        assert run.step == 1
        run.record()
        assert run.step == 2
    assert [event.step for event in told.of(Committed)] == [2]


def test_raise_is_raised_at_the_end_at_the_latest(tmp_path: Path, disk: FullDisk) -> None:
    run = train(tmp_path, Told(), torch.nn.Linear(1, 1), 3, on_error="raise")
    disk.full = "/step_"
    run.record()
    with pytest.raises(SaveFailed):
        run.close()
    disk.full = ""
    with train(tmp_path, Told(), torch.nn.Linear(1, 1), 3):  # the task was let go of all the same
        pass


class Spoiled:
    """A policy whose numbers no manifest can hold."""

    def __init__(self, **numbers: Any) -> None:
        self.numbers = numbers

    def decide(self, situation: Situation) -> Save:
        return Save(reason="spoiled", numbers=self.numbers)


def test_a_manifest_that_cannot_be_written_leaves_no_parts(tmp_path: Path) -> None:
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, policy=Spoiled(a=object()), on_event=told) as run:
        run.record()
        run.wait()
        assert not [name for name in files(tmp_path) if "step_" in name]
    assert [event.what for event in told.of(Failed)] == ["the save of step 1"]
    assert [event.reason for event in told.of(Committed)] == ["the run ended"]


def test_facts_that_cannot_be_written_do_not_cost_a_save(tmp_path: Path, disk: FullDisk) -> None:
    told, model = Told(), torch.nn.Linear(1, 1)
    with train(tmp_path, told, model, 3) as run:
        disk.full = "/journal/"
        run.record()
        run.wait()
        run.metrics(1, accuracy=0.5)
        run.record()
        run.wait()
        disk.full = ""
        run.metrics(1, accuracy=0.75)
        run.record()
    assert {event.what for event in told.of(Failed)} == {"a fact (cost)", "a fact (metrics)"}
    assert [event.step for event in told.of(Committed)] == [1, 2, 3]
    with train(tmp_path, told, model, 3) as run:
        entries = {entry.manifest.step: entry for entry in run._opened.catalog.entries(run._opened.home)}
        assert entries[1].metrics == {"accuracy": 0.75}
