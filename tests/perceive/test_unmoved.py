"""Tests that what is watched comes out bit for bit as if nobody had looked."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import mementum
from mementum.run import Run

Trained = tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]], torch.Tensor]


@contextmanager
def watched(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Run]:
    with mementum.open_run(folder, task="t", model=model, optimizer=optimizer, every_steps=10**6) as run:
        yield run


def train(folder: Path | None, kind: str) -> Trained:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Linear(64, 96), nn.Dropout(0.2), nn.Tanh(), nn.Linear(96, 2000))
    fused = kind == "fused"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=fused, foreach=kind == "foreach")

    def steps(run: Run | None) -> None:
        for _ in range(20):
            tokens = torch.randint(2000, (8, 5))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            if run is not None:
                run.record(loss=loss)

    if folder is None:
        steps(None)
    else:
        with watched(folder, model, optimizer) as run:
            steps(run)
    moments = dict(enumerate(optimizer.state.values()))
    return dict(model.state_dict()), copy.deepcopy(moments), torch.get_rng_state()


@pytest.mark.parametrize("kind", ["plain", "foreach", "fused"])
def test_twenty_steps_give_the_same_bits(tmp_path: Path, kind: str) -> None:
    weights, moments, rng = train(None, kind)
    watched_weights, watched_moments, watched_rng = train(tmp_path, kind)
    assert torch.equal(rng, watched_rng)
    for name, weight in weights.items():
        assert torch.equal(weight, watched_weights[name]), name
    for number, state in moments.items():
        for name, value in state.items():
            assert torch.equal(value, watched_moments[number][name]), (number, name)
