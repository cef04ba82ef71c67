"""Metrics that come late are of the branch that they are told on, and wait for the save of their step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

import mementum
from mementum.belated import EARLY_MAX, Belated
from mementum.cli.reading import look
from mementum.records import Reach, Resumed, Save


def test_what_may_still_be_saved_waits() -> None:
    told: list[tuple[int, str | None]] = []
    back = Resumed(checkpoint="a", step=2, epoch=0, reason="", duration_s=0.0)
    belated = Belated(lambda kind, **fact: told.append((fact["step"], fact["checkpoint"])), resumed=back)
    belated.told(3, {}, done=3)
    belated.told(5, {}, done=4)
    belated.taken("ram", Save(reason="", reach=Reach.PROCESS))
    belated.taken("b", Save(reason=""))
    belated.stepped(5)
    belated.told(9, {}, done=5)
    belated.stepped(6)
    assert told == [(3, "a"), (5, "b")]
    belated.rewound(back)
    belated.stepped()
    assert told == [(3, "a"), (5, "b"), (9, "a")]


def test_no_more_wait_than_the_limit() -> None:
    told: list[int] = []
    belated = Belated(lambda kind, **fact: told.append(fact["step"]), resumed=None)
    for step in range(1000, 1000 + EARLY_MAX + 2):
        belated.told(step, {}, done=1)
    assert told == [1000, 1001]


def test_a_late_metric_of_a_branch_that_was_left_is_none_of_the_new_one(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noise = random.Random(3)
    config: dict[str, Any] = {"slots": 0, "on_divergence": "rollback", "health": {"hold": 20, "confirm": 15}}
    with mementum.open_run(
        tmp_path, task="t", model=model, optimizer=optimizer, every_steps=20, keep_last=None, config=config
    ) as run:
        for step, _ in run.steps(list(range(600)), total=200):
            back = bool(run.rolled_back)
            if step == 140 and back:
                run.metrics(step, val_loss=0.8)  # before its save
            run.record(loss=3 + 0.05 * noise.gauss(0, 1) + (5 if not back and step >= 130 else 0))
            if step % 20 == 1:
                run.wait()  # else a newer save takes the place of one that waits
            if step == 141 and not back:
                run.metrics(140, val_loss=0.1)
            if step == 131 and not back:
                run.metrics(100, val_loss=0.9)
    assert len(run.rolled_back) == 1
    listed = [held.entry for held in look(str(tmp_path)).held]
    found = [(one.manifest.step, one.metrics.get("val_loss"), one.health.value) for one in listed]
    assert (140, 0.1, "diverged") in found
    assert (140, 0.8, "clean") in found
    assert (100, 0.9, "clean") in found
    assert sum(value is not None for _, value, _ in found) == 3
