"""A run of a few kilobytes with every kind of file, block and codec, and what lies in its root afterwards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import mementum
from mementum.catalog.tasks import find
from mementum.live import rng
from mementum.records import Damage, Manifest
from mementum.recover.verify import read_manifest, verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Box, Told, bits

TASK = "tiny"
FILES = ("meta.json", "index-00000.json", "context-00000.json", "model.safetensors", "optimizer.blocks")
CODEC = "planes+zstd:1"  # of what shrinks; what does not stays raw. Compressed as it lands, as the first release did


def things(seed: int) -> dict[str, Any]:
    """Arguments of open_run: objects as at a program's start, other ones for another seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    noise = torch.randint(0, 256, (64,), dtype=torch.uint8)
    box = Box(noise=noise, zeros=torch.zeros(100), count=seed)
    return {"model": model, "optimizer": optimizer, "state": {"box": box}}


def train_once(given: dict[str, Any]) -> None:
    given["optimizer"].zero_grad()
    given["model"](torch.rand(4, 3)).pow(2).mean().backward()
    given["optimizer"].step()


def tiny_run(root: Path, saves: int = 1, *, seed: int = 1, task: str = TASK, **wishes: Any) -> Told:
    """Train and save `saves` times, each durable or given up before the next; what was told."""
    told, given = Told(), things(seed)
    wishes = {"every_steps": 1, "codec": CODEC, "on_event": told, **wishes}
    with patch("mementum.equipping.RAW", wishes["codec"]), mementum.open_run(root, task=task, **given, **wishes) as run:
        for _ in range(saves):
            train_once(given)
            run.record(loss=1.0)
            assert run.wait()
    return told


def live(given: dict[str, Any]) -> dict[str, object]:
    """The bits of all that is live: the objects and the global generators."""
    held = {"model": given["model"], "optimizer": given["optimizer"], **given["state"]}
    return bits({**{name: thing.state_dict() for name, thing in held.items()}, "rng": rng.read()})


def store_of(root: Path, task: str = TASK) -> LocalStore:
    home = find(LocalStore(PosixDisk(), str(root)), task)
    assert home is not None
    return LocalStore(PosixDisk(), f"{root}/{home}")


def home_of(root: Path) -> Path:
    (home,) = root.glob("????????/*_*")
    return home


def folders_of(root: Path) -> list[Path]:
    """Folders of checkpoints that have a manifest, oldest first."""
    return sorted(path.parent for path in root.glob("*/*/step_*/meta.json"))


def damage_of(folder: Path) -> tuple[Damage, ...]:
    """What a deep verification finds in a checkpoint's folder."""
    store = LocalStore(PosixDisk(), str(folder.parent))
    manifest: Manifest | Damage = read_manifest(store, folder.name)
    return (manifest,) if isinstance(manifest, Damage) else verify(store, folder.name, manifest, deep=True)


def unfinished(root: Path) -> list[Path]:
    return sorted(root.rglob("*.tmp"))
