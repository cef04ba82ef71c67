"""Trainings that go back, each in a process of its own, and die where a scene says so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from blake3 import blake3

import mementum
from forks import report
from loops import fingerprint, parts, step_once
from mementum import rolling
from mementum.deciding import Deciding
from mementum.records import Diagnosis, Reach, Save, Situation
from rollbacks import TASK, lost

STEPS = 12
POISONED = (1, 8)  # epoch and samples after the batch that makes the run diverge: at first it is that of step 8
ONSET = 7  # the step whose state is not trusted any more
TO_DISK = 3  # steps; the others go to memory


class Often:
    """Every third step to the disk, the others to memory, where they outlive the process."""

    def decide(self, situation: Situation) -> Save:
        to_disk = situation.step % TO_DISK == 0
        return Save(reason="each step", reach=Reach.REBOOT if to_disk else Reach.PROCESS)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_around(scene: dict[str, Any]) -> None:
    """Put the death before or after one of the parts of a rollback."""
    places: dict[str, tuple[Any, str]] = {
        "write": (rolling.plans, "write"),
        "restore": (rolling, "restore"),
        "went_back": (rolling.Rolling, "_went_back"),
    }
    when, _, part = scene.get("around", "").partition(" ")
    if not part:
        return
    place, name = places[part]
    whole: Callable[..., Any] = getattr(place, name)

    def dying(*given: Any, **named: Any) -> Any:
        if when == "before":
            die()
        found = whole(*given, **named)
        die()
        return found

    setattr(place, name, dying)


def train(scene: dict[str, Any]) -> None:
    """Train to the end. `after`: die when so many steps have been done by this process; `wait`: with all saved."""
    torch.set_num_threads(1)
    made, now = parts(), Diagnosis()
    dying_around(scene)
    Deciding.diagnosis = property(lambda self: now)  # type: ignore[assignment,method-assign]
    done = 0
    with mementum.open_run(
        scene["root"],
        task=TASK,
        model=made.model,
        optimizer=made.optimizer,
        scheduler=made.scheduler,
        data=made.loader,
        policy=Often(),
        keep_last=None,
        config={"on_divergence": "rollback", "rollback": {"lr_scale": 0.5}},
    ) as run:
        report(scene, began_at=run.step)
        poisoned = {"kind": "elastic", "place": made.loader.sampler.state_at(*POISONED)}
        for number, batch in run.steps(made.loader, STEPS):
            step_once(made, batch)
            now = lost(ONSET, number) if run._batches.place() == poisoned else Diagnosis()
            run.record()
            if scene.get("wait"):
                run.wait()
            done += 1
            if done == scene.get("after"):
                die()
    state = blake3(repr(sorted(fingerprint(made).items())).encode()).hexdigest()
    report(scene, state=state, lr_scale=run.lr_scale, went_back=[one.step for one in run.rolled_back])
