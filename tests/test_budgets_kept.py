"""Days of a large training in seconds: budgets hold whatever the alarms, and no more work is at risk than may be."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum import events, ram
from mementum.clock import ManualClock
from mementum.deciding import Deciding
from mementum.errors import UsageError
from mementum.events import Committed, Cost, Event, Failed, Note, SaveSkipped, SnapshotKept
from mementum.execute.leftovers import leftovers
from mementum.perceive.alarms import Detectors
from mementum.records import Alarm, Trouble

SIZE = 87e9  # bytes: what a model of 7 billion parameters and its optimizer take
DURABLE_S = 120.0  # at 0.7 GB/s
LOST_S = 4.0
STEP_S = 60.0
DAY_S = 86400.0
MAX_LOST_S = 1800.0  # of the preset
BYTES_A_DAY = 7.5e12  # the same
LOST_SHARE = 0.05  # the same
EXPECTED = {"lost_per_save": LOST_S, "durable_after": DURABLE_S, "checkpoint_size": "87 GB"}


class Simulated:
    """A run of which a save is as large and as slow as that of a large model, by a clock that is advanced by hand."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **wishes: Any) -> None:
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.saves: list[tuple[float, float]] = []  # to the disk: when taken, when durable
        self.kept: list[float] = []  # in memory: when taken
        self.lost_s = config["expected"]["lost_per_save"]
        self.at_risk_s = 0.0  # the most that there has been
        self._held: list[tuple[float, Event]] = []
        self._hear, outer = Deciding.hear, self

        def hear(deciding: Deciding, event: Event) -> None:
            outer.heard(deciding, event)

        monkeypatch.setattr(Deciding, "hear", hear)
        monkeypatch.setattr(events, "_log", lambda event: None)
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the real disk has no part in this
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 2)
        self.run = mementum.open_run(
            root,
            task="t",
            model=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            config=config,
            clock=self.clock,
            capture="blocking",
            on_event=self.events.append,
            **wishes,
        )
        self._newest_s = self.began_s = self.clock.monotonic()

    def heard(self, deciding: Deciding, event: Event) -> None:
        """What is told of a small save is told of it as of a large one, and when that would be durable."""
        now_s = self.clock.monotonic()
        match event:
            case Committed():
                self.saves.append((now_s, now_s + DURABLE_S))
                self._held.append((now_s + DURABLE_S, event))
            case Cost(written=written) if written > 0:
                large = replace(event, written=int(SIZE), lost_s=self.lost_s, durable_s=DURABLE_S, snapshot_s=20.0)
                self._held.append((now_s + DURABLE_S, large))
            case SnapshotKept():
                self.kept.append(now_s)
                self._hear(deciding, event)
            case _:
                self._hear(deciding, event)

    def train(self, seconds: float) -> None:
        until_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_s:
            self.clock.advance(STEP_S)
            now_s = self.clock.monotonic()
            due = [one for one in self._held if one[0] <= now_s]
            self._held = [one for one in self._held if one[0] > now_s]
            for _, event in due:
                self._hear(self.run._deciding, event)
            durable = [taken_s for taken_s, durable_s in self.saves if durable_s <= now_s]
            self.at_risk_s = max(self.at_risk_s, now_s - max(durable, default=self.began_s))
            self.run.record(loss=1.0)
            assert self.run.wait()

    @property
    def bytes_a_day(self) -> float:
        """The most that any 24 hours have seen."""
        times = [taken_s for taken_s, _ in self.saves]
        return SIZE * max(sum(begin <= other < begin + DAY_S for other in times) for begin in times)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    def end(self) -> None:
        self.run.close(why="of the test")
        assert [event for event in self.events if isinstance(event, Failed | SaveSkipped)] == []


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for left in leftovers(ram.FOLDER, ram.key_of(tmp_path.resolve(), "t")):
        left.remove()


