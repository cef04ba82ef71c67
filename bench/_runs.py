"""Recorded runs: small transformers trained on real text, with a fault or without, and what mementum sees at each step.

Each is one file, `bench/out/anomalies/FAMILY-NUMBER.npz` with the fault and `FAMILY-NUMBER-twin.npz` without: arrays by
step, from 1 on (`losses` as they were, `state_finite`, `state_sound`, and the fields of `Vitals`, NaN for None), its
setup (with the onset) as JSON, and a digest of all that decides what it does, by which a file is used again or not."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _faults import FAULTS, Fault, Live
from torch import Tensor, nn
from torch.nn import functional as F

from mementum.perceive.gradients import Gradients
from mementum.perceive.vitals import VitalSigns
from mementum.records import Vitals, record

VERSION = 2  # of how runs are made: another one makes all of them anew
OUT = Path(__file__).resolve().parent / "out" / "anomalies"
VOCABULARY = 128  # of 7-bit characters; all others are one of them
TEXT_SIZE = 2_000_000  # bytes of text, of which a run reads a tenth
SAMPLE_STREAM, FAULT_STREAM = 1, 2  # each with a generator of its own: a fault draws nothing that its twin draws
LARGE = 2.0**64  # a float32 whose square is infinite: of a weight `execute.finite` takes it for not finite
DEAD_STEPS = 130  # after the first loss that is no number: nothing more happens, and a run ends
FLAGS = ("finite", "loss_finite")
NUMBERS = tuple(
    one.name for one in fields(Vitals) if one.name not in ("step", "at_s", "held_back", *FLAGS)
)  # all steps are made
Array = np.ndarray[tuple[int], np.dtype[Any]]


@record
class Setup:
    """One run and its twin: the same but for `faulty`. `onset`: the first step of the fault; 0 < severity <= 1."""

    name: str
    family: str
    kind: str
    seed: int
    onset: int
    steps: int
    severity: float
    lasts: int  # steps, of those faults that end
    optimizer: str = "adamw"
    lr: float = 2e-3
    clip: float | None = None
    warm_up: int = 50
    cosine: bool = False
    batch: int = 8
    width: int = 32
    context: int = 48
    layers: int = 2
    drift: bool = False

    def digest(self) -> str:
        """Stands for everything that decides what a run does."""
        fault = inspect.getsource(FAULTS[self.family])
        words = json.dumps([VERSION, asdict(self), fault, hashlib.sha256(text().numpy().tobytes()).hexdigest()])
        return hashlib.sha256(words.encode()).hexdigest()


class Block(nn.Module):
    """Attention with one head and a feed-forward layer, each normalised before it."""

    mask: Tensor

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.register_buffer("mask", torch.full((context, context), -1e9).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.before(x)).chunk(3, 2)
        scores = torch.baddbmm(self.mask, query, key.transpose(1, 2), alpha=1 / math.sqrt(x.shape[2]))
        x = x + self.mix(scores.softmax(2) @ value)
        mixed: Tensor = x + self.down(F.relu(self.up(self.between(x))))
        return mixed


class Transformer(nn.Module):
    """A decoder: bytes (rows, context) to logits (rows, context, vocabulary)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.symbols = nn.Embedding(VOCABULARY, setup.width)
        self.places = nn.Parameter(0.02 * torch.randn(setup.context, setup.width))
        self.blocks = nn.Sequential(*(Block(setup.width, setup.context) for _ in range(setup.layers)))
        self.last, self.out = nn.LayerNorm(setup.width), nn.Linear(setup.width, VOCABULARY)

    def forward(self, symbols: Tensor) -> Tensor:
        logits: Tensor = self.out(self.last(self.blocks(self.symbols(symbols) + self.places)))
        return logits


@cache
def text() -> Tensor:
    """Source of Python's standard library, as symbols below 128: int64 (TEXT_SIZE,)."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += path.read_bytes()
        if len(found) >= TEXT_SIZE:
            break
    return torch.from_numpy(np.frombuffer(bytes(found[:TEXT_SIZE]), np.uint8).clip(max=127).astype(np.int64))


def stream(setup: Setup, which: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * setup.seed + which)


def sample(setup: Setup, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets: int64 (batch, context) each."""
    symbols = text()
    starts = torch.randint(len(symbols) - setup.context - 1, (setup.batch, 1), generator=draw)
    rows = symbols[starts + torch.arange(setup.context + 1)]
    return rows[:, :-1], rows[:, 1:]


def make_optimizer(setup: Setup, parameters: list[Tensor]) -> torch.optim.Optimizer:
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=setup.lr, momentum=0.9, fused=True)
    return torch.optim.AdamW(parameters, lr=setup.lr, weight_decay=0.01, fused=True)


def planned_lr(setup: Setup, step: int) -> float:
    """Warm-up, then constant or down a cosine to a tenth."""
    lr = setup.lr * min(step / setup.warm_up, 1.0)
    return lr * (0.55 + 0.45 * math.cos(math.pi * step / setup.steps)) if setup.cosine else lr


