"""The training that is killed: a small deterministic loop that tells all it does through a pipe, as it happens."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mementum import open_run
from mementum.data import ElasticSampler, Keyed
from mementum.events import Committed, Event, Failed, PassedOver, PhaseBegan, PhaseEnded, Removed, SaveSkipped

TASK = "kill"
SEED = 20261130
STEPS = 60
EVERY_STEPS = 3
KEEP_LAST = 2  # so that from the third save on each one removes an older one
SAMPLES, BATCH = 100, 8  # 13 steps an epoch, the last one shorter: saves fall into epochs and on their ends
FEATURES, WIDTH, CLASSES = 32, 1024, 4  # 1.1 million parameters: a save takes milliseconds, long enough to be hit
CATCH_UP_STEPS = 9  # the disk may fall behind for that long, so that saves overlap; then it is waited for
NOTHING = "-"  # the word for an empty id


class Wire:
    """The pipe to the parent: a line an event, unbuffered and shorter than PIPE_BUF, so that none is torn or lost."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A loader's worker that outlives its killed parent must not keep the pipe open.
        os.register_at_fork(after_in_child=self.close)

    def tell(self, *words: object) -> None:
        os.write(self._descriptor, f"{time.monotonic_ns()} {' '.join(map(str, words))}\n".encode())

    def hear(self, event: Event) -> None:
        """A listener for `open_run`."""
        match event:
            case PhaseBegan(phase=phase, id=id):
                self.tell("began", phase, id or NOTHING)
            case PhaseEnded(phase=phase, id=id):
                self.tell("ended", phase, id or NOTHING)
            case Committed(id=id, step=step):
                self.tell("committed", id, step)
            case Removed(id=id):
                self.tell("removed", id)
            case SaveSkipped(step=step):
                self.tell("skipped", step)
            case Failed() | PassedOver():
                self.tell("trouble", repr(event)[:1000].replace("\n", " "))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    """Samples with augmentation that draws from the global generators of python, numpy and torch."""

    def __init__(self) -> None:
        self._features = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(SEED))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self._features[index] * random.uniform(0.8, 1.2) + 0.1 * torch.randn(FEATURES)
        return sample.roll(int(np.random.randint(FEATURES))), index % CLASSES


class Pupil:
    """All that is trained: two models that learn from one loss, each with its own optimizer and schedule."""

    def __init__(self) -> None:
        random.seed(SEED)
        np.random.seed(SEED)
        torch.manual_seed(SEED)
        body = nn.Sequential(
            nn.Linear(FEATURES, WIDTH),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(WIDTH, WIDTH),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, FEATURES),
        )
        head = nn.Sequential(nn.Dropout(0.1), nn.Linear(FEATURES, CLASSES))
        self.models = {"body": body, "head": head}
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "adamw": torch.optim.AdamW(body.parameters(), lr=1e-3),
            "sgd": torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9),
        }
        self.schedulers: dict[str, torch.optim.lr_scheduler.LRScheduler] = {
            "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizers["adamw"], STEPS),
            "staircase": torch.optim.lr_scheduler.StepLR(self.optimizers["sgd"], step_size=7, gamma=0.8),
        }
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
        self.generator = torch.Generator().manual_seed(SEED)
        data = Keyed(Noisy(), seed=SEED)
        sampler = ElasticSampler(data, seed=SEED)
        self.loader: DataLoader[Any] = DataLoader(
            data, batch_size=BATCH, sampler=sampler, num_workers=1, multiprocessing_context="fork"
        )

    def learn(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step on float32 (batch, FEATURES) and int64 (batch,); the loss."""
        mixed = np.random.beta(0.4, 0.4)
        features = mixed * features + (1 - mixed) * features.flip(0)
        features = features + 0.01 * torch.randn(features.shape, generator=self.generator)
        if random.random() < 0.5:
            features = -features
        loss = nn.functional.cross_entropy(self.models["head"](self.models["body"](features)), labels)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer)
        self.scaler.update()
        for scheduler in self.schedulers.values():
            scheduler.step()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        return loss

    def state(self) -> dict[str, Any]:
        """Everything that must come back, the generators of the process included."""
        parts: dict[str, Any] = {**self.models, **self.optimizers, **self.schedulers, "scaler": self.scaler}
        return {
            **{name: part.state_dict() for name, part in parts.items()},
            "generator": self.generator.get_state(),
            "rng": {
                "python": random.getstate(),
                "numpy": np.random.get_state(legacy=False),
                "torch": torch.get_rng_state(),
            },
        }


def train(root: str, wire: Wire) -> None:
    """Train to the end from wherever the last attempt stopped."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    pupil = Pupil()
    with open_run(
        root,
        task=TASK,
        model=pupil.models,
        optimizer=pupil.optimizers,
        scheduler=pupil.schedulers,
        scaler=pupil.scaler,
        data=pupil.loader,
        state={"generator": pupil.generator},
        every_steps=EVERY_STEPS,
        keep_last=KEEP_LAST,
        config={"keep_best": 0},
        codec="planes+zstd:1",
        on_event=wire.hear,
    ) as run:
        wire.tell("opened", run.step, run.resumed.tier if run.resumed is not None else "none")
        for step, (features, labels) in run.steps(pupil.loader, STEPS):
            loss = pupil.learn(features, labels)
            run.values["seen"] = run.values.get("seen", 0) + len(labels)
            wire.tell("step", step, float(loss.item()).hex(), run.values["seen"])
            if step % CATCH_UP_STEPS == 0:
                run.wait()
            run.record(loss=loss)
    live = {"pupil": pupil.state(), "values": run.values, "epoch": run.epoch, "step": run.step}
    for path, digest in digests(live):
        wire.tell("live", path, digest)
    wire.tell("done")


def digests(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """A path and a digest for every leaf of a state; tensors and arrays by their bytes, dtype and shape."""
    if isinstance(value, Mapping):
        for key in value:
            yield from digests(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in zip(itertools.count(), value, strict=False):
            yield from digests(item, f"{path}/{number}")
    else:
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        is_array = isinstance(array, np.ndarray)
        bits = array.tobytes() + f"{array.dtype} {array.shape}".encode() if is_array else repr(array).encode()
        yield path.replace(" ", "_"), blake3(bits).hexdigest()[:32]


if __name__ == "__main__":
    train(sys.stdin.readline().rstrip("\n"), Wire(int(sys.argv[1])))
