"""A plan to go back that is still to be done is done at the next start, and nothing else is resumed from."""

from __future__ import annotations

from pathlib import Path

import pytest

import mementum
from deaths import die, steps_left
from loops import parts
from mementum.catalog import plans
from mementum.catalog.plans import Cancelled, Plan
from mementum.errors import CheckpointDamaged, MementumError, NothingToResume, UsageError
from mementum.events import Note, RolledBack
from mementum.records import Detour, Entry, Reach, Save, Situation
from rollbacks import TASK, Script, Trip, sums, train
from test_rolling import opened
from trips import Told


class InMemory:
    """Every step to memory alone, but for the first three."""

    def decide(self, situation: Situation) -> Save:
        return Save(reason="each step", reach=Reach.REBOOT if situation.step <= 3 else Reach.PROCESS)


def write(root: Path, plan: Plan | Cancelled, id: str) -> None:
    home = opened(root)
    try:
        plans.write(home.store, id, plan)
    finally:
        home.close()


def entry_of(root: Path, step: int) -> Entry:
    home = opened(root)
    try:
        return next(one for one in home.catalog.entries(home.home) if one.manifest.step == step)
    finally:
        home.close()


def trained(root: Path, monkeypatch: pytest.MonkeyPatch, total: int = 8, **wishes: object) -> Trip:
    return train(root, total, Script({}), monkeypatch, **wishes)


def planned(root: Path, monkeypatch: pytest.MonkeyPatch, *, skips: tuple[Detour, ...] = ()) -> Plan:
    """A run that ended at step 8, and a plan by hand to go back to step 4."""
    trained(root, monkeypatch)
    plan = Plan(
        target=entry_of(root, 4).manifest.id,
        step=4,
        number=0,
        skips=skips,
        lr_scale=0.5,
        after_seq=8,
        attempt=2,  # the run's was the first, and that of who has just looked into the catalog the second
        by_hand=True,
        why="asked for by hand",
        time="2026-01-01T00:00:00.000000Z",
    )
    write(root, plan, "r1")
    return plan


def test_a_plan_by_hand_is_done_at_the_next_start_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole", monkeypatch, 12)
    root = tmp_path / "a"
    plan = planned(root, monkeypatch, skips=(Detour(at_step=6, groups=2),))
    trip = trained(root, monkeypatch, 7)
    assert (trip.resumed.checkpoint, trip.resumed.step, trip.lr_scale) == (plan.target, 4, 0.5)
    assert [step for step, _ in trip.steps] == [5, 6, 7]
    taken = list(sums(whole))
    assert list(sums(trip)) == [taken[4], taken[7], taken[8]]
    (told,) = trip.told.of(RolledBack)
    assert (told.step, told.from_step, told.skipped, told.why) == (4, None, 2, "asked for by hand")
    again = trained(root, monkeypatch, 8)
    assert (again.resumed.step, again.told.of(RolledBack), again.lr_scale) == (7, [], 0.5)
    assert list(sums(again)) == [taken[9]]


def test_until_something_is_saved_it_is_still_to_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(tmp_path, monkeypatch)
    for _ in range(2):
        assert trained(tmp_path, monkeypatch, 4).resumed.step == 4
    assert trained(tmp_path, monkeypatch, 5).steps[0][0] == 5
    assert trained(tmp_path, monkeypatch, 5).resumed.step == 5


def test_a_plan_that_was_taken_back_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch)
    write(tmp_path, Cancelled(attempt=plan.attempt, by_hand=True, time="2026-01-01T00:00:01.000000Z"), "r2")
    assert trained(tmp_path, monkeypatch).resumed.step == 8


def test_never_begins_anew_whatever_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(tmp_path, monkeypatch)
    assert trained(tmp_path, monkeypatch, 2, resume="never").steps[0][0] == 1


def refused(root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[MementumError], word: str) -> None:
    for _ in range(2):  # nothing was changed by the first
        with pytest.raises(kind, match=word) as found:
            trained(root, monkeypatch)
        assert f"mementum rollback ROOT {TASK} --to" in str(found.value)
        assert "--cancel" in str(found.value)


def test_a_checkpoint_that_is_gone_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch)
    for file in tmp_path.glob("*/*/step_0000000004/*"):
        file.unlink()
    refused(tmp_path, monkeypatch, NothingToResume, f"{plan.target} of step 4 .* not there any more")


def test_so_is_one_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch)
    (weights,) = tmp_path.glob("*/*/step_0000000004/*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    refused(tmp_path, monkeypatch, CheckpointDamaged, f"{plan.target} is damaged")


def test_a_snapshot_of_the_branch_that_was_left_is_not_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = parts(), Told()
    things = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}
    run = mementum.open_run(tmp_path, task=TASK, data=made.loader, policy=InMemory(), **things)
    for _, _batch in run.steps(made.loader, 6):
        run.record()
        run.wait()
    die(run)
    monkeypatch.setattr("mementum.ram.leftovers", lambda folder, key: ())  # what only looks gives nothing back
    target = entry_of(tmp_path, 2).manifest.id
    plan = Plan(
        target=target, step=2, after_seq=6, attempt=1, why="it has diverged", time="2026-01-01T00:00:00.000000Z"
    )
    write(tmp_path, plan, "r1")
    monkeypatch.undo()
    made = parts()
    things = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}
    with mementum.open_run(tmp_path, task=TASK, data=made.loader, on_event=told, **things) as run:
        assert run.resumed is not None
        assert (run.resumed.checkpoint, run.resumed.tier) == (target, "ssd")
    assert any("a snapshot of step 6 in memory is of the branch that was left" in one.text for one in told.of(Note))


def test_by_hand_what_lies_in_memory_alone_is_not_given_up_in_silence(tmp_path: Path) -> None:
    made = parts()
    things = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}
    run = mementum.open_run(tmp_path, task=TASK, data=made.loader, policy=InMemory(), **things)
    for _, _batch in run.steps(made.loader, 6):
        run.record()
        run.wait()
    die(run)
    for _ in range(2):  # looking has changed nothing
        with pytest.raises(UsageError, match="a snapshot of step 6 is newer than every checkpoint") as found:
            mementum.rollback(tmp_path, TASK, to=2)
        assert f"mementum drain ROOT {TASK}" in str(found.value)
    assert steps_left(tmp_path, TASK)[0] == 6
    assert mementum.rollback(tmp_path, TASK, to=2, force=True).plan.step == 2
