"""Going back where something stands in the way: what is a state of this run, what cannot be had, what must stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import mementum
from loops import BATCH, Parts, dataset, parts
from mementum import run as runs
from mementum.catalog import facts, plans
from mementum.catalog.sql import SqlCatalog
from mementum.errors import StoreError, TrainingDiverged
from mementum.events import Note, RolledBack
from mementum.execute.attempts import key_of
from mementum.records import Diagnosis, Entry, Fact, Health, Reach, Save, Situation
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from rollbacks import TASK, Script, lost, plain_step, sums, train
from test_rolling import opened, plan_in
from trips import Told


def entries(root: Path) -> Sequence[Entry]:
    home = opened(root)
    try:
        return home.catalog.entries(home.home)
    finally:
        home.close()


def health(root: Path) -> list[tuple[int, Health]]:
    return [(one.manifest.step, one.health) for one in entries(root)]


class Twice:
    """To the disk at steps 4 and 12, to memory at step 8."""

    def decide(self, situation: Situation) -> Save | None:
        if situation.step == 8:
            return Save(reason="recorded", reach=Reach.PROCESS, cause="recorder")
        return Save(reason="interval", reach=Reach.REBOOT) if situation.step in (4, 12) else None


@pytest.mark.parametrize("wish", ["rollback", "stop"])
def test_what_was_kept_from_memory_counts_though_nothing_comes_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    def look(self: object, vitals: Any, signs: object) -> Diagnosis:
        if not 13 <= vitals.step <= 15 or vitals.step in seen:
            return Diagnosis()
        seen.add(vitals.step)
        health = Health.DIVERGED if vitals.step == 15 else Health.SUSPECT
        return Diagnosis(health=health, onset=10, seen=13, why="the test says so", hold=20, episode=1)

    monkeypatch.setattr("mementum.perceive.health.Judge.look", look)
    made, seen, told = parts(), set[int](), Told()
    things: dict[str, Any] = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}
    stopped: TrainingDiverged | None = None
    run = mementum.open_run(
        tmp_path, task=TASK, data=made.loader, policy=Twice(), on_event=told, config={"on_divergence": wish}, **things
    )
    try:
        for _, batch in run.steps(made.loader, 16):
            plain_step(made, batch)
            run.record(loss=1.0)
            run.wait()
    except TrainingDiverged as error:
        stopped = error
    run.close(why="left")
    by_step = {one.manifest.step: one for one in entries(tmp_path) if one.manifest.seq <= 3}
    assert by_step[8].manifest.parent == by_step[12].manifest.parent == by_step[4].manifest.id
    if wish == "stop":
        assert stopped is not None
        assert stopped.kept_step == 8
    else:
        assert [one.step for one in run.rolled_back] == [8]
        plan = plan_in(tmp_path)
        assert plan is not None
        assert plan.behind == (by_step[12].manifest.id,)


def test_what_was_not_gone_back_behind_stays_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, state: object) -> None:
        raise ValueError("no")

    made = parts()
    with monkeypatch.context() as patched:
        patched.setattr(type(made.scheduler), "load_state_dict", refuse)
        with pytest.raises(TrainingDiverged, match="could be put back: step 4: ") as found:
            train(tmp_path, 9, Script({5: [lost(5, 5)]}), patched, make=lambda: made)
    assert (found.value.kept_step, plan_in(tmp_path)) == (4, None)
    assert health(tmp_path) == [(step, Health.CLEAN) for step in range(1, 5)]


def test_without_memory_no_other_one_is_tried_and_the_next_start_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, state: object) -> None:
        tries.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    tries: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "load_state_dict", refuse)
        with pytest.raises(TrainingDiverged, match="no memory to put step 2 back: the next start does") as found:
            train(tmp_path, 9, Script({5: [lost(3, 5)]}), patched)
    assert (found.value.kept_step, len(tries)) == (2, 1)
    assert health(tmp_path) == [(step, Health.CLEAN) for step in range(1, 5)]
    trip = train(tmp_path, 3, Script({}), monkeypatch)
    assert (trip.resumed.step, [step for step, _ in trip.steps]) == (2, [3])
    marked = [(3, Health.SUSPECT), (4, Health.SUSPECT)]
    assert health(tmp_path) == [(1, Health.CLEAN), (2, Health.CLEAN), *marked, (3, Health.CLEAN)]


def test_from_the_same_place_it_goes_on_as_it_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"rollback": {"lr_scale": 0.5}}
    first = train(tmp_path, 20, Script({8: [lost(6, 7)]}), monkeypatch, stop=10, config=config)
    home = opened(tmp_path)
    try:
        for one in home.catalog.entries(home.home):
            if one.manifest.step > 5:  # what has come of it is in doubt
                mark(home.store, one)
    finally:
        home.close()
    again = train(tmp_path, 8, Script({}), monkeypatch, config=config)
    assert (again.resumed.step, again.lr_scale) == (5, 0.5)
    assert list(sums(again))[:2] == list(sums(first))[8:10]
    assert [one.number for one in again.told.of(RolledBack)] == [1]


def mark(store: LocalStore, entry: Entry) -> None:
    values = {"health": "suspect", "why": "a second trouble"}
    id, step = entry.manifest.id, entry.manifest.step
    fact = Fact(kind="health", time="2999-01-01T00:00:00.000000Z", checkpoint=id, step=step, values=values)
    store.put(f"facts/{id}.json", [facts.render(fact)])


def test_gradients_of_the_wreck_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def step(made: Parts, batch: Any) -> None:
        seen.append(all(parameter.grad is None for parameter in made.model.parameters()))
        made.model(batch[0]).mean().backward()

    train(tmp_path, 4, Script({3: [lost(3, 3)]}), monkeypatch, step=step)
    assert seen == [True, False, False, True, False]


def test_what_a_checkpoint_lacks_would_be_the_wrecks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, 3, Script({}), monkeypatch)
    head = torch.nn.Linear(1, 1)
    wishes: dict[str, Any] = {"state": {"head": head}, "fit": "partial"}
    with pytest.raises(TrainingDiverged, match="head is given and was not stored"):
        train(tmp_path, 6, Script({4: [lost(4, 4)]}), monkeypatch, **wishes)
    # What it holds besides is no hindrance.
    trip = train(tmp_path, 6, Script({5: [lost(5, 5)]}), monkeypatch, fit="partial", scheduler=None)
    assert [one.step for one in trip.rolled_back] == [4]


def test_a_detour_over_the_end_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(script: Script, epochs: int) -> list[tuple[int, float]]:
        monkeypatch.setattr("mementum.deciding.Deciding.diagnosis", property(lambda self: script.now))
        made, out = parts(), list[tuple[int, float]]()
        made.loader = list(made.loader)
        things: dict[str, Any] = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler}
        config = {"on_divergence": "rollback"}
        with mementum.open_run(
            tmp_path, task=TASK, data=made.loader, every_steps=4, keep_last=None, config=config, **things
        ) as run:
            for number, batch in run.steps(made.loader, epochs=epochs):
                out.append((number, float(batch[0].double().sum())))
                run.record()
                script.at(number)
                run.wait()
        return out

    first = run(Script({6: [lost(6, 6)]}), 1)
    assert [number for number, _ in first] == [1, 2, 3, 4, 5, 6, 5]
    again = run(Script({}), 2)
    assert [number for number, _ in again] == [6, 7, 8, 9, 10, 11]
    assert [one for _, one in again] == [one for _, one in first[:6]]


def test_data_that_cannot_tell_its_place_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Parts:
        made = parts()
        made.loader = DataLoader(dataset(), batch_size=BATCH)
        return made

    trip = train(tmp_path, 6, Script({4: [lost(3, 4)]}), monkeypatch, make=make)
    assert [one.skipped for one in trip.rolled_back] == [0]
    assert list(sums(trip))[4:] == list(sums(trip))[:4]  # the epoch begins again
    assert sum("no batches are left out" in note.text for note in trip.told.of(Note)) == 1
    mementum.rollback(tmp_path, TASK, to=2, skip_batches=range(3, 5))
    start = train(tmp_path, 4, Script({}), monkeypatch, make=make)
    assert [one.skipped for one in start.told.of(RolledBack)] == [0]
    assert list(sums(start)) == list(sums(trip))[:2]


def test_a_plan_by_hand_outlives_the_rollbacks_of_the_process_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ByHand(Script):
        def at(self, step: int) -> None:
            super().at(step)
            if step == 5 and not planned:
                planned.append(mementum.rollback(tmp_path, TASK, to=2, lr_scale=0.1))

    planned: list[Any] = []
    train(tmp_path, 9, ByHand({8: [lost(7, 8)]}), monkeypatch)
    trip = train(tmp_path, 3, Script({}), monkeypatch)
    assert (trip.resumed.step, trip.lr_scale) == (2, 0.1)


def test_the_programs_own_rates_are_not_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(made: Parts, batch: object) -> None:
        rates.append(made.optimizer.param_groups[0]["lr"])
        made.optimizer.step()

    rates: list[float] = []
    config = {"rollback": {"lr_scale": 0.1}}
    train(tmp_path, 6, Script({3: [lost(3, 3)]}), monkeypatch, step=step, config=config)
    trip = train(tmp_path, 7, Script({}), monkeypatch, step=step, config=config, lr_wins="new")
    assert (rates[-1], trip.lr_scale) == (rates[0], 1.0)


def test_a_locked_catalog_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Locking(Script):
        def at(self, step: int) -> None:
            super().at(step)
            if self.now != Diagnosis():
                monkeypatch.setattr(SqlCatalog, "entries", refuse)

    def refuse(self: SqlCatalog, home: str) -> Sequence[Entry]:
        if self._engine.url.database:
            raise StoreError("catalog", "the catalog cannot be used: database is locked")
        return whole(self, home)

    whole = SqlCatalog.entries
    trip = train(tmp_path, 6, Locking({5: [lost(4, 5)]}), monkeypatch)
    assert [one.step for one in trip.rolled_back] == [3]


def full(store: object, id: str, plan: object) -> None:
    raise StoreError("facts/x", "no space left on device")


def unreadable(opened: object, *, emit: object) -> None:
    raise StoreError("step_", "input/output error")


@pytest.mark.parametrize(
    ("what", "fault", "word", "kept", "kept_step"),
    [
        ("mementum.catalog.plans.write", full, "could not be written down: no space left", "of step 3, from before", 3),
        ("mementum.rolling.entries_of", unreadable, "cannot be read: input", "none of which can be read now", None),
    ],
)
def test_a_disk_that_refuses_ends_it_and_what_is_kept_is_true(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    fault: object,
    word: str,
    kept: str,
    kept_step: int | None,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(what, fault)
        with pytest.raises(TrainingDiverged, match=word) as found:
            train(tmp_path, 6, Script({5: [lost(4, 5)]}), patched)
    assert kept in str(found.value)
    assert found.value.kept_step == kept_step
    assert plan_in(tmp_path) is None


class Interfering(Script):
    """Does something when the run has diverged."""

    def __init__(self, work: Any) -> None:
        super().__init__({5: [lost(4, 5)]})
        self._work = work

    def at(self, step: int) -> None:
        super().at(step)
        if self.now != Diagnosis():
            self._work()


def test_who_was_superseded_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def supersede() -> None:
        (home,) = tmp_path.glob(f"*/{TASK}_*")
        (home / key_of(2)).parent.mkdir(exist_ok=True)
        (home / key_of(2)).write_text("{}")

    monkeypatch.setattr("mementum.execute.claim.STAYS_S", 0.0)
    with pytest.raises(TrainingDiverged, match="was superseded by attempt 2"):
        train(tmp_path, 6, Interfering(supersede), monkeypatch)
    (home,) = tmp_path.glob(f"*/{TASK}_*")
    assert plans.newest(opened_store(home)) is None


def opened_store(home: Path) -> LocalStore:
    return LocalStore(PosixDisk(), str(home))


def test_nothing_goes_back_over_saves_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = runs.Run.wait
    script = Interfering(lambda: None)
    monkeypatch.setattr(runs.Run, "wait", lambda self, timeout_s=1.0: wait(self) and script.now == Diagnosis())
    with pytest.raises(TrainingDiverged, match="saves have not ended"):
        train(tmp_path, 6, script, monkeypatch)
    assert plan_in(tmp_path) is None


def test_a_save_of_the_wreck_that_is_to_be_made_again_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(Script):
        def at(self, step: int) -> None:
            super().at(step)
            if self.now != Diagnosis():
                run = running[-1]
                run._background._torn_save = Save(reason="of the wreck", cause="asked")

    running: list[mementum.Run] = []
    begin = runs.Run.__init__
    monkeypatch.setattr(runs.Run, "__init__", lambda self, **given: (begin(self, **given), running.append(self))[1])
    train(tmp_path, 7, Torn({5: [lost(4, 5)]}), monkeypatch)
    assert "of the wreck" not in {one.manifest.reason for one in entries(tmp_path)}
