"""A training whose checkpoints are weighed: a small GPT on characters of real text."""

from __future__ import annotations

from typing import Protocol

import torch
from _model import Gpt, Shape
from _runs import VOCABULARY, text
from torch.func import functional_call
from torch.nn import functional as F

from mementum.records import record


class Training(Protocol):
    """A model with its optimizer; `step` is one whole training step, and gives the loss."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def step(self) -> float: ...


@record
class Sizes:
    """Of a GPT on characters, and of its batches."""

    width: int
    layers: int
    rows: int
    length: int


MIDDLE = Sizes(width=192, layers=4, rows=4, length=48)  # 1.8 M parameters, 22 MB of state in fp32
SMALL = Sizes(width=96, layers=3, rows=2, length=32)  # 0.36 M parameters, 4.4 MB of state


class Characters:
    """A GPT that learns the source of Python's standard library, character by character, with AdamW.

    Whatever its weights are, it computes in fp32: with a processor that has no bf16 that is ten times as fast."""

    def __init__(self, sizes: Sizes, *, dtype: torch.dtype = torch.float32, lr: float = 3e-4) -> None:
        torch.manual_seed(9)
        shape = Shape(
            vocabulary=VOCABULARY, width=sizes.width, layers=sizes.layers, heads=4, positions=max(64, sizes.length)
        )
        self.model: torch.nn.Module = Gpt(shape).to(dtype)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=True)
        self._sizes, self._draw = sizes, torch.Generator().manual_seed(9)

    def step(self) -> float:
        symbols, sizes = text(), self._sizes
        starts = torch.randint(len(symbols) - sizes.length - 1, (sizes.rows, 1), generator=self._draw)
        rows = symbols[starts + torch.arange(sizes.length + 1)]
        wide = {name: parameter.float() for name, parameter in self.model.named_parameters()}
        scores = functional_call(self.model, wide, (rows[:, :-1],))
        loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def untouched_share(training: Training) -> float:
    """The part of the optimizer's numbers that no gradient has reached yet: zeros, which any codec makes small."""
    zeros = total = 0
    for state in training.optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value) and value.dim():
                zeros += int((value == 0).sum())
                total += value.numel()
    return zeros / total
