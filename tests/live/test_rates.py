"""Scaled learning rates: every schedule gives from there on the scaled rates that it would have given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from mementum.live.rates import has_rates, scale

FACTOR = 0.25
MAKERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda opt: schedules.LambdaLR(opt, lambda step: min(1.0, (step + 1) / 4) * 0.97**step),
    "multiplicative": lambda opt: schedules.MultiplicativeLR(opt, lambda step: 0.9),
    "step": lambda opt: schedules.StepLR(opt, 3),
    "multi step": lambda opt: schedules.MultiStepLR(opt, [2, 9]),
    "constant": lambda opt: schedules.ConstantLR(opt, total_iters=8),
    "linear": lambda opt: schedules.LinearLR(opt, total_iters=12),
    "exponential": lambda opt: schedules.ExponentialLR(opt, 0.9),
    "polynomial": lambda opt: schedules.PolynomialLR(opt, total_iters=15, power=2.0),
    "cosine": lambda opt: schedules.CosineAnnealingLR(opt, 9, eta_min=0.01),
    "restarts": lambda opt: schedules.CosineAnnealingWarmRestarts(opt, 4, eta_min=0.01),
    "cyclic": lambda opt: schedules.CyclicLR(opt, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "one cycle": lambda opt: schedules.OneCycleLR(opt, 0.2, total_steps=40, cycle_momentum=False),
    "sequential": lambda opt: schedules.SequentialLR(
        opt, [schedules.LinearLR(opt, total_iters=4), schedules.CosineAnnealingLR(opt, 20, eta_min=0.02)], [4]
    ),
    "chained": lambda opt: schedules.ChainedScheduler([schedules.ExponentialLR(opt, 0.95), schedules.StepLR(opt, 7)]),
    "nested": lambda opt: schedules.ChainedScheduler([MAKERS["sequential"](opt), schedules.ExponentialLR(opt, 0.99)]),
}


def make(lr: Any = 0.1) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    return torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "lr": lr * 3}], lr=lr)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def follow(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[list[float]]:
    seen = []
    with warnings.catch_warnings():
        # SequentialLR itself calls its parts in the way that torch warns of.
        warnings.filterwarnings("ignore", "The epoch parameter in `scheduler.step", UserWarning)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            seen.append(rates(optimizer))
            assert seen[-1] == pytest.approx([float(rate) for rate in scheduler.get_last_lr()], rel=1e-12)
    return seen


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("at", [0, 6])
def test_a_schedule_goes_on_scaled(name: str, at: int) -> None:
    plain, scaled = make(), make()
    first, second = MAKERS[name](plain), MAKERS[name](scaled)
    assert follow(plain, first, at) == follow(scaled, second, at)
    scale([scaled], [second], FACTOR)
    assert rates(scaled) == pytest.approx([rate * FACTOR for rate in rates(plain)])
    assert [float(rate) for rate in second.get_last_lr()] == pytest.approx(rates(scaled))
    wanted = [[rate * FACTOR for rate in row] for row in follow(plain, first, 20)]
    for row, expected in zip(follow(scaled, second, 20), wanted, strict=True):
        assert row == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_dict_carries_the_scaling(name: str) -> None:
    scaled, again = make(), make()
    first, second = MAKERS[name](scaled), MAKERS[name](again)
    follow(scaled, first, 3)
    scale([scaled], [first], FACTOR)
    again.load_state_dict(scaled.state_dict())
    second.load_state_dict(first.state_dict())
    assert follow(again, second, 15) == follow(scaled, first, 15)


def test_a_plateau_goes_down_scaled_to_a_scaled_floor() -> None:
    plain, scaled = make(), make()
    given: dict[str, Any] = {"factor": 0.5, "patience": 1, "min_lr": 0.02, "eps": 0.0075}
    first = schedules.ReduceLROnPlateau(plain, **given)
    second = schedules.ReduceLROnPlateau(scaled, **given)
    scale([scaled], [second], FACTOR)
    for _ in range(12):
        first.step(1.0)
        second.step(1.0)
        assert rates(scaled) == pytest.approx([rate * FACTOR for rate in rates(plain)])
    assert rates(plain)[0] == 0.025  # the step from there to the floor is not above eps, scaled or not
    assert second.default_min_lr == 0.005


def test_a_tensor_is_changed_in_place_and_once() -> None:
    lr = torch.tensor(0.5)
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights], lr=lr)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    scheduler = schedules.ExponentialLR(optimizer, 0.5)
    held = optimizer.param_groups[0]["lr"]
    scale([optimizer, optimizer], [scheduler, scheduler], FACTOR)
    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.125
    assert [rate.item() for rate in scheduler.base_lrs] == [0.125, 0.125]
    optimizer.step()
    scheduler.step()
    assert rates(optimizer) == [0.0625, 0.0625]


def test_a_schedule_and_its_part_given_apart_are_scaled_once() -> None:
    optimizer = make()
    part = schedules.StepLR(optimizer, 2)
    whole = schedules.ChainedScheduler([part])
    scale([optimizer], [whole, part], FACTOR)
    assert part.base_lrs == pytest.approx([0.025, 0.075])
    assert rates(optimizer) == pytest.approx([0.025, 0.075])


def test_a_wrapped_schedule_is_found() -> None:
    class Wrapper:
        def __init__(self, scheduler: Any) -> None:
            self.scheduler, self.holder = scheduler, self

    optimizer = make()
    wrapped = Wrapper(schedules.StepLR(optimizer, 2))
    assert has_rates(wrapped)
    scale([], [wrapped], FACTOR)
    assert wrapped.scheduler.base_lrs == pytest.approx([0.025, 0.075])
    assert rates(optimizer) == pytest.approx([0.1, 0.3])


def test_what_has_no_rates_is_left_alone() -> None:
    class Slotted:
        __slots__ = ("base_lrs",)

    assert not has_rates(object())
    assert not has_rates(Slotted())
    scale([], [object(), Slotted(), None], FACTOR)


def test_no_rate_stays_no_rate_and_one_changes_nothing() -> None:
    optimizer = make()
    optimizer.param_groups[0]["lr"] = None
    scale([optimizer], [], FACTOR)
    assert optimizer.param_groups[0]["lr"] is None
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.075)
    scale([optimizer], [], 1.0)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.075)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_none_is_our_own_mistake(factor: float) -> None:
    with pytest.raises(AssertionError):
        scale([make()], [], factor)
