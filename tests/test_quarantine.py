"""A run in trouble: what it saved from the onset on is marked, and the newest state from before stays, on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from disks import WAIT_S, GatedDisk
from mementum import ram
from mementum.errors import StoreError
from mementum.events import Committed, Diagnosed, Failed, Kept, Note, Removed, SnapshotKept
from mementum.execute.leftovers import leftovers
from mementum.execute.snapshot import Snapshot
from mementum.records import Health, Reach, Save
from troubles import RECORD, TROUBLE, entries, facts, health, jumps, loss_of, no_number, recovers, train


@pytest.fixture(autouse=True)
def no_slots_stay(tmp_path: Path) -> Iterator[None]:
    yield
    for left in leftovers(ram.FOLDER, ram.key_of(tmp_path.resolve(), "t")):
        left.remove()


def weight(root: Path, **wishes: Any) -> float:
    """What the next start comes back with."""
    model = torch.nn.Linear(1, 1, bias=False)
    mementum.open_run(root, task="t", model=model, resume="must", **wishes).close(why="looked")
    return float(model.weight.item())


def test_the_newest_snapshot_from_before_the_onset_is_kept(tmp_path: Path) -> None:
    told = train(tmp_path, jumps, TROUBLE + 5)
    (diagnosed,) = told.of(Diagnosed)
    onset = diagnosed.diagnosis.onset
    assert TROUBLE - 20 <= onset < TROUBLE
    assert (diagnosed.step, diagnosed.diagnosis.health) == (TROUBLE, Health.SUSPECT)
    (kept,) = told.of(Kept)
    assert kept.step == max(event.step for event in told.of(SnapshotKept) if event.step < onset)
    assert kept.step > 140  # the newest that a disk had
    assert (kept.onset, kept.reason) == (
        onset,
        f"the newest state before step {onset}, where {diagnosed.diagnosis.why}",
    )
    entry = entries(tmp_path)[kept.step]
    assert entry.manifest.id == kept.id
    assert entry.manifest.reason == f"kept: {kept.reason}"
    assert (entry.health, entry.pinned) == (Health.CLEAN, f"{kept.reason} (flight recorder)")


def test_what_is_told_comes_in_order(tmp_path: Path) -> None:
    told = train(tmp_path, jumps, TROUBLE + 5)
    wanted = facts(tmp_path, "diagnosis", "health", "pin")
    assert wanted[0]["kind"] == "diagnosis"
    assert wanted[-1]["kind"] == "pin"
    assert wanted[0]["values"]["onset"] == told.of(Diagnosed)[0].diagnosis.onset
    assert (wanted[0]["step"], wanted[0]["values"]["health"]) == (TROUBLE, "suspect")
    assert wanted[-1]["values"]["by"] == "flight recorder"


def test_saves_in_trouble_are_marked_and_a_start_passes_them_by(tmp_path: Path) -> None:
    told = train(tmp_path, no_number, TROUBLE + 100)
    (kept,) = told.of(Kept)
    found = health(tmp_path)
    onset = told.of(Diagnosed)[0].diagnosis.onset
    assert set(found) == {70, 140, kept.step, 210, 280}
    assert {step: what for step, what in found.items() if step >= onset} == dict.fromkeys((210, 280), Health.DIVERGED)
    assert {entry.manifest.health for step, entry in entries(tmp_path).items() if step >= onset} == {Health.DIVERGED}
    assert weight(tmp_path) == kept.step


def test_when_it_is_over_saves_of_the_calm_stretch_are_clean_again(tmp_path: Path) -> None:
    def save(run: mementum.Run, step: int) -> None:
        if step in (TROUBLE + 3, TROUBLE + 40):
            run.save()
        run.wait()

    told = train(tmp_path, recovers, TROUBLE + 120, each=save)
    suspect, clean = told.of(Diagnosed)
    assert (suspect.diagnosis.health, clean.diagnosis.health) == (Health.SUSPECT, Health.CLEAN)
    assert TROUBLE + 40 < clean.step < TROUBLE + 100
    found = health(tmp_path)
    assert found[TROUBLE + 3] is Health.SUSPECT
    assert found[TROUBLE + 40] is Health.CLEAN
    assert entries(tmp_path)[TROUBLE + 40].manifest.health is Health.SUSPECT
    assert [step for step, what in found.items() if what is not Health.CLEAN and step > TROUBLE + 40] == []
    assert found[TROUBLE + 110] is Health.CLEAN


def test_no_snapshots_are_taken_while_in_trouble_and_again_when_it_is_over(tmp_path: Path) -> None:
    told = train(tmp_path, recovers, TROUBLE + 120)
    suspect, clean = told.of(Diagnosed)
    taken = [event.step for event in told.of(SnapshotKept)]
    assert [step for step in taken if suspect.step <= step < clean.step] == []
    assert max(taken) > clean.step
    assert max(step for step in taken if step < suspect.step) > TROUBLE - RECORD - 1


def test_retention_leaves_what_is_pinned(tmp_path: Path) -> None:
    told = train(tmp_path, recovers, TROUBLE + 400, keep_last=1, config={"keep_spread": 0})
    (kept,) = told.of(Kept)
    assert len(told.of(Removed)) >= 5
    assert kept.step in entries(tmp_path)
    assert kept.step < TROUBLE


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedDisk]:
    made = GatedDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: made)
    yield made
    made.gate.set()


def test_a_save_that_is_on_its_way_is_marked_too(tmp_path: Path, disk: GatedDisk) -> None:
    """It was begun when nothing was known, and ends when all is."""

    def save(run: mementum.Run, step: int) -> None:
        if step == TROUBLE - 1:
            run.save()
            assert disk.reached.wait(WAIT_S)
        if step == TROUBLE + 3:
            disk.gate.set()
        if step < TROUBLE - 1 or step > TROUBLE + 3:
            run.wait()

    told = train(tmp_path, jumps, TROUBLE + 5, each=save, config={"policy": [{"steps": 10_000}]})
    assert told.of(Diagnosed)[0].diagnosis.onset <= TROUBLE - 1
    found = health(tmp_path)
    assert found[TROUBLE - 1] is Health.SUSPECT
    assert [step for step, what in found.items() if what is Health.CLEAN] == [told.of(Kept)[0].step]


def test_the_slot_of_what_is_kept_is_no_others_until_the_disk_has_it(tmp_path: Path, disk: GatedDisk) -> None:
    def save(run: mementum.Run, step: int) -> None:
        if TROUBLE < step < TROUBLE + 30:  # each of them wants memory
            run.save()
        if step == TROUBLE + 30:
            disk.gate.set()
        if step > TROUBLE + 30:
            run.wait()

    told = train(tmp_path, jumps, TROUBLE + 35, each=save, config={"policy": [{"steps": 10_000}]})
    (kept,) = told.of(Kept)
    assert told.of(Failed) == []
    assert next(event.step for event in told.of(Committed)) == kept.step
    assert weight(tmp_path) == kept.step
    assert kept.step < TROUBLE


def test_a_disk_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mementum import landing

    tries: list[int] = []
    save_checkpoint = landing.save_checkpoint

    def refusing(snapshot: Snapshot, **named: Any) -> Any:
        if snapshot.save.cause == "kept":
            tries.append(snapshot.step)
            if len(tries) < 3:
                raise StoreError("disk", "no space left")
        return save_checkpoint(snapshot, **named)

    monkeypatch.setattr(landing, "save_checkpoint", refusing)
    told = train(tmp_path, jumps, TROUBLE + 80)
    (kept,) = told.of(Kept)
    assert tries == [kept.step] * 3
    assert len(told.of(Failed)) == 2
    assert weight(tmp_path) == kept.step


def test_a_disk_that_always_refuses_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mementum import landing

    save_checkpoint = landing.save_checkpoint

    def refusing(snapshot: Snapshot, **named: Any) -> Any:
        if snapshot.save.cause == "kept":
            raise StoreError("disk", "no space left")
        return save_checkpoint(snapshot, **named)

    monkeypatch.setattr(landing, "save_checkpoint", refusing)
    told = train(tmp_path, jumps, TROUBLE + 300)
    (kept,) = told.of(Kept)
    assert kept.step == 140
    assert entries(tmp_path)[140].pinned == f"{kept.reason} (flight recorder)"


def test_what_an_earlier_attempt_saved_from_the_onset_on_is_marked_too(tmp_path: Path) -> None:
    """It was killed before it noticed; the next one sees the same, since what was seen is in the checkpoint."""

    def save(run: mementum.Run, step: int) -> None:
        if step == TROUBLE - 1:
            run.save()
        run.wait()

    train(tmp_path, jumps, TROUBLE - 1, each=save, slots=0)
    assert health(tmp_path)[TROUBLE - 1] is Health.CLEAN
    told = train(tmp_path, jumps, TROUBLE + 5, slots=0)
    assert told.of(Diagnosed)[0].diagnosis.onset <= TROUBLE - 1
    found = health(tmp_path)
    assert found[TROUBLE - 1] is Health.SUSPECT
    assert found[140] is Health.CLEAN
    assert entries(tmp_path)[140].pinned == f"{told.of(Kept)[0].reason} (flight recorder)"


def test_where_it_is_ignored_nothing_is_marked(tmp_path: Path) -> None:
    told = train(tmp_path, no_number, TROUBLE + 100, config={"on_divergence": "ignore"})
    assert told.of(Diagnosed) == told.of(Kept) == told.of(SnapshotKept) == []
    assert facts(tmp_path, "diagnosis", "health", "pin") == []


def test_who_only_observes_is_told_and_marks_nothing(tmp_path: Path) -> None:
    train(tmp_path, loss_of, 150, slots=0)
    told = train(tmp_path, jumps, TROUBLE + 5, config={"observe": True})
    assert [event.diagnosis.health for event in told.of(Diagnosed)] == [Health.SUSPECT]
    assert told.of(Kept) == []
    assert len(facts(tmp_path, "diagnosis")) == 1
    assert facts(tmp_path, "health", "pin") == []


def test_where_nothing_is_left_from_before_that_is_said_once(tmp_path: Path) -> None:
    told = train(tmp_path, no_number, TROUBLE + 20, config={"policy": [{"steps": 10_000}]}, slots=0)
    onset = told.of(Diagnosed)[0].diagnosis.onset
    text = f"no clean state from before step {onset} is left in memory or on the disk"
    assert [event.text for event in told.of(Note)].count(text) == 1


def test_a_better_metric_of_a_state_in_doubt_is_not_the_best(tmp_path: Path) -> None:
    seen: list[Any] = []

    def evaluate(run: mementum.Run, step: int) -> None:
        if step % 10 == 0:
            run.metrics(step, eval_loss=1000.0 - step)
        run.wait()

    class Best:
        def decide(self, situation: Any) -> Save | None:
            seen.append((situation.step, situation.best.get("eval_loss")))
            return Save(reason="now", reach=Reach.REBOOT) if situation.step == 10 else None

    train(tmp_path, jumps, TROUBLE + 30, each=evaluate, policy=Best())
    best = dict(seen)
    onset = facts(tmp_path, "diagnosis")[0]["values"]["onset"]
    assert best[TROUBLE - 1] == 1000.0 - (TROUBLE - 10)
    last = (onset - 2) // 10 * 10  # what was told after that step counted at the next one
    assert best[TROUBLE + 30] == 1000.0 - last
