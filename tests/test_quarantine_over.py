"""What is left of a trouble that is over: memory of it, pins, and facts that no disk took while it lasted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from disks import FullDisk
from loops import parts
from mementum import ram
from mementum.branching import cancel_rollback
from mementum.decide.quarantine import PINS_KEPT
from mementum.events import Diagnosed, Failed, Removed, RolledBack
from mementum.execute.leftovers import leftovers
from mementum.perceive.health import STATE_VERSION, Judge, over
from mementum.records import Diagnosis, Health
from trips import Told
from troubles import TROUBLE, entries, facts, health, jumps, loss_of, recovers, train


@pytest.fixture(autouse=True)
def no_slots_stay(tmp_path: Path) -> Iterator[None]:
    yield
    for left in leftovers(ram.FOLDER, ram.key_of(tmp_path.resolve(), "t")):
        left.remove()


def no_number_once(step: int) -> float:
    return math.nan if step == TROUBLE else loss_of(step)


def save_at(*steps: int) -> Any:
    def save(run: mementum.Run, step: int) -> None:
        if step in steps:
            run.save()
        run.wait()

    return save


def test_a_start_from_the_calm_stretch_of_a_trouble_that_is_over_knows_of_none(tmp_path: Path) -> None:
    """When it was saved the trouble was still held; then it was found clean."""
    told = train(tmp_path, no_number_once, TROUBLE + 60, each=save_at(TROUBLE + 20), slots=0)
    assert [event.diagnosis.health for event in told.of(Diagnosed)] == [Health.DIVERGED, Health.CLEAN]
    found = entries(tmp_path)[TROUBLE + 20]
    assert (found.manifest.health, found.health, max(entries(tmp_path))) == (
        Health.DIVERGED,
        Health.CLEAN,
        TROUBLE + 20,
    )
    told = train(tmp_path, loss_of, TROUBLE + 90, slots=0)
    assert told.of(Diagnosed) == []
    assert {step: what for step, what in health(tmp_path).items() if step >= TROUBLE} == {
        210: Health.CLEAN,
        TROUBLE + 20: Health.CLEAN,
        290: Health.CLEAN,
    }


def test_a_start_in_a_trouble_that_is_still_held_goes_on_with_it(tmp_path: Path) -> None:
    rarely = {"policy": [{"steps": 10_000}]}
    train(tmp_path, no_number_once, TROUBLE + 20, each=save_at(TROUBLE + 20), slots=0, config=rarely)
    assert health(tmp_path) == {TROUBLE + 20: Health.DIVERGED}
    told = train(tmp_path, loss_of, TROUBLE + 21, slots=0)
    assert [event.diagnosis.health for event in told.of(Diagnosed)] == [Health.DIVERGED]


def test_a_run_that_goes_back_into_the_calm_stretch_of_an_older_trouble_knows_of_none(tmp_path: Path) -> None:
    told, again = Told(), TROUBLE + 75
    data = [torch.ones(1, 1)] * (TROUBLE + 90)
    settings = {
        "on_divergence": "rollback",
        "health": {"hold": 30, "confirm": 40},
        "policy": [{"steps": 10_000}],
    }
    with mementum.open_run(
        tmp_path, task="t", model=torch.nn.Linear(1, 1), data=data, config=settings, slots=0, on_event=told
    ) as run:
        for step, _ in run.steps(data, TROUBLE + 85):
            bad = step == again and not run.rolled_back
            run.record(loss=math.nan if bad else recovers(step))
            if step == TROUBLE + 40:
                run.save()
    suspect, clean, diverged = told.of(Diagnosed)
    assert suspect.step < TROUBLE + 40 < clean.step < diverged.step == again
    assert [one.step for one in told.of(RolledBack)] == [TROUBLE + 40]


def test_what_a_judge_remembers_of_a_trouble_that_is_over() -> None:
    told = ["diverged", 47, 50, "the loss is not finite", 80, 3]
    state = {"version": STATE_VERSION, "told": told, "before": [1.0, 0.1], "since": [60, 60, None], "bits": [1, 2]}
    assert over(state) == {
        "version": STATE_VERSION,
        "told": ["clean", None, None, "", 0, 3],
        "before": [None, None],
        "since": [None, None, None],
        "bits": [1, 2],
    }
    another = {**state, "version": STATE_VERSION + 1}
    assert over(another) == another


def judged_at(monkeypatch: pytest.MonkeyPatch, troubles: dict[int, Diagnosis], *, lasts: int = 1) -> None:
    """A judge who says what the test wants, once at each of these steps and for as many after it, and clean else."""
    said: set[int] = set()

    def look(self: Judge, vitals: Any, signs: Any) -> Diagnosis:
        for step, diagnosis in troubles.items():
            if step <= vitals.step < step + lasts and vitals.step not in said:
                said.add(vitals.step)
                return diagnosis
        return Diagnosis(hold=3, calm=3)

    monkeypatch.setattr(Judge, "look", look)


def trouble(step: int, episode: int, health: Health = Health.DIVERGED) -> Diagnosis:
    return Diagnosis(health=health, onset=step - 1, seen=step, why="a test says so", hold=3, episode=episode)


def test_a_rollback_gives_up_the_pins_of_older_troubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (8, 16, 24, 32)
    judged_at(monkeypatch, {step: trouble(step, number + 1) for number, step in enumerate(steps)})
    told, made = Told(), parts()
    with mementum.open_run(
        tmp_path,
        task="t",
        model=made.model,
        data=made.loader,
        every_steps=3,
        keep_last=2,
        slots=0,
        on_event=told,
        config={"on_divergence": "rollback", "keep_spread": 0},
    ) as run:
        for _ in run.steps(made.loader, 40):
            run.record()
            run.wait()
    assert [one.step for one in told.of(RolledBack)] == [6, 12, 21, 30]
    pinned = [step for step, entry in entries(tmp_path).items() if entry.pinned is not None]
    assert pinned == [21, 30]
    assert len(pinned) == PINS_KEPT
    assert sorted(entries(tmp_path)) == [21, 30, 39, 40]


def test_a_rollback_further_back_gives_up_the_pin_of_what_was_not_from_before_the_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_at(monkeypatch, {8: trouble(8, 1)}, lasts=2)
    made = parts()
    with mementum.open_run(
        tmp_path,
        task="t",
        model=made.model,
        data=made.loader,
        every_steps=3,
        keep_last=None,
        slots=0,
        config={"on_divergence": "rollback"},
    ) as run:
        for step, _ in run.steps(made.loader, 12):
            if len(run.rolled_back) == 1 and step == 7:
                judged_at(monkeypatch, {7: replace(trouble(7, 2), onset=6)})
            run.record()
            run.wait()
        assert [one.step for one in run.rolled_back] == [6, 3]
    told = facts(tmp_path, "pin", "unpin")
    ids = {entry.manifest.id: step for step, entry in entries(tmp_path).items() if entry.pinned is not None}
    assert [*ids.values()] == [3]
    assert [one["kind"] for one in told].count("unpin") == 1


def test_neither_takes_away_what_the_other_has_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback by hand to what the flight recorder has kept, which then gives up its own pins."""
    steps = (8, 16, 24, 32)
    judged_at(
        monkeypatch, {step: trouble(step, number + 1, Health.SUSPECT) for number, step in enumerate(steps)}, lasts=2
    )
    made = parts()
    with mementum.open_run(
        tmp_path, task="t", model=made.model, data=made.loader, every_steps=2, keep_last=2, slots=0
    ) as run:
        for step, _ in run.steps(made.loader, 40):
            run.record()
            run.wait()
            if step == 12:
                pinned = {step: entry for step, entry in entries(tmp_path).items() if entry.pinned is not None}
                assert list(pinned) == [6]
                assert mementum.rollback(tmp_path, "t", to=6).pins
                assert entries(tmp_path)[6].pinned_by == {"flight recorder", "mementum rollback"}
    found = {step: entry for step, entry in entries(tmp_path).items() if entry.pinned is not None}
    assert {step: one.pinned_by for step, one in found.items()} == {
        6: {"mementum rollback"},
        22: {"flight recorder"},
        30: {"flight recorder"},
    }
    assert found[6].pinned == "a rollback goes back to it (mementum rollback)"
    cancel_rollback(tmp_path, "t")
    assert [step for step, entry in entries(tmp_path).items() if entry.pinned is not None] == [22, 30]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    made = FullDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: made)
    return made


