"""`observe: true` saves nothing and removes nothing, and says what would have been done."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import mementum
from mementum import ram
from mementum.cli.main import app
from mementum.clock import ManualClock
from mementum.events import Committed, Failed, Note, PhaseBegan
from trips import Told

TASK = "t"


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.told, self.clock = Told(), ManualClock()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        things = {"model": self.model, "optimizer": self.optimizer, "clock": self.clock, "on_event": self.told}
        return mementum.open_run(root, task=TASK, **things, **wishes)

    def step(self, run: mementum.Run) -> None:
        self.clock.advance(1.0)
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 8)).sum().backward()
        self.optimizer.step()
        run.record(loss=1.0)

    @property
    def would(self) -> list[str]:
        return [note.text for note in self.told.of(Note) if "would have saved" in note.text]


def checkpoints(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("meta.json"))


def slots_of(root: Path) -> list[Path]:
    return list(Path(ram.FOLDER).glob(f"*{ram.key_of(root.resolve(), TASK)}*"))


def test_nothing_is_saved_and_all_is_told(tmp_path: Path) -> None:
    made = Training()
    with made.open(tmp_path, config={"every_steps": 5, "observe": True}) as run:
        for _ in range(12):
            made.step(run)
        run.save("a wish")
        assert slots_of(tmp_path) == []
    steps = [text.partition(": would have saved: ")[0] for text in made.would]
    assert steps == ["step 5", "step 10", "step 12", "step 12"]
    assert [text.rpartition(": ")[2] for text in made.would][2:] == ["a wish", "the run ended"]
    assert checkpoints(tmp_path) == []
    assert made.told.of(Committed) == made.told.of(Failed) == []
    assert [event for event in made.told.of(PhaseBegan) if event.phase == "capture"] == []


def test_beside_checkpoints_that_are_there_none_is_removed(tmp_path: Path) -> None:
    made = Training()
    with made.open(tmp_path, every_steps=1, keep_last=None) as run:
        for _ in range(4):
            made.step(run)
            run.wait()
    before = checkpoints(tmp_path)
    assert len(before) == 4
    again = Training()
    with again.open(tmp_path, config={"every_steps": 1, "observe": True, "keep_last": 1}, resume="must") as run:
        assert run.step == 4
        again.step(run)
    assert checkpoints(tmp_path) == before
    assert [text.partition(":")[0] for text in again.would] == ["step 5", "step 5"]


def test_a_notice_saves_nothing_either_and_is_told_once(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    made = Training()
    try:
        with made.open(tmp_path, config={"observe": True}) as run:
            made.step(run)
            os.kill(os.getpid(), signal.SIGTERM)
            made.step(run)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert any("SIGTERM" in text for text in made.would)
    assert len(made.would) <= 2
    assert checkpoints(tmp_path) == []


def test_cost_optimal_saving_would_come_at_its_intervals(tmp_path: Path) -> None:
    """As if the last one that would have been had been made: not at every step from then on."""
    made = Training()
    config = {"observe": True, "slots": 0, "expected": {"lost_per_save": 1.0}}
    with made.open(tmp_path, config=config) as run:
        for _ in range(60):
            made.clock.advance(600.0)
            made.step(run)
    assert 2 <= len(made.would) <= 40
    assert checkpoints(tmp_path) == []


def test_why_shows_what_would_have_been(tmp_path: Path) -> None:
    made = Training()
    with made.open(tmp_path, config={"every_steps": 3, "observe": True}) as run:
        for _ in range(7):
            made.step(run)
    shown = CliRunner().invoke(app, ["why", str(tmp_path), f"{TASK}@3"])
    assert "would have saved: 3 steps" in " ".join(shown.output.split()), shown.output
