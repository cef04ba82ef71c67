"""A training whose copies go to a tier, killed at an operation there, as a scene of `forks.py`."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch

import forks
import mementum
from mementum.storage.local import LocalStore

TOTAL = 3  # steps, each saved and copied


def train(scene: dict[str, Any]) -> None:
    """Train to the end on the tier `far`. `at`: die at that operation there; `new`: in a root of its own."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if "at" in scene:
        die_at(scene["at"], Path(scene["far"]))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    config = {"tiers": [{"url": scene["far"], "name": "far"}], "slots": 0, "scrub": "off"}
    with mementum.open_run(
        scene["root"], task="t", model=model, optimizer=optimizer, config=config, every_steps=1
    ) as run:
        resumed = None if run.resumed is None else (run.resumed.step, run.resumed.tier)
        forks.report(scene, began_at=run.step, resumed=resumed)
        while run.step < TOTAL:
            optimizer.zero_grad()
            model(torch.ones(1, 4)).pow(2).mean().backward()
            optimizer.step()
            run.record(loss=1.0)
            run.wait()
            run._background._forwarding.drain(60)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    forks.report(scene, state=digest.hexdigest())


def die_at(number: int, far: Path) -> None:
    """SIGKILL when the tier's folder has been written to, or deleted in, so often."""
    left = iter(range(number))

    def counted(name: str) -> None:
        plain = getattr(LocalStore, name)

        def call(store: LocalStore, *arguments: Any) -> Any:
            if store._folder.startswith(str(far)) and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(store, *arguments)

        setattr(LocalStore, name, call)

    for name in ("put", "delete", "link"):
        counted(name)
