"""A training that diverges when a test says so, for tests of going back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from loops import Parts, fingerprint, parts
from mementum.deciding import Deciding
from mementum.records import Diagnosis, Health
from trips import Told

TASK = "rolls"


def lost(onset: int, seen: int, *, hold: int = 20) -> Diagnosis:
    return Diagnosis(health=Health.DIVERGED, onset=onset, seen=seen, why="the test says so", hold=hold, episode=1)


class Script:
    """Says what the diagnosis is: at each step named, one after the other, and clean otherwise."""

    def __init__(self, troubles: dict[int, list[Diagnosis]]) -> None:
        self._troubles = {step: deque(found) for step, found in troubles.items()}
        self.now = Diagnosis()

    def at(self, step: int) -> None:
        waiting = self._troubles.get(step)
        self.now = waiting.popleft() if waiting else Diagnosis()


@dataclass
class Trip:
    """What a training did: step and a sum over the batch of every step, the state it left, and what was told."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    state: dict[str, bytes] = field(default_factory=dict)
    told: Told = field(default_factory=Told)
    rolled_back: tuple[Any, ...] = ()
    lr_scale: float = 1.0
    values: dict[str, Any] = field(default_factory=dict)
    resumed: Any = None


def plain_step(made: Parts, batch: Any) -> None:
    """One step that draws from a generator."""
    (inputs,) = batch
    made.optimizer.zero_grad()
    loss = made.model(inputs + torch.rand(()) * 0.1).pow(2).mean()
    loss.backward()
    made.optimizer.step()
    made.scheduler.step()


Step = Callable[[Parts, Any], None]


def train(
    root: Path,
    total: int,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: Step = plain_step,
    make: Callable[[], Parts] = parts,
    stop: int | None = None,
    accumulate: int = 1,
    told: Told | None = None,
    **wishes: Any,
) -> Trip:
    """Train until `total`; with `stop`, leave after so many steps done, with everything that was due saved."""
    monkeypatch.setattr(Deciding, "diagnosis", property(lambda self: script.now))
    made = make()
    trip = Trip(told=Told() if told is None else told)
    opening: dict[str, Any] = {
        "task": TASK,
        "model": made.model,
        "optimizer": made.optimizer,
        "scheduler": made.scheduler,
        "data": made.loader,
        "every_steps": 1,
        "keep_last": None,
        "on_event": trip.told,
        "config": {"on_divergence": "rollback", **wishes.pop("config", {})},
        **wishes,
    }
    run = mementum.open_run(root, **opening)
    trip.resumed = run.resumed
    try:
        for number, batch in run.steps(made.loader, total, accumulate=accumulate):
            if stop is not None and len(trip.steps) == stop:
                break
            first = batch[0][0] if accumulate == 1 else torch.cat([one[0] for one in batch])
            trip.steps.append((number, float(first.double().sum())))
            for one in [batch] if accumulate == 1 else batch:
                step(made, one)
            run.values["at"] = number
            script.at(number)
            run.record()
            run.wait()
    finally:
        trip.rolled_back, trip.lr_scale, trip.values = run.rolled_back, run.lr_scale, dict(run.values)
        run.close(why="left" if stop is not None else "finished")
        trip.state = fingerprint(made)
    return trip


def sums(trip: Trip) -> Iterator[float]:
    return (found for _, found in trip.steps)
