"""Scenes of runs that must hold no more of the machine after hundreds of saves than after some: see forks.py.

A process of its own has nothing but the run: another test's threads, caches and garbage would move the figures.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

import mementum
from forks import report
from mementum import ram
from mementum.events import Committed, Failed, SaveSkipped, SnapshotKept
from mementum.records import Decision, Reach, Save, Situation
from trips import Told

os.fsync = lambda descriptor: None  # what is counted here is not what a disk does

WARM = 40  # saves until all slots, threads and caches are there
WIDTH = 256  # the state has 0.8 MB: what stayed behind of 460 would be 360 MB


@dataclass(frozen=True)
class Held:
    """What the process holds of the machine."""

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    slots: tuple[str, ...]
    hooks: int

    @classmethod
    def now(cls, root: Path) -> Held:
        gc.collect()
        return cls(
            descriptors=tuple(sorted(open_files(root))),
            threads=tuple(sorted(thread.name for thread in threading.enumerate())),
            slots=tuple(sorted(path.name for path in slots_of(root))),
            hooks=len(_global_optimizer_pre_hooks),
        )


def open_files(root: Path) -> Iterator[str]:
    """What is open of the run's files and slots. Not the catalog's: its pool has a connection for each of
    the run's threads that ask at the same time, and how many do depends on the machine."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            ours = target.startswith(f"{root.resolve()}/") or ram.key_of(root.resolve(), "t") in target
            if ours and "/catalog.db" not in target:
                yield target


def slots_of(root: Path) -> list[Path]:
    return list(Path(ram.FOLDER).glob(f"*{ram.key_of(root.resolve(), 't')}*"))


class Made:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.told = Told()

    def step(self) -> None:
        self.model(torch.ones(2, WIDTH)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def open(self, root: Path, **wishes: Any) -> mementum.Run:
        when = {} if "policy" in wishes else {"every_steps": 1}
        opening = {"model": self.model, "optimizer": self.optimizer, "keep_last": 2, **when}
        return mementum.open_run(root, task="t", on_event=self.told, **opening, **wishes)


class InMemory:
    def decide(self, situation: Situation) -> Decision:
        return Save(reason="r", reach=Reach.PROCESS)


def root_of(scene: dict[str, Any]) -> Path:
    return Path(scene["root"])


def saves(scene: dict[str, Any]) -> None:
    """As many saves as the scene says, each waited for."""
    _many(scene, waited=True)


def snapshots(scene: dict[str, Any]) -> None:
    """As many snapshots in memory as the scene says, and one save at the end."""
    _many(scene, waited=False, policy=InMemory())


def behind(scene: dict[str, Any]) -> None:
    """Nobody waits for the disk, so that saves take the place of others, and others are skipped."""
    root, made = root_of(scene), Made()
    before = Held.now(root)
    for _ in range(3):
        with made.open(root, capture=scene["way"]) as run:
            for _ in range(WARM):
                made.step()
                run.record()
    _report_end(scene, made, before)


def errors(scene: dict[str, Any]) -> None:
    """Runs that end by an error of the training."""
    root, made, caught = root_of(scene), Made(), []
    before = Held.now(root)
    for error in (RuntimeError, KeyboardInterrupt, SystemExit):
        try:
            with made.open(root, capture=scene["way"]) as run:
                made.step()
                run.record()
                raise error("of the training")
        except error as raised:
            caught.append(repr(raised))
    report(scene, caught=caught)
    _report_end(scene, made, before)


def _report_end(scene: dict[str, Any], made: Made, before: Held) -> None:
    report(
        scene,
        committed=[event.step for event in made.told.of(Committed)],
        kept=[event.step for event in made.told.of(SnapshotKept)],
        skipped=[event.step for event in made.told.of(SaveSkipped)],
        failed=list(map(repr, made.told.of(Failed))),
        left=None if (after := Held.now(root_of(scene))) == before else asdict(after),
    )


def _many(scene: dict[str, Any], *, waited: bool, **wishes: Any) -> None:
    root, process, made = root_of(scene), psutil.Process(), Made()
    before = Held.now(root)
    others: list[dict[str, Any]] = []
    with made.open(root, capture=scene["way"], **wishes) as run:
        for number in range(1, scene["saves"] + 1):
            made.step()
            run.record()
            assert not waited or run.wait()
            if number == WARM:
                warm, rss = Held.now(root), process.memory_info().rss
            if number > WARM and number % 40 == 0 and (now := Held.now(root)) != warm:
                others.append({"number": number, **asdict(now)})
        gc.collect()
        report(
            scene,
            grown_bytes=process.memory_info().rss - rss,
            warm=asdict(warm),
            others=others,
            active=len(run._taker.ledger._active),
            saving=len(run._deciding._watchers.perception._saving),  # what was told is counted at the next step
        )
    _report_end(scene, made, before)
