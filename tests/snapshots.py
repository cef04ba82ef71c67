"""A small training that saves at every step, mostly into memory, for tests of what stays there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.records import Decision, Reach, Save, Situation
from mementum.storage.local import LocalStore
from trips import Told, bits

TASK = "t"
WAIT_S = 20.0  # for a thread; only a broken test waits so long


class Alternating:
    """Saves at every step: to the disk at the steps in `disk`, else into memory."""

    def __init__(self, *disk: int) -> None:
        self.disk = disk

    def decide(self, situation: Situation) -> Decision:
        reach = Reach.REBOOT if situation.step in self.disk else Reach.PROCESS
        return Save(reason="alternating", reach=reach)


class Made:
    """A training of 25 kB of state, with a listener."""

    def __init__(self, width: int = 32) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = torch.nn.Linear(width, width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.width, self.told = width, Told()

    def step(self, run: mementum.Run) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, self.width)).pow(2).mean().backward()
        self.optimizer.step()
        run.record(loss=1.0)

    def open(self, root: Path, *disk: int, **wishes: Any) -> mementum.Run:
        opening = {"policy": Alternating(*disk), "keep_last": None, **wishes}
        return mementum.open_run(
            root, task=TASK, model=self.model, optimizer=self.optimizer, on_event=self.told, **opening
        )

    def state(self) -> dict[str, object]:
        return bits([self.model.state_dict(), self.optimizer.state_dict()])

    def steps(self, kind: type) -> list[int]:
        return [event.step for event in self.told.of(kind)]


class Stuck:
    """A disk that takes no part of a checkpoint until it is let go of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.let = threading.Event(), threading.Event()
        put = LocalStore.put

        def held(store: LocalStore, key: str, chunks: Any) -> Any:
            if key.startswith("step_"):
                self.reached.set()
                assert self.let.wait(WAIT_S)
            return put(store, key, chunks)

        monkeypatch.setattr(LocalStore, "put", held)


def copied(run: mementum.Run) -> None:
    """Wait for the copies under way, and for what follows them."""
    ended = threading.Event()
    run._taker._capture._copier.submit(ended.set)
    assert ended.wait(WAIT_S)
