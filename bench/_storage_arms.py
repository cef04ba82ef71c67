"""Ways to keep a training's checkpoints side by side, each in a folder of its own, weighed as the disk has them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from _measure import sync_file
from _savers import WhenTold
from _storage_trainings import Training
from safetensors.torch import save_model
from torch.distributed.checkpoint.state_dict import get_state_dict

import mementum
from mementum import events
from mementum.execute import priority
from mementum.records import Granularity, Save, Situation

WAIT_S = 300.0  # for one save to be durable, compressed and placed, after which it is a failure
BLOCK = 512  # bytes of what stat calls a block, whatever the file system's own
SLEEP_S = 0.01  # that a sleep of the paced clock really takes


class Paced:
    """A clock of the benchmark: a day passes when it says so. Sleeps are short, and move nothing."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._now_s, self._passed_s = now_s, 0.0

    def now(self) -> float:
        return self._now_s + self._passed_s

    def monotonic(self) -> float:
        return self._passed_s

    def sleep(self, duration_s: float) -> None:
        time.sleep(min(duration_s, SLEEP_S))

    def advance(self, duration_s: float) -> None:
        self._passed_s += duration_s


class Told(WhenTold):
    """The same policy, which saves as much of the state as it is told to."""

    granularity = Granularity.FULL

    def decide(self, situation: Situation) -> Save | None:
        wanted, self.wanted = self.wanted, False
        return Save(reason="the benchmark's turn", granularity=self.granularity) if wanted else None


class Ours:
    """A run of the product with settings of its own. What it writes is compressed and placed before it goes on."""

    def __init__(
        self,
        training: Training,
        folder: Path,
        config: Mapping[str, Any],
        *,
        codec: str = "raw",
        decides: bool = False,
        clock: Paced | None = None,
        on_event: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        """`decides`: saves when it wants to, and not when it is told to."""
        # Compressing at idle priority gets no turn beside others that compute: it changes when bytes are, not which.
        priority.idle = priority.lower  # type: ignore[assignment]
        self.folder, self.told = folder, Told()
        self.wrong: list[str] = []
        self.committed: list[events.Committed] = []
        self.kept_in_memory: list[int] = []  # steps
        self.bases = 0  # checkpoints that were coded against another one
        self.run = mementum.open_run(
            folder,
            task="storage",
            model=training.model,
            optimizer=training.optimizer,
            policy=None if decides else self.told,
            config=dict(config),
            codec=codec,
            resume="never",
            on_event=(self._hear, on_event),
            clock=clock,
        )

    def save(self, loss: float | None, *, granularity: Granularity = Granularity.FULL) -> None:
        """Save the state as it is now, and wait until nothing is left to be done about it."""
        self.told.granularity, self.told.wanted = granularity, True
        self.run.record(loss=loss)
        self.settle()

    def settle(self) -> None:
        background = self.run._background
        waits = (
            lambda: self.run.wait(timeout_s=WAIT_S),
            lambda: background._compressing._settler.drain(WAIT_S),
            lambda: all(line.placer.drain(WAIT_S) for line in background._forwarding._lines),
            lambda: self.run.wait(timeout_s=WAIT_S),  # facts of what was placed
        )
        if not all(wait() for wait in waits):
            raise TimeoutError(f"{self.folder}: a save was still on its way after {WAIT_S:.0f} s")
        if self.wrong:
            raise RuntimeError(self.wrong[0])

    def close(self) -> None:
        self.settle()
        self.run.close()

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                self.committed.append(event)
            case events.SnapshotKept():
                self.kept_in_memory.append(event.step)
            case events.Settled():
                self.bases += event.base is not None
            case events.Failed() | events.Unplaced():
                self.wrong.append(repr(event))


def torch_save(training: Training, path: Path) -> None:
    """`torch.save` of everything, and fsync."""
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save({**state, "rng": torch.get_rng_state()}, path)
    sync_file(path)


def dcp_save(training: Training, path: Path) -> None:
    """`dcp.save` of everything, as its own guides take it."""
    model, optimizer = get_state_dict(training.model, training.optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        dcp.save({"model": model, "optimizer": optimizer}, storage_writer=dcp.FileSystemWriter(path), no_dist=True)


def safetensors_save(training: Training, path: Path) -> None:
    """Weights as safetensors, and `torch.save` of the optimizer."""
    path.mkdir()
    save_model(training.model, str(path / "model.safetensors"))
    torch.save(training.optimizer.state_dict(), path / "optimizer.pt")
    for file in path.iterdir():
        sync_file(file)


def adapters_save(training: Training, path: Path) -> None:
    """`torch.save` of what is trained alone: less content, as the frozen weights must come from somewhere else."""
    names = {name for name, parameter in training.model.named_parameters() if parameter.requires_grad}
    weights = {name: value for name, value in training.model.state_dict().items() if name in names}
    torch.save({"model": weights, "optimizer": training.optimizer.state_dict()}, path)
    sync_file(path)


PEERS = {"dcp_save": dcp_save, "safetensors": safetensors_save}


def du(paths: Sequence[Path]) -> int:
    """Bytes that files and folders take on the disk, all that lies below included; a file with several names once."""
    every = {one for path in paths for one in (path, *path.rglob("*"))}
    stats = [one.lstat() for one in every]
    return sum({(stat.st_dev, stat.st_ino): stat.st_blocks * BLOCK for stat in stats}.values())


def checkpoints(root: Path) -> list[Path]:
    """The folders of checkpoints below a root, or a tier, oldest first."""
    return sorted(root.glob("*/*/step_*"))


def written() -> int:
    """Bytes that this process has had written so far, as the kernel counts them: journals and catalogs as well."""
    with open("/proc/self/io", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("write_bytes:"))
    return int(line.split()[1])
