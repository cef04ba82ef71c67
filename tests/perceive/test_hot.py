"""Tests of which rows carry a norm, and of how near the estimates come that follow them."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from torch import nn

from mementum.perceive import hot
from mementum.perceive.gradients import Gradients

TOKENS, WIDTH = 4000, 64


def table_steps(draw: str, steps: int = 200) -> tuple[list[float], Gradients]:
    """An embedding of which each step's batch uses a few rows; relative errors of the norm that was read."""
    generator = torch.Generator().manual_seed(7)
    table = nn.Embedding(TOKENS, WIDTH)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.0)
    zipf = 1 / torch.arange(1, TOKENS + 1).float()
    chances = zipf[torch.randperm(TOKENS, generator=generator)] if draw == "zipf" else torch.ones(TOKENS)
    gradients, errors = Gradients({"optimizer": optimizer}, {}, full_every=10), list[float]()
    for _ in range(steps):
        optimizer.zero_grad()
        batch = torch.multinomial(chances, 128, replacement=True, generator=generator)
        (table(batch) * torch.randn(128, WIDTH, generator=generator)).sum().backward()
        optimizer.step()
        reading = gradients.take()
        assert reading is not None
        assert reading.norm is not None
        errors.append(abs(reading.norm / float(table.weight.grad.norm()) - 1))  # type: ignore[union-attr]
    gradients.close()
    return errors, gradients


@pytest.mark.parametrize(("draw", "limit"), [("zipf", 0.12), ("uniform", 0.05)])
def test_of_an_embedding_the_estimate_is_near(draw: str, limit: float) -> None:
    errors, gradients = table_steps(draw)
    between = [error for step, error in enumerate(errors) if step > 60 and error > 1e-5]  # not those read in full
    assert len(between) > 100
    assert median(between) < limit
    (sampling,) = gradients.sampling()
    assert sampling.error is not None
    assert sampling.error < 2 * limit


def test_the_hottest_rows_are_found() -> None:
    gradient = torch.zeros(1000, 300)
    gradient[[3, 500, 999]] = 2.0
    full, hottest, rows = hot.find(gradient)
    assert len(rows) == hot.count_of(gradient.shape) == hot.READ // 300
    assert {3, 500, 999} <= set(rows.tolist())
    assert float(full) == float(hottest) == pytest.approx(60.0)
    assert float(hot.norm(gradient, torch.tensor([3, 4]))) == pytest.approx(2 * 300**0.5)
    halves = torch.full((4, 300), 60_000.0, dtype=torch.float16)
    assert float(hot.norm(halves, torch.tensor([3]))) == pytest.approx(60_000 * 300**0.5, rel=1e-3)


@pytest.mark.parametrize("shape", [(100,), (8, 16, 3), (100, 64), (1000, 0), (100_000, 20_000)])
def test_where_rows_are_not_worth_it(shape: tuple[int, ...]) -> None:
    assert hot.count_of(shape) == 0


def test_a_sample_that_tells_nothing_raises_no_ratio() -> None:
    """All but a few rows are next to nothing, and they are others at each step, as of a head that is very sure."""
    generator = torch.Generator().manual_seed(3)
    table, bias = nn.Parameter(torch.zeros(TOKENS, WIDTH)), nn.Parameter(torch.zeros(WIDTH))
    optimizer = torch.optim.SGD([table, bias], lr=0.0)
    gradients = Gradients({"optimizer": optimizer}, {id(table): "head", id(bias): "head"}, full_every=10)
    ratios, errors = list[float](), list[float]()
    for _ in range(120):
        table.grad = 1e-12 * torch.randn(TOKENS, WIDTH, generator=generator)
        table.grad[torch.randint(TOKENS, (40,), generator=generator)] = 1.0
        bias.grad = torch.full_like(bias, 0.1)
        optimizer.step()
        reading = gradients.take()
        assert reading is not None
        assert reading.norm is not None
        ratios.append(reading.layer_ratio or 0.0)
        errors.append(abs(reading.norm / float(table.grad.norm()) - 1))
    gradients.close()
    assert max(ratios) < 2
    assert min(ratios[40:]) > 0.5
    assert max(errors[30:]) < 0.1
