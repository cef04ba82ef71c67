"""Overflows of a loss scale: the optimizer leaves out the step, and the state is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mementum
from mementum.events import Diagnosed, Event
from mementum.records import Health

STEPS, PATIENCE = 60, 16


def train(root: Path, overflows: range, *, given: str, fused: bool = False) -> list[Diagnosed]:
    """A run whose gradients, times the scale, are infinite at these steps; what was told of its health."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", growth_interval=1000)
    ways: dict[str, dict[str, Any]] = {"scaler": {"scaler": scaler}, "state": {"state": {"s": scaler}}, "not": {}}
    told: list[Diagnosed] = []

    def hear(event: Event) -> None:
        if isinstance(event, Diagnosed):
            told.append(event)

    with mementum.open_run(root, task="t", model=model, optimizer=optimizer, on_event=hear, **ways[given]) as run:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            inputs = torch.randn(8, 4)
            loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
            before = model.weight.detach().clone()
            scaler.scale(loss * (1e36 if step in overflows else 1.0)).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update(2.0**16)  # as large as ever, so that a row of overflows does not end by itself
            assert torch.equal(before, model.weight) == (step in overflows)
            run.record(loss=loss.item(), grad_norm=norm)
    return told


@pytest.mark.parametrize(("given", "fused"), [("scaler", False), ("state", False), ("not", False), ("scaler", True)])
def test_a_step_that_is_left_out_leaves_the_state_clean(tmp_path: Path, given: str, fused: bool) -> None:
    assert train(tmp_path, range(20, 20 + PATIENCE - 1), given=given, fused=fused) == []


@pytest.mark.parametrize("given", ["scaler", "not"])
def test_overflows_that_do_not_end_are_a_trouble(tmp_path: Path, given: str) -> None:
    first, *_ = train(tmp_path, range(20, 20 + PATIENCE), given=given)
    assert (first.step, first.diagnosis.health) == (20 + PATIENCE - 1, Health.DIVERGED)
    assert first.diagnosis.why == f"gradients are not finite at {PATIENCE} steps in a row"
    assert first.diagnosis.onset is not None
    assert first.diagnosis.onset <= 20


def test_a_step_that_uses_what_is_not_finite_has_diverged_at_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    told: list[Event] = []
    scaler = torch.amp.GradScaler("cpu")
    with mementum.open_run(
        tmp_path, task="t", model=model, optimizer=optimizer, scaler=scaler, on_event=told.append
    ) as run:
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not None
        model.weight.grad[0, 0] = float("inf")
        optimizer.step()  # beside the scaler
        run.record(loss=1.0, grad_norm=float("inf"))
    (first,) = [event for event in told if isinstance(event, Diagnosed)]
    assert (first.step, first.diagnosis.health) == (1, Health.DIVERGED)