def test_what_became_known_while_the_disk_was_full_is_known_later(tmp_path: Path, disk: FullDisk) -> None:
    def each(run: mementum.Run, step: int) -> None:
        if step == TROUBLE - 2:
            run.save()
        run.wait()
        disk.full = "/journal/" if TROUBLE - 1 <= step <= TROUBLE + 1 else ""

    told = train(
        tmp_path, jumps, TROUBLE + 20, each=each, slots=0, config={"policy": [{"steps": 10}], "health": {"hold": 99}}
    )
    (diagnosed,) = told.of(Diagnosed)
    onset = diagnosed.diagnosis.onset
    assert [event.what for event in told.of(Failed) if "until the disk takes" in event.kept] == ["a fact (diagnosis)"]
    assert [fact["step"] for fact in facts(tmp_path, "diagnosis")] == [TROUBLE]
    doubted = [step for step, what in health(tmp_path).items() if what is not Health.CLEAN]
    assert doubted == [TROUBLE - 2, TROUBLE + 8, TROUBLE + 18]
    assert entries(tmp_path)[TROUBLE - 2].manifest.health is Health.CLEAN
    assert [step for step, entry in entries(tmp_path).items() if entry.pinned] == [TROUBLE - 10]
    assert TROUBLE - 10 < onset <= TROUBLE - 2


def test_retention_goes_by_what_the_journal_could_not_take(tmp_path: Path, disk: FullDisk) -> None:
    """Else what was saved before the trouble was seen counts as the newest clean one, and stays in place of others."""

    def each(run: mementum.Run, step: int) -> None:
        if step == TROUBLE - 2:
            run.save()
        run.wait()
        if step == TROUBLE - 1:
            disk.full = "/journal/"

    config = {"policy": [{"steps": 10}], "keep_spread": 0}
    told = train(tmp_path, jumps, TROUBLE + 50, each=each, slots=0, keep_last=3, config=config)
    assert TROUBLE - 10 < told.of(Diagnosed)[0].diagnosis.onset <= TROUBLE - 2
    assert sorted(entries(tmp_path)) == [TROUBLE - 20, TROUBLE - 10, TROUBLE + 38, TROUBLE + 48]
    assert [event.step for event in told.of(Removed)][-4:] == [TROUBLE - 2, TROUBLE + 8, TROUBLE + 18, TROUBLE + 28]
