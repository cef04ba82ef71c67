"""Every optimizer and every scheduler that torch exports, found by inspection: 20 steps, a save and 20 more are 40."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from trips import bits, resume, save_now

STEPS = 20  # before the save, and after it

# Names in torch's lists that are no optimizer or scheduler of their own. The lists may not grow: what torch adds is
# tested, or a person decides why not.
NO_OPTIMIZER = {
    "Optimizer": "the class that all others derive from; it has no step",
    "lr_scheduler": "a module",
    "swa_utils": "a module; its AveragedModel is a model, its SWALR is among the schedulers here",
    "swap_in_optimizer_params_and_state": "a function",
}
NO_SCHEDULER = {"LRScheduler": "the class that all others derive from; it has no schedule"}

MATRICES_ONLY = {"Muon"}
SPARSE_ONLY = {"SparseAdam"}


def of_kind(module: Any, kind: type) -> set[str]:
    found = {name for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, kind)}
    return {name for name in found if not name.startswith("_")}


LISTED_OPTIMIZERS = of_kind(torch.optim, torch.optim.Optimizer) | set(torch.optim.__all__)
LISTED_SCHEDULERS = of_kind(schedulers, schedulers.LRScheduler) | set(schedulers.__all__)
LISTED_SCHEDULERS |= of_kind(torch.optim.swa_utils, schedulers.LRScheduler)
OPTIMIZERS = sorted(LISTED_OPTIMIZERS - NO_OPTIMIZER.keys())
SCHEDULERS = sorted(LISTED_SCHEDULERS - NO_SCHEDULER.keys())


def test_nothing_is_left_out_but_what_is_no_optimizer_and_no_scheduler() -> None:
    assert sorted(NO_OPTIMIZER) == ["Optimizer", "lr_scheduler", "swa_utils", "swap_in_optimizer_params_and_state"]
    assert sorted(NO_SCHEDULER) == ["LRScheduler"]
    assert {"Adafactor", "Adam", "AdamW", "LBFGS", "SGD", "SparseAdam"} <= set(OPTIMIZERS)
    assert {"ChainedScheduler", "OneCycleLR", "ReduceLROnPlateau", "SWALR"} <= set(SCHEDULERS)


def model_for(name: str) -> nn.Module:
    if name in SPARSE_ONLY:
        return nn.Embedding(6, 3, sparse=True)
    bias = name not in MATRICES_ONLY
    return nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))


def all_optimizers() -> dict[str, Any]:
    """One model and one optimizer for each; the same at every call."""
    torch.manual_seed(0)
    models = {name: model_for(name) for name in OPTIMIZERS}
    made = {f"{name}.o": getattr(torch.optim, name)(models[name].parameters(), lr=0.01) for name in OPTIMIZERS}
    return {"model": models, "optimizer": made}


def train(made: dict[str, Any], numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        rows, words = torch.randn(4, 3, generator=generator), torch.randint(6, (4,), generator=generator)
        for name, model in made["model"].items():
            optimizer, inputs = made["optimizer"][f"{name}.o"], words if name in SPARSE_ONLY else rows

            def closure(optimizer: Any = optimizer, model: Any = model, inputs: torch.Tensor = inputs) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(inputs) - 1).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)


@pytest.fixture(scope="module")
def straight_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    root = tmp_path_factory.mktemp("optimizers")
    straight = all_optimizers()
    train(straight, range(STEPS))
    save_now(root, straight)
    train(straight, range(STEPS, 2 * STEPS))
    resumed = all_optimizers()
    resume(root, resumed)
    train(resumed, range(STEPS, 2 * STEPS))
    return straight, resumed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(straight_and_resumed: Any, name: str) -> None:
    straight, resumed = straight_and_resumed
    begun = all_optimizers()["model"][name]
    assert bits(straight["model"][name].state_dict()) != bits(begun.state_dict())
    assert bits(resumed["model"][name].state_dict()) == bits(straight["model"][name].state_dict())
    assert bits(resumed["optimizer"][f"{name}.o"].state_dict()) == bits(straight["optimizer"][f"{name}.o"].state_dict())


def scheduler_for(name: str, optimizer: Any) -> Any:
    """The scheduler with arguments of its own; those that need none are made without."""
    wishes: dict[str, dict[str, Any]] = {
        "LambdaLR": {"lr_lambda": lambda epoch: 0.95**epoch},
        "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.95},
        "StepLR": {"step_size": 6},
        "MultiStepLR": {"milestones": [3, 19, 20, 21, 30]},
        "ExponentialLR": {"gamma": 0.95},
        "CosineAnnealingLR": {"T_max": 15},
        "CosineAnnealingWarmRestarts": {"T_0": 7, "T_mult": 2},
        "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 6},
        "OneCycleLR": {"max_lr": 0.2, "total_steps": 2 * STEPS + 1},
        "ReduceLROnPlateau": {"patience": 2, "cooldown": 1},
        "ConstantLR": {"total_iters": 23},
        "LinearLR": {"total_iters": 30},
        "PolynomialLR": {"total_iters": 35, "power": 2.0},
        "SWALR": {"swa_lr": 0.05, "anneal_epochs": 30},
    }
    if name in ("SequentialLR", "ChainedScheduler"):
        parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=30), schedulers.StepLR(optimizer, 4, gamma=0.8)]
        if name == "ChainedScheduler":
            return schedulers.ChainedScheduler(parts, optimizer)
        return schedulers.SequentialLR(optimizer, parts, milestones=[STEPS + 3])
    kind = getattr(schedulers, name, None) or getattr(torch.optim.swa_utils, name)
    return kind(optimizer, **wishes.get(name, {}))


def all_schedulers() -> dict[str, Any]:
    weights = nn.ParameterDict({name: nn.Parameter(torch.ones(1)) for name in SCHEDULERS})
    optimizers = {name: torch.optim.SGD([weights[name]], lr=0.1, momentum=0.9) for name in SCHEDULERS}
    made = {f"{name}.s": scheduler_for(name, optimizer) for name, optimizer in optimizers.items()}
    return {"model": weights, "optimizer": optimizers, "scheduler": made}


def rates(made: dict[str, Any], numbers: range) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    for number in numbers:
        for name in SCHEDULERS:
            made["optimizer"][name].step()
            scheduler = made["scheduler"][f"{name}.s"]
            scheduler.step(*([1.0 / (1 + number % 4)] if name == "ReduceLROnPlateau" else []))
            seen[name].append(float(made["optimizer"][name].param_groups[0]["lr"]))
    return seen


@pytest.mark.filterwarnings("ignore:.*epoch parameter in.*:UserWarning")
def test_schedulers_go_on_bit_for_bit(tmp_path: Path) -> None:
    straight = all_schedulers()
    rates(straight, range(STEPS))
    save_now(tmp_path, straight)
    expected = rates(straight, range(STEPS, 2 * STEPS))
    resumed = all_schedulers()
    resume(tmp_path, resumed)
    assert rates(resumed, range(STEPS, 2 * STEPS)) == expected
    for name in SCHEDULERS:
        old, new = straight["scheduler"][f"{name}.s"], resumed["scheduler"][f"{name}.s"]
        assert bits(new.state_dict()) == bits(old.state_dict()), name
        assert len(set(expected[name])) > 1 or name == "ReduceLROnPlateau", name
