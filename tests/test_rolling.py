"""A run that has diverged goes back in its own process: everything, and to the right place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import mementum
from loops import BATCH, Parts, dataset, parts
from mementum.catalog import plans
from mementum.catalog.plans import Plan
from mementum.clock import SystemClock
from mementum.data import ElasticSampler
from mementum.errors import TrainingDiverged
from mementum.events import Note, PassedOver, RolledBack
from mementum.opening import Opened, open_task
from mementum.records import Detour, Diagnosis, Health
from rollbacks import TASK, Script, lost, sums, train
from trips import Told


def opened(root: Path) -> Opened:
    return open_task(root, TASK, about={}, clock=SystemClock(), emit=Told())


def plan_in(root: Path) -> Plan | None:
    home = opened(root)
    try:
        return plans.newest(home.store)
    finally:
        home.close()


def test_all_goes_back_and_the_batches_of_the_trouble_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train(tmp_path / "straight", 12, Script({}), monkeypatch)
    trip = train(tmp_path / "a", 9, Script({8: [lost(6, 7)]}), monkeypatch)
    assert [step for step, _ in trip.steps] == [1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9]
    assert list(sums(trip))[8:] == list(sums(straight))[7:11]
    (told,) = trip.rolled_back
    assert trip.told.of(RolledBack) == [told]
    assert (told.step, told.from_step, told.onset, told.skipped, told.number) == (5, 8, 6, 2, 1)
    assert trip.values == {"at": 9}


def test_a_run_that_went_back_ends_as_one_that_never_saw_those_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(made: Parts) -> Parts:
        taken = list(made.loader)
        made.loader = [*taken[:2], *taken[4:]]
        return made

    def only(made: Parts) -> Parts:
        made.loader = list(made.loader)
        return made

    trip = train(tmp_path / "a", 4, Script({4: [lost(3, 4)]}), monkeypatch, make=lambda: only(parts()))
    spared = train(tmp_path / "b", 4, Script({}), monkeypatch, make=lambda: without(parts()))
    assert trip.state == spared.state


def test_it_goes_further_back_each_time_then_stops_and_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    with pytest.raises(TrainingDiverged, match="2 rollbacks have not ended the trouble, and 2 is the limit") as found:
        train(
            tmp_path,
            20,
            Script({8: [lost(6, 7)] * 3}),
            monkeypatch,
            told=told,
            config={"rollback": {"limit": 2, "lr_scale": 0.5}},
        )
    back = told.of(RolledBack)
    assert [one.step for one in back] == [5, 4]
    assert [one.number for one in back] == [1, 2]
    assert [one.lr_scale for one in back] == [0.5, 0.25]
    error = found.value
    assert (error.kept_step, error.onset, error.step) == (5, 6, 8)
    assert f"mementum rollback ROOT {TASK} --to {error.checkpoint}" in str(error)


def test_the_rates_are_scaled_from_those_that_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def step(made: Parts, batch: object) -> None:
        rates.append(made.optimizer.param_groups[0]["lr"])
        made.optimizer.step()

    script = Script({3: [lost(3, 3)], 4: [lost(4, 4)]})
    trip = train(tmp_path, 5, script, monkeypatch, step=step, config={"rollback": {"lr_scale": 0.5}})
    assert [step for step, _ in trip.steps] == [1, 2, 3, 3, 4, 2, 3, 4, 5]
    whole = rates[0]
    assert rates == pytest.approx([whole] * 3 + [whole / 2] * 2 + [whole / 4] * 4)
    assert trip.lr_scale == 0.25
    again = train(tmp_path, 6, Script({}), monkeypatch, step=step)
    assert (again.lr_scale, rates[-1]) == (0.25, pytest.approx(whole / 4))


def test_a_program_that_sets_its_rate_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(made: Parts, batch: object) -> None:
        made.optimizer.param_groups[0]["lr"] = 0.01
        made.optimizer.step()

    trip = train(tmp_path, 6, Script({3: [lost(3, 3)]}), monkeypatch, step=step, config={"rollback": {"lr_scale": 0.5}})
    notes = [note.text for note in trip.told.of(Note) if "run.lr_scale" in note.text]
    assert len(notes) == 1
    assert "0.005" in notes[0]


def test_the_plan_is_durable_and_what_lies_behind_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trip = train(tmp_path, 9, Script({8: [lost(6, 7)]}), monkeypatch)
    home = opened(tmp_path)
    try:
        plan = plans.newest(home.store)
        assert plan is not None
        entries = home.catalog.entries(home.home)
    finally:
        home.close()
    assert (plan.target, plan.step, plan.skips) == (trip.rolled_back[0].checkpoint, 5, (Detour(at_step=6, groups=2),))
    assert (plan.from_step, plan.onset, plan.seen, plan.attempt, plan.by_hand) == (8, 6, 7, 1, False)
    marked = [entry.manifest.step for entry in entries if entry.judged is Health.SUSPECT]
    assert marked == [6, 7]
    by_step = [(entry.manifest.step, entry.manifest.parent) for entry in entries if entry.manifest.seq > plan.after_seq]
    assert by_step[0] == (6, plan.target)
    assert not plans.is_pending(plan, ((entry.manifest.seq, entry.manifest.attempt) for entry in entries))


def test_a_skip_goes_over_the_end_of_an_epoch_and_takes_whole_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train(tmp_path / "straight", 10, Script({}), monkeypatch, accumulate=4)
    trip = train(tmp_path / "a", 5, Script({4: [lost(2, 4)]}), monkeypatch, accumulate=4)
    assert [step for step, _ in trip.steps] == [1, 2, 3, 4, 2, 3, 4, 5]
    assert list(sums(trip))[4:] == list(sums(straight))[4:8]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking(Script):
        def at(self, step: int) -> None:
            super().at(step)
            if step == 8 and self.now != Diagnosis():
                (weights,) = tmp_path.glob("*/*/step_0000000005/*.safetensors")
                weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")

    trip = train(tmp_path, 9, Breaking({8: [lost(6, 7)]}), monkeypatch)
    assert trip.rolled_back[0].step == 4
    assert len(trip.told.of(PassedOver)) == 1


def test_without_any_that_can_be_put_back_all_is_as_it_was_and_no_plan_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(made: Parts, batch: object) -> None:
        seen.append(made.model[0].weight.detach().clone())
        with torch.no_grad():
            made.model[0].weight += 1

    def refuse(self: object, state: object) -> None:
        raise ValueError("no")

    made, seen = parts(), list[torch.Tensor]()
    monkeypatch.setattr(type(made.scheduler), "load_state_dict", refuse)
    with pytest.raises(TrainingDiverged, match=r"checkpoints could be put back: step \d: (?s:.)* refused"):
        train(tmp_path, 9, Script({3: [lost(3, 3)]}), monkeypatch, step=step, make=lambda: made)
    assert torch.equal(made.model[0].weight, seen[-1] + 1)
    assert plan_in(tmp_path) is None


def test_stop_raises_with_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingDiverged, match="from step 4 on, and was stopped at step 5: the test says so") as found:
        train(tmp_path, 9, Script({5: [lost(4, 5)]}), monkeypatch, config={"on_divergence": "stop"})
    assert found.value.kept_step == 3
    assert plan_in(tmp_path) is None


@pytest.mark.parametrize("what", ["keep", "ignore"])
def test_else_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    trip = train(tmp_path, 6, Script({5: [lost(4, 5)]}), monkeypatch, config={"on_divergence": what})
    assert [step for step, _ in trip.steps] == [1, 2, 3, 4, 5, 6]


def test_a_loop_of_ones_own_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = parts(), Told()
    script = Script({2: [lost(2, 2)]})
    monkeypatch.setattr("mementum.deciding.Deciding.diagnosis", property(lambda self: script.now))
    wishes = {"every_steps": 1, "on_event": told, "config": {"on_divergence": "rollback"}}
    with mementum.open_run(tmp_path, task=TASK, model=made.model, optimizer=made.optimizer, **wishes) as run:
        run.record()
        script.at(2)
        with pytest.raises(TrainingDiverged):
            run.record()
    assert sum("the loop is the program's own" in note.text for note in told.of(Note)) == 1


def test_workers_that_stay_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Parts:
        made, data = parts(), dataset()
        sampler = ElasticSampler(data, seed=0)
        made.loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
        return made

    straight = train(tmp_path / "straight", 10, Script({}), monkeypatch, make=make)
    trip = train(tmp_path / "a", 8, Script({8: [lost(7, 8)]}), monkeypatch, make=make)
    assert [step for step, _ in trip.steps] == [*range(1, 9), 7, 8]
    assert list(sums(trip))[8:] == list(sums(straight))[8:10]