@pytest.mark.parametrize("slots", [0, 3])
def test_pretraining_keeps_its_bytes_and_its_tolerance(root: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    simulated = Simulated(root, monkeypatch, {"preset": "pretrain", "expected": EXPECTED, "slots": slots})
    assert not any("max_lost" in note for note in simulated.notes)
    simulated.train(1.5 * DAY_S)
    simulated.end()
    print(f"{len(simulated.saves)} saves, {simulated.bytes_a_day / 1e12:.2f} TB a day, {simulated.at_risk_s:.0f} s")
    assert simulated.bytes_a_day <= BYTES_A_DAY
    assert simulated.at_risk_s <= MAX_LOST_S
    assert len(simulated.saves) >= 1.5 * DAY_S / MAX_LOST_S
    assert bool(simulated.kept) == bool(slots)


@pytest.mark.parametrize("chance", [0.02, 0.5])
def test_no_storm_of_alarms_breaks_a_budget(
    root: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, chance: float
) -> None:
    """One alarm in fifty steps, or in two: at most half of a budget goes to them, and the tolerance holds."""

    def look(detectors: Detectors, vitals: Any, **given: Any) -> tuple[Alarm, ...]:
        if rng.random() >= chance:
            return ()
        trouble = rng.choice((Trouble.MEMORY, Trouble.SLOW, Trouble.HARDWARE))
        return (
            Alarm(
                trouble=trouble,
                step=vitals.step,
                value=1.0,
                limit=0.5,
                text="of the test",
                chance=rng.random(),
                horizon_s=600.0,
            ),
        )

    monkeypatch.setattr(Detectors, "look", look)
    simulated = Simulated(root, monkeypatch, {"preset": "pretrain", "expected": EXPECTED, "slots": 0})
    simulated.train(1.1 * DAY_S)
    elapsed_s = simulated.clock.monotonic() - simulated.began_s
    simulated.end()
    reasons = [event.reason for event in simulated.events if isinstance(event, Committed)]
    print(f"{len(reasons)} saves, {simulated.bytes_a_day / 1e12:.2f} TB a day, {simulated.at_risk_s:.0f} s at risk")
    assert any("max_lost" not in reason for reason in reasons)
    assert len(reasons) * LOST_S <= LOST_SHARE * elapsed_s + LOST_S
    assert simulated.bytes_a_day <= BYTES_A_DAY
    assert simulated.at_risk_s <= MAX_LOST_S


def test_lost_time_holds_where_saves_are_dear(root: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Saves that cost two minutes each, and an alarm at every other step."""
    alarm = Alarm(
        trouble=Trouble.HARDWARE, step=1, value=1.0, limit=0.5, text="of the test", chance=0.9, horizon_s=600.0
    )
    monkeypatch.setattr(Detectors, "look", lambda detectors, vitals, **given: (alarm,) if rng.random() < 0.5 else ())
    expected = {**EXPECTED, "lost_per_save": 120.0}
    simulated = Simulated(root, monkeypatch, {"expected": expected, "slots": 0})
    simulated.train(0.6 * DAY_S)
    elapsed_s = simulated.clock.monotonic() - simulated.began_s
    simulated.end()
    saves = len(simulated.saves)
    print(f"{saves} saves, {saves * 120.0 / elapsed_s:.4f} of the time")
    assert saves >= 2
    assert saves * 120.0 <= LOST_SHARE * elapsed_s + 120.0


def test_what_cannot_be_kept_is_said_at_the_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the state itself, where the configuration names none: a few kilobytes, and 50 are for a day."""
    expected = {"lost_per_save": LOST_S, "durable_after": DURABLE_S}
    config = {"preset": "pretrain", "expected": expected, "budgets": {"bytes_per_day": {"ssd": 50_000}}, "slots": 0}
    simulated = Simulated(root, monkeypatch, config)
    (said,) = (note for note in simulated.notes if "max_lost" in note)
    assert said.startswith("max_lost 30 min cannot be kept against a reboot: a save writes ")
    assert said.endswith(" or more, or raise budgets.bytes_per_day")
    simulated.end()


def test_a_budget_that_covers_no_save_at_all_is_said_at_the_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"lost_per_save": LOST_S, "durable_after": DURABLE_S}
    config = {"expected": expected, "budgets": {"bytes_per_day": {"ssd": 1000}}, "slots": 0}
    simulated = Simulated(root, monkeypatch, config)
    (said,) = (note for note in simulated.notes if "bytes_per_day" in note)
    assert said.startswith("no save is made but for notices, and when one is asked for: it writes ")
    assert said.endswith("; raise budgets.bytes_per_day.ssd")
    simulated.end()


def test_a_configuration_that_contradicts_itself_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"preset": "pretrain", "expected": EXPECTED, "tolerance": {"max_lost": "15m"}}
    with pytest.raises(UsageError, match=r"tolerance\.max_lost: 15m cannot be kept: a save writes 87 GB"):
        Simulated(root, monkeypatch, config)
    assert list(root.iterdir()) == []
