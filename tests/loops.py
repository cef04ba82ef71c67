"""A small training loop with every kind of ordinary state, and what it leaves behind, for tests of resuming."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import mementum
from mementum.data import ElasticSampler
from mementum.live import rng, tree

SAMPLES = 23  # no multiple of the batch size: an epoch ends with a short batch
BATCH = 4  # six steps an epoch


class Killed(Exception):
    """Stands for the death of the process: the run closes without a last save."""


@dataclass
class Parts:
    """What a program makes before it opens a run."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    loader: Any
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a training left: losses by step, and the bytes of everything at its end."""

    losses: dict[int, float]
    state: dict[str, bytes]
    resumed: Any


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(SAMPLES, 6, generator=generator))


def parts(*, seed: int = 0, workers: int = 0) -> Parts:
    """Objects as at a program's start; the same for the same seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.25), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=1000)
    data = dataset()
    loader = DataLoader(data, batch_size=BATCH, sampler=ElasticSampler(data, seed=seed), num_workers=workers)
    return Parts(model, optimizer, scheduler, loader)


def step_once(made: Parts, batch: Any) -> float:
    """One step that draws from all three global generators of the CPU."""
    (inputs,) = batch
    inputs = inputs + torch.rand(()) * 0.1 + random.random() * 0.1 + float(np.random.rand()) * 0.1
    made.optimizer.zero_grad()
    loss = made.model(inputs).pow(2).mean()
    loss.backward()
    made.optimizer.step()
    made.scheduler.step()
    return loss.item()


def train(
    root: Path,
    total: int,
    *,
    stop: int | None = None,
    make: Callable[[], Parts] = parts,
    step: Callable[[Parts, Any], float] = step_once,
    every_steps: int = 1,
    **wishes: Any,
) -> Outcome:
    """Train to `total` steps. With `stop`, the process "dies" right after that step has been saved (0: before the
    first step, after an asked save)."""
    made = make()
    losses: dict[int, float] = {}
    resumed = None
    opening = {
        "task": "loop",
        "model": made.model,
        "optimizer": made.optimizer,
        "scheduler": made.scheduler,
        "data": made.loader,
        "state": made.extra,
        "every_steps": every_steps,
        **wishes,
    }
    try:
        with mementum.open_run(root, **opening) as run:
            resumed = run.resumed
            if stop == 0:
                run.save()
                run.wait()
                raise Killed
            for number, batch in run.steps(made.loader, total):
                if stop is not None and number == stop + 1:
                    run.wait()
                    raise Killed
                losses[number] = step(made, batch)
                run.record(loss=losses[number])
            if stop is not None:
                run.wait()
                raise Killed
    except Killed:
        pass
    return Outcome(losses, fingerprint(made), resumed)


def fingerprint(made: Parts) -> dict[str, bytes]:
    """The bytes of all tensors and plain values of the parts, and of the global generators."""
    found: dict[str, bytes] = {}
    things = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler, **made.extra}
    for name, thing in things.items():
        if hasattr(thing, "state_dict"):
            leaves: Iterable[tuple[str, object]] = tree.leaves(thing.state_dict(), name)
        else:
            leaves = [(name, thing)]
        for path, leaf in leaves:
            found[path] = (
                tree.as_bytes(leaf).numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
            )
    for path, leaf in tree.leaves(rng.read(), "rng"):
        found[path] = leaf if isinstance(leaf, bytes) else repr(leaf).encode()
    return found


def assert_same(straight: Outcome, resumed: Outcome) -> None:
    """Every loss that the resumed training computed, and every byte that it left, is the straight one's."""
    assert resumed.losses == {number: straight.losses[number] for number in resumed.losses}
    differing = [path for path in straight.state if straight.state[path] != resumed.state.get(path)]
    assert not differing, differing
    assert straight.state.keys() == resumed.state.keys()
