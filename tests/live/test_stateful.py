"""Schedulers, scalers, containers and generators: each comes back in place, and an object that loses state is named."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import mementum
from mementum.errors import StateMismatch, UnsupportedState
from trips import Box, bits, resume, save_now, there_and_back


class Warmup:
    """A callable with state of its own."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return min(1.0, (epoch + 1) / self.length) + self.calls / 1000


def sequential(optimizer: Any) -> Any:
    parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=3), schedulers.StepLR(optimizer, 2, gamma=0.5)]
    return schedulers.SequentialLR(optimizer, parts, milestones=[4])


def chained(optimizer: Any) -> Any:
    parts = [schedulers.ConstantLR(optimizer, 0.1, total_iters=4), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.ChainedScheduler(parts, optimizer)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "LambdaLR, callable object": lambda optimizer: schedulers.LambdaLR(optimizer, Warmup()),
    "MultiplicativeLR": lambda optimizer: schedulers.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "MultiplicativeLR, callable object": lambda optimizer: schedulers.MultiplicativeLR(optimizer, Warmup()),
    "StepLR": lambda optimizer: schedulers.StepLR(optimizer, 2),
    "MultiStepLR": lambda optimizer: schedulers.MultiStepLR(optimizer, [2, 4, 4, 7]),
    "ConstantLR": lambda optimizer: schedulers.ConstantLR(optimizer, total_iters=4),
    "LinearLR": lambda optimizer: schedulers.LinearLR(optimizer, total_iters=8),
    "ExponentialLR": lambda optimizer: schedulers.ExponentialLR(optimizer, 0.9),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "PolynomialLR": lambda optimizer: schedulers.PolynomialLR(optimizer, 9, power=2.0),
    "CosineAnnealingLR": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 4),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, 3, 2),
    "CyclicLR": lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "CyclicLR, function": lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1, 3, scale_fn=lambda x: 0.5**x),
    "OneCycleLR": lambda optimizer: schedulers.OneCycleLR(optimizer, 0.2, total_steps=30, three_phase=True),
    "ReduceLROnPlateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=1, cooldown=1),
    "SWALR": lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.05, anneal_epochs=6),
}


def test_no_scheduler_of_torch_is_left_out() -> None:
    public = {
        name
        for name, value in vars(schedulers).items()
        if isinstance(value, type) and issubclass(value, schedulers.LRScheduler) and not name.startswith("_")
    }
    assert public - {"LRScheduler"} <= {name.partition(",")[0] for name in MAKERS}


@pytest.mark.filterwarnings("ignore:.*epoch parameter in.*:UserWarning")
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_scheduler_goes_on_where_it_stood(tmp_path: Path, name: str, tensor_lr: bool) -> None:
    def make() -> dict[str, Any]:
        model = torch.nn.Linear(1, 1)
        lr = torch.tensor(0.1) if tensor_lr else 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, foreach=False)
        return {"model": model, "optimizer": optimizer, "scheduler": MAKERS[name](optimizer)}

    def rates(made: dict[str, Any], numbers: range) -> list[float]:
        seen = []
        for number in numbers:
            made["optimizer"].step()
            if name == "ReduceLROnPlateau":
                made["scheduler"].step(1.0 / (1 + number % 3))
            else:
                made["scheduler"].step()
            seen.append(float(made["optimizer"].param_groups[0]["lr"]))
        return seen

    saved, fresh = there_and_back(tmp_path, make, lambda made: rates(made, range(5)))
    assert bits(fresh["scheduler"].state_dict()) == bits(saved["scheduler"].state_dict())
    assert rates(fresh, range(5, 12)) == rates(saved, range(5, 12))
    assert bits(fresh["optimizer"].state_dict()) == bits(saved["optimizer"].state_dict())


