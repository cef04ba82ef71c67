"""Optimizers: five steps, a resume in fresh objects and five more are ten steps, bit for bit, for all of torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mementum
from mementum.errors import StateMismatch, UsageError
from trips import bits, resume, save_now

OPTIM = torch.optim
EXPORTED = {
    name
    for name, value in vars(OPTIM).items()
    if isinstance(value, type) and issubclass(value, OPTIM.Optimizer) and value is not OPTIM.Optimizer
}
PLAIN = [{}, {"maximize": True}, {"foreach": True}, {"foreach": False}, {"weight_decay": 0.1}]
ADAMS = [*PLAIN, {"amsgrad": True}, {"fused": True}, {"lr": torch.tensor(1e-3)}, {"betas": (0.5, 0.7), "eps": 1e-6}]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [*PLAIN, {"t0": 2}],
    "Adadelta": PLAIN,
    "Adafactor": [{}, {"maximize": True}, {"foreach": True}],
    "Adagrad": [*PLAIN, {"fused": True}, {"initial_accumulator_value": 0.5}],
    "Adam": [*ADAMS, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "AdamW": ADAMS,
    "Adamax": PLAIN,
    "LBFGS": [{}, {"line_search_fn": "strong_wolfe"}, {"history_size": 3, "max_iter": 5}],
    "Muon": [{}, {"nesterov": False}],
    "NAdam": [*PLAIN, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RAdam": PLAIN,
    "RMSprop": [*PLAIN, {"centered": True, "momentum": 0.5}],
    "Rprop": PLAIN[:4],
    "SGD": [
        *PLAIN,
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.1},
        {"momentum": 0.9, "fused": True},
        {"lr": torch.tensor(0.01), "momentum": 0.9},
    ],
    "SparseAdam": [{}],
}


def test_no_optimizer_of_torch_is_left_out() -> None:
    assert VARIANTS.keys() >= EXPORTED


def build(name: str, wishes: dict[str, Any]) -> tuple[nn.Module, OPTIM.Optimizer]:
    torch.manual_seed(0)
    if name == "SparseAdam":
        model: nn.Module = nn.Embedding(6, 3, sparse=True)
    else:
        bias = name != "Muon"  # it takes matrices only
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Tanh(), nn.Linear(4, 2, bias=bias))
    wishes = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in wishes.items()}
    return model, getattr(OPTIM, name)(model.parameters(), **{"lr": 0.01, **wishes})


def steps(model: nn.Module, optimizer: OPTIM.Optimizer, numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        sparse = isinstance(model, nn.Embedding)
        inputs = torch.randint(6, (4,), generator=generator) if sparse else torch.randn(4, 3, generator=generator)

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - 1).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize(
    ("name", "wishes"), [(name, wishes) for name in sorted(VARIANTS) for wishes in VARIANTS[name]], ids=str
)
def test_five_steps_and_five_steps_are_ten(tmp_path: Path, name: str, wishes: dict[str, Any]) -> None:
    model, optimizer = build(name, wishes)
    start = bits(model.state_dict())
    steps(model, optimizer, range(5))
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    steps(model, optimizer, range(5, 10))
    assert bits(model.state_dict()) != start
    fresh_model, fresh = build(name, wishes)
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    steps(fresh_model, fresh, range(5, 10))
    assert bits(fresh_model.state_dict()) == bits(model.state_dict())
    assert bits(fresh.state_dict()) == bits(optimizer.state_dict())


def test_moments_wider_than_their_parameters_keep_their_bits(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, OPTIM.SGD]:
        model = nn.Linear(3, 2).to(torch.bfloat16)
        return model, OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = make()
    moments = {}
    for name, parameter in model.named_parameters():
        moments[name] = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4))
        optimizer.state[parameter]["momentum_buffer"] = moments[name].clone()
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model, fresh = make()
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    for name, parameter in fresh_model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert fresh.state[parameter]["momentum_buffer"].dtype == torch.float32
        assert torch.equal(fresh.state[parameter]["momentum_buffer"], moments[name])


class Odd(OPTIM.Optimizer):
    """Keeps values of every plain kind for each parameter, and wide tensors within containers."""

    def __init__(self, parameters: Any, marked: bool) -> None:
        super().__init__(parameters, {"lr": 0.1, "label": "slow", "schedule": (1, 2.5), "none": None})
        for group in self.param_groups if marked else ():
            for parameter in group["params"]:
                third = torch.full((2,), 1 / 3)
                self.state[parameter] = {
                    "word": "abc",
                    "none": None,
                    "count": 3,
                    "flag": True,
                    "rate": 0.1,
                    "list": [1, 2.5, "x", None],
                    "history": [third.clone(), (third.double(), "y")],
                    "nested": {"third": third.clone(), "words": ["p", "q"]},
                    "whole": torch.tensor([1 << 40]),
                }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_state_of_a_custom_optimizer_comes_back_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    """torch's own load casts tensors at any depth, and makes a word into the name of a generator."""
    model = nn.Linear(2, 1).to(dtype)
    optimizer = Odd(model.parameters(), marked=True)
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model = nn.Linear(2, 1).to(dtype)
    fresh = Odd(fresh_model.parameters(), marked=False)
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    assert bits(fresh.state_dict()) == bits(optimizer.state_dict())
    assert fresh.state[fresh_model.bias]["nested"]["words"] == ["p", "q"]
    assert fresh.param_groups[0]["schedule"] == (1, 2.5)


