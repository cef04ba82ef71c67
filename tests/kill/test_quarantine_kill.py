"""Killed at every durable effect of an alarm, a keep and a pin: the next start finds the right health and what is kept.

Each scene is a process of its own that kills itself right before, or right after, one of those effects. That proves
process death only, never power loss: shared memory ends with the machine.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from forks import play
from mementum import ram
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import ManualClock
from mementum.execute.leftovers import leftovers
from mementum.execute.slots import Slots
from mementum.records import Entry, Health
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

TASK = "quarantine"
TROUBLE = 71  # the first step whose loss is out of order; the snapshot before it is from after the onset
RECORD = 10  # steps between snapshots
DISK = 25  # steps between saves: the newest snapshot from before the onset is on no disk
EFFECTS = 13  # from the alarm until the pinned checkpoint and a doubtful one are listed; one dies before and after each


def train(root: str, *, until: int, began_s: float) -> tuple[int, float]:
    """Train to a step, and leave. The step at which it began, and the weight with which."""
    torch.set_num_threads(1)
    clock, model = ManualClock(), torch.nn.Linear(1, 1, bias=False)
    clock.advance(began_s)
    config = {"recorder": {"every": RECORD}, "policy": [{"steps": DISK}]}
    run = mementum.open_run(
        root, task=TASK, model=model, config=config, capture="blocking", keep_last=None, clock=clock
    )
    began = run.step, float(model.weight.item())
    for step in range(run.step + 1, until + 1):
        with torch.no_grad():
            model.weight.fill_(step)
        clock.advance(1.0)
        if step == TROUBLE:
            armed.append(True)
        run.record(loss=3.0 - 0.001 * step + random.Random(step).gauss(0, 0.02) + (2.0 if step >= TROUBLE else 0.0))
        if step == TROUBLE + 1:
            run.save()  # of a state in doubt
        if step % RECORD == 0 or step > TROUBLE:
            run.wait()
    run.close(why="left")
    return began


def die(scene: dict[str, Any]) -> None:
    """Train until the process dies at an effect of the trouble."""
    count_down(scene["dies_at"])
    train(scene["root"], until=TROUBLE + 3, began_s=0.0)


armed: list[bool] = []  # once the trouble is there


def count_down(dies_at: int) -> None:
    """Die before the effect of this number if it is even, else after it; two numbers are of one effect."""
    left = [dies_at]

    def deadly(effect: Callable[..., Any]) -> Callable[..., Any]:
        def done(*words: Any, **named: Any) -> Any:
            pass_by()
            made = effect(*words, **named)
            pass_by()
            return made

        return done

    def pass_by() -> None:
        if armed:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    for owner, name in ((LocalStore, "append"), (LocalStore, "put"), (Slots, "hold")):
        setattr(owner, name, deadly(getattr(owner, name)))


def entries(root: Path) -> list[Entry]:
    (home,) = {path.parent.parent for path in root.rglob("meta*.json")}
    catalog = open_sqlite(None)
    refresh(catalog, "home", LocalStore(PosixDisk(), str(home)))
    return list(catalog.entries("home"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for place in tmp_path.iterdir():
        for left in leftovers(ram.FOLDER, ram.key_of(place.resolve(), TASK)):
            left.remove()


def test_killed_at_any_instant_of_alarm_keep_and_pin(root: Path) -> None:
    scenes = [{"play": "die", "root": str(root / str(number)), "dies_at": number} for number in range(2 * EFFECTS)]
    for scene in scenes:
        Path(scene["root"]).mkdir()
    assert [ended.code for ended in play(Path(__file__), scenes)] == [-signal.SIGKILL] * len(scenes)
    knew: list[bool] = []
    begun: set[int] = set()
    for number, scene in enumerate(scenes):
        known = any(b'"kind":"health"' in path.read_bytes() for path in Path(scene["root"]).rglob("*.jsonl"))
        knew.append(known)
        began, weight = train(scene["root"], until=TROUBLE + 3, began_s=1000.0)
        found = entries(Path(scene["root"]))
        (kept,) = [entry for entry in found if entry.pinned is not None]
        assert kept.pinned is not None
        (onset,) = map(int, re.findall(r"before step (\d+)", kept.pinned))
        assert kept.manifest.step < onset <= TROUBLE, number
        assert kept.manifest.step == 60, number  # also where the process came back from a later one
        assert kept.health is Health.CLEAN, number
        assert began == weight, number
        # Where nothing says yet that the newest snapshot is in doubt, it is come back from, and the same is seen again.
        assert began in ((60,) if known else (60, 70)), number  # a slot that was sealed later tells it too
        after = [entry.health for entry in found if entry.manifest.step >= onset]
        assert Health.CLEAN not in after, number
        begun.add(began)
    assert begun == {60, 70}
    assert knew.count(True) >= EFFECTS  # of twice as many
    assert not knew[0]