def test_a_callable_object_of_a_scheduler_has_its_own_state(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
        return {"optimizer": optimizer, "scheduler": schedulers.LambdaLR(optimizer, Warmup())}

    def change(made: dict[str, Any]) -> None:
        made["scheduler"].lr_lambdas[0].length = 9
        for _ in range(3):
            made["optimizer"].step()
            made["scheduler"].step()

    _, fresh = there_and_back(tmp_path, make, change)
    assert vars(fresh["scheduler"].lr_lambdas[0]) == {"length": 9, "calls": 4}


@pytest.mark.parametrize("enabled", [True, False])
def test_scalers(tmp_path: Path, enabled: bool) -> None:
    def make() -> dict[str, Any]:
        return {"scaler": torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled, growth_interval=1)}

    def change(made: dict[str, Any]) -> None:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], 0.1)
        made["scaler"].scale(weight.sum()).backward()
        made["scaler"].step(optimizer)
        made["scaler"].update()

    saved, fresh = there_and_back(tmp_path, make, change)
    assert fresh["scaler"].get_scale() == saved["scaler"].get_scale() == (16.0 if enabled else 1.0)


CONTAINERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dict": (dict, {"a": [1, (2, {3})], 4: torch.ones(2), "nan": float("-inf"), "ema": {"w": torch.zeros(3)}}),
    "list": (lambda: [9], [1, "a", torch.ones(2), [None], b"bytes"]),
    "set": (lambda: {9}, {0, 8, 16, "a", (1, 2), 24, None}),
    "deque": (lambda: deque([9], maxlen=3), deque([1.5, 2, "x"], maxlen=3)),
    "tensor": (lambda: torch.zeros(2, 3), torch.arange(6.0).view(2, 3)),
    "strided tensor": (lambda: torch.zeros(3, 2).T, torch.arange(6.0).view(2, 3)),
    "parameter": (lambda: torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_are_restored_in_place(tmp_path: Path, name: str) -> None:
    make, value = CONTAINERS[name]
    save_now(tmp_path, {"state": {"held": value}})
    fresh = make()
    resume(tmp_path, {"state": {"held": fresh}})  # the very object that the program holds
    if isinstance(fresh, dict | list):
        assert bits(fresh) == bits(value)
        assert list(fresh) == list(value) if isinstance(fresh, dict) else True
    elif isinstance(fresh, torch.Tensor):
        assert torch.equal(fresh, value)
        assert fresh.requires_grad == value.requires_grad
    else:
        assert fresh == value
    assert getattr(fresh, "maxlen", None) == getattr(value, "maxlen", None)


GENERATORS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    **{
        name: (
            lambda seed, name=name: np.random.Generator(getattr(np.random, name)(seed)),
            lambda g: [g.random(), g.integers(1 << 20, dtype=np.uint32), g.normal()],
        )
        for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    },
    "random.Random": (random.Random, lambda g: [g.random(), g.gauss(0, 1), g.getrandbits(90)]),
    "torch.Generator": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda g: torch.cat((torch.randn(1, generator=g), torch.rand(2, generator=g))).tolist(),
    ),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_go_on(tmp_path: Path, name: str) -> None:
    make, draw = GENERATORS[name]
    saved = make(1)
    draw(saved)
    save_now(tmp_path, {"state": {"g": saved}})
    fresh = make(2)
    resume(tmp_path, {"state": {"g": fresh}})
    assert [draw(fresh) for _ in range(5)] == [draw(saved) for _ in range(5)]


