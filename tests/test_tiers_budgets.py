"""Every copy beyond the machine counts in the budgets of a day, and what does not fit stays in the root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.events import Placed, Unplaced
from mementum.records import Reach, Save, Situation
from tiered import Training, entries

LIMIT = 60_000  # bytes: of this training's checkpoints, of 23 kB, two and a half


def far(tmp_path: Path, **wishes: object) -> dict[str, object]:
    return {"url": str(tmp_path / "far"), "name": "far", "reach": "machine", **wishes}


class EachStep:
    """Saves each step, whatever budgets say: only copies are held to them here."""

    def __init__(self, cause: str = "asked") -> None:
        self.cause = cause

    def decide(self, situation: Situation) -> Save:
        return Save(reason="test", reach=Reach.REBOOT, cause=self.cause)


def begun(
    training: Training, tmp_path: Path, *tiers: dict[str, Any], limit: int = LIMIT, cause: str = "asked"
) -> mementum.Run:
    wishes = {"policy": EachStep(cause), "every_steps": None, "config": limited(limit)}
    return training.open(tmp_path / "root", *(tiers or (far(tmp_path),)), **wishes)


def limited(limit: int = LIMIT) -> dict[str, object]:
    return {"budgets": {"bytes_per_day": {"object_store": f"{limit} B"}}}


def step_to(run: mementum.Run, training: Training, total: int) -> None:
    while run.step < total:
        training.step(run)
        run.wait()
        run._background._forwarding.drain(10)


def sent(training: Training) -> list[tuple[int, int]]:
    return [(event.step, event.sent) for event in training.told.of(Placed)]


def test_copies_of_saves_for_less_take_of_the_store_s_budget(tmp_path: Path) -> None:
    training = Training()
    with begun(training, tmp_path) as run:
        step_to(run, training, 4)
        perceived = run._deciding._watchers.perception
        assert perceived is not None
        left = perceived._senses.budgets.sending.begin(perceived.at_s, "another", "c1", LIMIT)
    assert [step for step, _ in sent(training)] == [1, 2]
    assert sum(size for _, size in sent(training)) <= LIMIT
    waits = {event.step: event.reason for event in training.told.of(Unplaced)}
    assert sorted(waits) == [3, 4]
    assert waits[3].startswith("budgets.bytes_per_day.object_store: ")
    assert left is not None
    assert sorted(entries(tmp_path / "far")) == [1, 2]
    assert sorted(entries(tmp_path / "root")) == [1, 2, 3, 4]


def test_a_later_start_goes_on_with_the_same_day(tmp_path: Path) -> None:
    first = Training()
    with begun(first, tmp_path) as run:
        step_to(run, first, 2)
    second = Training()
    with begun(second, tmp_path) as run:
        step_to(run, second, 3)
    assert (sent(second), [event.step for event in second.told.of(Unplaced)]) == ([], [3])
    third = Training()
    with begun(third, tmp_path, limit=3 * LIMIT) as run:
        step_to(run, third, 4)
    assert [step for step, _ in sent(third)] == [3, 4]  # what waited goes, as soon as it fits


def test_a_place_that_does_not_outlive_the_machine_is_not_the_store(tmp_path: Path) -> None:
    training = Training()
    tiers = far(tmp_path, reach="reboot"), {"url": str(tmp_path / "store"), "reach": "machine"}
    with begun(training, tmp_path, *tiers, limit=1) as run:
        step_to(run, training, 2)
    assert sorted(entries(tmp_path / "far")) == [1, 2]
    assert not list((tmp_path / "store").rglob("meta.json"))


def test_what_is_saved_in_an_emergency_goes_anyway_and_counts(tmp_path: Path) -> None:
    training = Training()
    with begun(training, tmp_path, limit=1, cause="notice") as run:
        step_to(run, training, 2)
    assert [step for step, _ in sent(training)] == [1, 2]


def test_frozen_weights_that_are_there_are_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.execute.structure.FROZEN_MIN", 1 << 20)
    training = Training()
    training.model.add_module("base", torch.nn.Linear(600, 600).requires_grad_(False))  # 1.4 MB
    with begun(training, tmp_path, limit=2_000_000) as run:
        step_to(run, training, 4)
    assert [step for step, _ in sent(training)] == [1, 2, 3, 4]
    assert sum(size for _, size in sent(training)) < 2_000_000


@pytest.mark.parametrize("config", [{}, {"vitals": "off"}])
def test_what_was_seen_of_memory_is_in_the_manifest(tmp_path: Path, config: dict[str, object]) -> None:
    training = Training()
    training.run(tmp_path / "root", 5, config=config)  # memory is looked at each fifth step
    memory = entries(tmp_path / "root")[5].manifest.memory
    assert memory["rss"] > 1 << 20
    assert ("mem_percent" in memory) == (config == {})
    assert 0 < memory.get("mem_percent", 50) <= 100
    assert "gpu_mem_percent" not in memory