def train(setup: Setup, *, faulty: bool) -> dict[str, Array]:
    """What was seen of a run, step by step. On one thread, so that a machine can do as many as it has cores.

    The product's own eyes see it, with their defaults. They are not held to a share of the time: a step here takes
    milliseconds and a reading a part of one, which is as much as thousands of times larger models have to spare."""
    torch.manual_seed(setup.seed)
    model = Transformer(setup)
    parameters: list[Tensor] = list(model.parameters())
    optimizer = make_optimizer(setup, parameters)
    live = Live(model=model, parameters=parameters, optimizer=optimizer, draw=stream(setup, FAULT_STREAM))
    fault: Fault = FAULTS[setup.family](setup, live, faulty=faulty)
    names = {id(one): name.rpartition(".")[0] for name, one in model.named_parameters()}
    signs, gradients, samples = VitalSigns(), Gradients({"optimizer": optimizer}, names), stream(setup, SAMPLE_STREAM)
    seen: list[Vitals] = []
    losses: list[float] = []
    weights: list[float] = []
    moments: list[float] = []
    dead = 0
    for step in range(1, setup.steps + 1):
        lr = fault.lr(step, planned_lr(setup, step))
        for group in optimizer.param_groups:
            group["lr"] = lr
        fault.before(step)
        loss = backward(model, fault, step, *fault.data(step, *sample(setup, samples)))
        norm = None
        fault.gradients(step)
        if fault.clips(step) is not None:
            norm = nn.utils.clip_grad_norm_(parameters, fault.clips(step) or 0.0)
        optimizer.step()
        fault.after(step)
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        weights.append(largest_of(parameters))
        moments.append(largest_of(moments_of(optimizer)))
        seen.append(signs.observe(step, at_s=float(step), loss=loss, grad_norm=norm, lr=lr, reading=gradients.take()))
        dead = 0 if math.isfinite(loss) else dead + 1
        if dead >= DEAD_STEPS:
            break
    gradients.close()
    finite = np.isfinite(weights) & np.isfinite(moments)
    states = {"state_finite": finite, "state_sound": finite & (np.array(weights) < LARGE)}
    return {"losses": np.array(losses), **states} | columns(seen)


def backward(model: nn.Module, fault: Fault, step: int, inputs: Tensor, targets: Tensor) -> float:
    """Gradients of a step, over as many parts of its batch as are accumulated, and its loss."""
    parts, divides = fault.accumulates(step)
    total = 0.0
    for some, wanted in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        loss = F.cross_entropy(model(some).flatten(0, 1), wanted.flatten())
        (fault.loss(step, loss) / (parts if divides else 1)).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach()) / parts
    return total


def largest_of(tensors: list[Tensor]) -> float:
    """The largest of all numbers, by size; NaN if one is."""
    norms = torch._foreach_norm([one.detach() for one in tensors], ord=float("inf"))
    return float(torch.stack(norms).max())


def moments_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def columns(seen: list[Vitals]) -> dict[str, Array]:
    """One array of each field of `Vitals`; NaN for None."""
    numbers = {
        name: np.array([np.nan if (value := getattr(one, name)) is None else value for one in seen]) for name in NUMBERS
    }
    return numbers | {name: np.array([getattr(one, name) for one in seen]) for name in FLAGS}


def vitals_of(run: Mapping[str, Array]) -> list[Vitals]:
    """What `columns` was made of, steps from 1 on."""
    numbers = {name: [None if value != value else value for value in run[name].tolist()] for name in NUMBERS}
    flags = {name: run[name].tolist() for name in FLAGS}
    return [
        Vitals(
            step=place + 1,
            at_s=float(place + 1),
            **{name: values[place] for name, values in (numbers | flags).items()},
        )
        for place in range(len(flags["finite"]))
    ]


def path_of(setup: Setup, folder: Path, *, faulty: bool) -> Path:
    return folder / f"{setup.name}{'' if faulty else '-twin'}.npz"


def stored(setup: Setup, folder: Path, *, faulty: bool) -> dict[str, Array] | None:
    """A run that was recorded before; None where there is none, or one of another setup."""
    try:
        with np.load(path_of(setup, folder, faulty=faulty)) as file:
            found = dict(file)
    except FileNotFoundError:
        return None
    return found if str(found.pop("digest")) == setup.digest() else None


def begin_process() -> None:
    """What a process of its own for runs begins with. Tiny numbers would take a hundred times as long as others."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def run(setup: Setup, folder: Path, *, faulty: bool) -> None:
    """Train it and keep what was seen. It is written beside and renamed: whenever it is killed, a file is whole."""
    recorded = train(setup, faulty=faulty)
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(setup, folder, faulty=faulty)
    beside = path.with_name(f".{path.stem}-{os.getpid()}.part.npz")
    described = {"digest": np.array(setup.digest()), "setup": np.array(json.dumps(asdict(setup)))}
    np.savez_compressed(beside, **recorded, **described)  # type: ignore[arg-type]
    beside.replace(path)