class EightBit(OPTIM.Optimizer):
    """Keeps moments in bytes with a scale for each block, made when a parameter has its first gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                code = torch.linspace(-1, 1, 256)
                state.update(step=0, code=code, bytes=torch.full(parameter.shape, 127).byte(), absmax=None, last=[])
            moment = 0.9 * state["code"][state["bytes"].long()] * (state["absmax"] or 1.0) + parameter.grad.float()
            state["absmax"] = moment.abs().max()
            state["bytes"] = ((moment / state["absmax"] + 1) * 127.5).round().byte()
            state["step"] += 1
            state["last"] = [state["step"], state["absmax"].item()]
            parameter.data.sub_((0.1 * moment).to(parameter.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_moments_in_bytes_and_state_that_is_made_late(tmp_path: Path, dtype: torch.dtype) -> None:
    def forward(made: dict[str, Any], numbers: range) -> None:
        for number in numbers:
            for name, parameter in made["model"].named_parameters():
                if name != "bias" or number > 5:  # which has its first gradient after the save
                    generator = torch.Generator().manual_seed(number)
                    parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
            made["optimizer"].step()

    def make() -> dict[str, Any]:
        torch.manual_seed(2)
        model = nn.Linear(3, 4).to(dtype)
        return {"model": model, "optimizer": EightBit(model.parameters())}

    saved, fresh = make(), make()
    forward(saved, range(4))
    saved["optimizer"].state[saved["model"].bias] = {}  # some optimizers touch the state of every parameter
    save_now(tmp_path, saved)
    resume(tmp_path, fresh)
    assert fresh["optimizer"].state[fresh["model"].weight]["bytes"].dtype == torch.uint8
    for made in (saved, fresh):
        forward(made, range(4, 10))
    assert bits(fresh["model"].state_dict()) == bits(saved["model"].state_dict())
    assert bits(fresh["optimizer"].state_dict()) == bits(saved["optimizer"].state_dict())


def test_state_beside_the_parameters_comes_back(tmp_path: Path) -> None:
    class Global(OPTIM.SGD):
        """Keeps a count under a key of its own, and a further part in its state dict."""

        extra: Any = None

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "extra_part": self.extra}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.extra = state_dict["extra_part"]
            super().load_state_dict(state_dict)

    model = nn.Linear(1, 1)
    optimizer = Global(model.parameters(), lr=0.1)
    optimizer.state["global"] = {"steps": 7, "norm": torch.tensor(0.5)}
    optimizer.extra = [1, torch.ones(2)]
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh = Global((fresh_model := nn.Linear(1, 1)).parameters(), lr=0.1)
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    assert bits(fresh.state_dict()) == bits(optimizer.state_dict())
    assert fresh.state["global"]["steps"] == 7


def grouped(order: Callable[[list[nn.Parameter]], list[nn.Parameter]] = list) -> tuple[nn.Module, OPTIM.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(1, 1))
    model[2].weight.requires_grad_(False)
    decayed, plain = list(model[0].parameters()), [*model[1].parameters(), *model[2].parameters()]
    groups = [
        {"params": order(decayed), "lr": 0.1, "weight_decay": 0.5},
        {"params": order(plain), "lr": torch.tensor(0.01), "betas": (0.8, 0.9)},
    ]
    return model, OPTIM.AdamW(groups, foreach=False)


def some_steps(model: nn.Module, optimizer: OPTIM.Optimizer, count: int = 3) -> None:
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.numel() > 1:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("order", [list, lambda parameters: parameters[::-1]], ids=["same", "reversed"])
def test_groups_keep_their_settings_and_parameters_their_state(tmp_path: Path, order: Any) -> None:
    model, optimizer = grouped()
    some_steps(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.param_groups[1]["lr"].fill_(0.002)
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model, fresh = grouped(order)
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.05
    assert isinstance(fresh.param_groups[1]["lr"], torch.Tensor)
    assert torch.equal(fresh.param_groups[1]["lr"], torch.tensor(0.002))
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.5, 0.01]
    for before, after in zip(model.parameters(), fresh_model.parameters(), strict=True):
        assert bits(dict(fresh.state.get(after, {}))) == bits(dict(optimizer.state.get(before, {})))
    assert fresh_model[2].weight not in fresh.state  # frozen
    assert fresh_model[2].bias not in fresh.state  # never had a gradient
    some_steps(model, optimizer)
    some_steps(fresh_model, fresh)
    assert bits(fresh_model.state_dict()) == bits(model.state_dict())


def test_state_that_was_not_stored_goes_away(tmp_path: Path) -> None:
    model, optimizer = grouped()
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model, fresh = grouped()
    some_steps(fresh_model, fresh)
    resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
    assert not fresh.state


def test_parameters_of_no_model_are_known_by_position(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, nn.Parameter, OPTIM.Adam]:
        model, loose = nn.Linear(1, 1, bias=False), nn.Parameter(torch.ones(2))
        return model, loose, OPTIM.Adam([model.weight, loose])

    model, loose, optimizer = make()
    loose.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model, fresh_loose, fresh = make()
    with mementum.open_run(tmp_path, task="trip", model=fresh_model, optimizer=fresh) as run:
        assert (
            "the 1 parameters of optimizer that belong to no given model keep their order" in run.exactness.conditions
        )
    assert torch.equal(fresh.state[fresh_loose]["exp_avg"], optimizer.state[loose]["exp_avg"])
    assert fresh_model.weight not in fresh.state


def gan() -> dict[str, Any]:
    torch.manual_seed(0)
    models = {"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 2)}
    optimizers = {f"{name}_adam": OPTIM.Adam(model.parameters(), 0.1) for name, model in models.items()}
    return {"model": models, "optimizer": optimizers}


@pytest.mark.parametrize("swapped", [False, True])
def test_two_models_and_two_optimizers(tmp_path: Path, swapped: bool) -> None:
    saved = gan()
    for name, model in saved["model"].items():
        some_steps(model, saved["optimizer"][f"{name}_adam"], 2 if name == "critic" else 5)
    save_now(tmp_path, saved)
    fresh = gan()
    if swapped:  # the order in which they are given is no part of the state
        fresh = {role: dict(reversed(things.items())) for role, things in fresh.items()}
    resume(tmp_path, fresh)
    for name, model in saved["model"].items():
        pairs = zip(model.parameters(), fresh["model"][name].parameters(), strict=True)
        old, new = saved["optimizer"][f"{name}_adam"], fresh["optimizer"][f"{name}_adam"]
        assert all(bits(dict(old.state[before])) == bits(dict(new.state[after])) for before, after in pairs)


def test_names_that_do_not_tell_two_parameters_apart_are_refused(tmp_path: Path) -> None:
    inner = nn.ModuleDict({"b": nn.Linear(1, 1)})
    models = {"a": inner, "a.b": nn.Linear(1, 1)}
    optimizer = OPTIM.SGD([parameter for model in models.values() for parameter in model.parameters()], 0.1)
    with pytest.raises(UsageError, match=r"two parameters would be called 'a\.b\.weight'"):
        save_now(tmp_path / "root", {"model": models, "optimizer": optimizer})
    assert not (tmp_path / "root").exists()


def test_a_parameter_that_joined_later(tmp_path: Path) -> None:
    """The optimizer that resumes must have it as well; what joined is named when it has not."""

    def make(*, joined: bool) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = OPTIM.Adam(model[0].parameters(), 0.1)
        if joined:
            optimizer.param_groups[0]["params"] += list(model[1].parameters())
        return {"model": model, "optimizer": optimizer}

    saved = make(joined=True)
    some_steps(saved["model"], saved["optimizer"])
    save_now(tmp_path, saved)
    fresh = make(joined=False)
    before = bits(fresh["model"].state_dict())
    with pytest.raises(StateMismatch) as refused:
        resume(tmp_path, fresh)
    assert refused.value.differences == (
        "optimizer: model.1.bias was stored and is not in it",
        "optimizer: model.1.weight was stored and is not in it",
    )
    assert bits(fresh["model"].state_dict()) == before
    assert not fresh["optimizer"].state
    resume(tmp_path, again := make(joined=True))
    assert len(again["optimizer"].state) == 4


def test_other_groups_are_named_and_nothing_changes(tmp_path: Path) -> None:
    model, optimizer = grouped()
    some_steps(model, optimizer)
    save_now(tmp_path, {"model": model, "optimizer": optimizer})

    def refused(*groups: list[nn.Parameter]) -> tuple[str, ...]:
        fresh = OPTIM.AdamW([{"params": group} for group in groups], lr=0.7)
        before = bits(fresh_model.state_dict())
        with pytest.raises(StateMismatch) as caught:
            resume(tmp_path, {"model": fresh_model, "optimizer": fresh})
        assert bits(fresh_model.state_dict()) == before
        assert not fresh.state
        assert [group["lr"] for group in fresh.param_groups] == [0.7] * len(groups)
        return caught.value.differences

    fresh_model = grouped()[0]
    first, second, third = (list(layer.parameters()) for layer in fresh_model)
    told = "optimizer, group {}: its parameters were in the groups 0 and 1, whose betas, lr, weight_decay differ"
    assert refused(first + second + third) == (told.format(0),)
    assert refused([first[0]], [first[1], *second, *third]) == (told.format(1),)


def test_another_optimizer_that_cannot_use_the_state_does_not_resume_silently(tmp_path: Path) -> None:
    """Adam's state under SGD's name: the groups do not have the settings that were stored for Adam."""
    model = nn.Linear(2, 2)
    optimizer = OPTIM.Adam(model.parameters(), 0.1)
    some_steps(model, optimizer)
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh_model = nn.Linear(2, 2)
    with pytest.raises(StateMismatch):
        resume(tmp_path, {"model": fresh_model, "optimizer": OPTIM.SGD(fresh_model.parameters(), 0.1)})