@pytest.mark.parametrize(
    ("stored", "given", "named"),
    [
        ({}, [], "x was stored as dict and is list"),
        ({1}, deque(), "x was stored as set and is deque"),
        (deque([1], maxlen=4), deque([7], maxlen=2), "x was stored with maxlen 4 and has maxlen 2"),
        (torch.ones(2), torch.ones(3), "x was stored as torch.float32 (2,)"),
        (torch.ones(2), torch.ones(2).int(), "x was stored as torch.float32 (2,)"),
        ([], Box(), "x was stored as container and is stateful"),
        (
            np.random.default_rng(1),
            np.random.Generator(np.random.Philox(1)),
            "kind numpy PCG64 and is of kind numpy Ph",
        ),
        (np.random.default_rng(1), random.Random(1), "kind numpy PCG64 and is of kind random"),
        (torch.Generator(), random.Random(1), "kind torch with 5056 bytes and is of kind random"),
        (random.Random(1), [1], "x was stored as generator and is container"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_another_kind_is_named_before_anything_changes(tmp_path: Path, stored: Any, given: Any, named: str) -> None:
    save_now(tmp_path, {"state": {"first": {"stored": 1}, "x": stored}})
    first = {"mine": 2}
    before = repr(given)
    with pytest.raises(StateMismatch, match="nothing was loaded") as refused:
        resume(tmp_path, {"state": {"first": first, "x": given}})
    assert named in str(refused.value)
    assert (first, repr(given)) == ({"mine": 2}, before)


class Forgetful(Box):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = {key: value for key, value in state.items() if key != "b"}


class Rounding(Box):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = {"a": state["a"].half().float(), "b": state["b"]}


class Taking(Box):
    """Takes what it is given apart, as many do."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = {key: state.pop(key) for key in list(state)}


class Spoiling(Box):
    """Keeps what it is given, and changes it in place."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state
        state["a"].add_(1)
        state["b"].append(3)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Forgetful, ("x.b[0] is missing after the load",)),
        (Rounding, ("x.a came back different",)),
        (Spoiling, ("x.a came back different",)),
    ],
)
def test_an_object_that_loses_something_is_named(tmp_path: Path, kind: type[Box], named: tuple[str, ...]) -> None:
    save_now(tmp_path, {"state": {"x": kind(a=torch.tensor([1 / 3]), b=[1])}})
    fresh = kind(mine=1)
    with pytest.raises(StateMismatch, match="load_state_dict of x loses state") as refused:
        resume(tmp_path, {"state": {"x": fresh}})
    assert refused.value.differences == named
    assert fresh.held == {"mine": 1}


def test_an_object_may_take_its_state_apart(tmp_path: Path) -> None:
    save_now(tmp_path, {"state": {"x": Taking(a=torch.ones(2), b=[1])}})
    fresh = Taking()
    resume(tmp_path, {"state": {"x": fresh}})
    assert bits(fresh.held) == bits({"a": torch.ones(2), "b": [1]})


@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError, TypeError, AttributeError])
def test_an_object_that_raises_is_named_and_models_are_untouched(tmp_path: Path, error: type[Exception]) -> None:
    class Raising(Box):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise error("version 3 is too old")

    model = torch.nn.Linear(1, 1)
    save_now(tmp_path, {"model": model, "state": {"x": Raising(a=1)}})
    fresh = torch.nn.Linear(1, 1)
    before = bits(fresh.state_dict())
    with pytest.raises(StateMismatch, match=r"x refused its state: .*version 3 is too old") as refused:
        resume(tmp_path, {"model": fresh, "state": {"x": Raising()}})
    assert isinstance(refused.value.__cause__, error)
    assert bits(fresh.state_dict()) == before
    resume(tmp_path, {"model": fresh, "state": {"x": Box()}})  # the task was let go of


def cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (3, "x: .*run.values"),
        ("word", "x: .*run.values"),
        ((1, 2), "x: .*run.values"),
        (np.zeros(3), "x: .*run.values"),
        (random.SystemRandom(), "x: .*has no state"),
        (Box(f=lambda: 1), r"x\.state\.f: a value of type builtins.function"),
        (Box(a=[{"f": Box()}]), r"x\.state\.a\[0\]\.f: a value of type trips.Box"),
        ({"k": object()}, r"x\.state\.k"),
        (cyclic(), r"x\.0\.0.*refers to itself"),
        (torch.ones(1, device="meta"), "x: .*meta device"),
        (Box(big=np.zeros(1 << 20)), r"x\.state\.big: .*inline limit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path, thing: Any, named: str) -> None:
    root = tmp_path / "root"
    with pytest.raises(UnsupportedState, match=named):
        mementum.open_run(root, task="t", state={"x": thing})
    assert not root.exists()
