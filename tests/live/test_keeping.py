"""Keeping: models that fail half-way are as they were, with all that was loaded before them; and what cannot be."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mementum
from mementum.errors import StateMismatch
from mementum.live import rng
from mementum.live.keeping import copied, keep
from mementum.live.modules import ModuleState
from mementum.live.optimizers import OptimizerState
from trips import bits


def test_containers_and_tensors_have_their_content_again_and_are_the_same_objects() -> None:
    tensor, inner = torch.ones(2), [1, {"deep": torch.zeros(1)}]
    held: dict[str, Any] = {
        "tensor": tensor,
        "inner": inner,
        "ordered": OrderedDict(b=1, a=2),
        "default": defaultdict(list, {"x": [1]}),
        "deque": deque([1, 2], maxlen=2),
        "set": {1, 2},
        "tuple": ({"in": 1},),
    }
    held["itself"] = held
    bring_back = keep(held)
    before = {key: (id(value), repr(value)) for key, value in held.items()}
    tensor.fill_(9)
    inner[1]["deep"].add_(1)
    inner.append(3)
    held["ordered"].move_to_end("b")
    held["default"]["y"].append(2)
    held["deque"].append(3)
    held["set"].clear()
    held["tuple"][0]["more"] = 1
    held["new"] = held.pop("inner")
    bring_back()
    assert {key: (id(value), repr(value)) for key, value in held.items()} == before


def test_a_tensor_that_did_not_change_is_not_written() -> None:
    one, other = torch.ones(2), torch.tensor([float("nan")])
    bring_back = keep([one, other])
    one.add_(1)
    bring_back()
    assert (one.tolist(), one._version, other._version) == ([1.0, 1.0], 2, 0)


def test_without_tensors_only_references_are_kept() -> None:
    held = {"a": torch.ones(1)}
    old = held["a"]
    bring_back = keep(held, tensors=False)
    held["a"] = torch.zeros(1)
    old.fill_(5)
    bring_back()
    assert held["a"] is old
    assert old.item() == 5


def test_a_copy_of_a_state_has_tensors_of_its_own_even_within_a_graph() -> None:
    weight = torch.ones(2, requires_grad=True)
    state = {"graph": weight * 2, "list": [weight, (weight,)], "set": {1}}
    made = copied(state)
    assert made["graph"].tolist() == [2.0, 2.0]
    assert made["list"][0] is made["list"][1][0]
    assert made["list"][0] is not weight
    assert made["set"] is not state["set"]


def test_no_copy_is_made_of_what_cannot_fail() -> None:
    """The memory of a load is that of the state itself: torch's own modules and optimizers are not copied."""
    model = nn.Sequential(nn.Embedding(3, 2), nn.LayerNorm(2), nn.LSTM(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 3))
    model[4].weight = model[0].weight  # tied ones are one tensor
    assert ModuleState("m", model).remember() is None
    assert ModuleState("m", nn.Sequential(model, Extra(False))).remember() is not None
    optimizer = torch.optim.Adam(model.parameters())
    assert not OptimizerState("o", optimizer, {})._has_code_of_its_own()


class Extra(nn.Linear):
    """Keeps state beside its weights, and refuses it when told to, after it has changed."""

    def __init__(self, refuses: bool) -> None:
        super().__init__(2, 2)
        self.refuses, self.calls, self.seen = refuses, 1, [torch.zeros(2)]

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]
        self.seen[0].add_(1)
        self.seen.append(torch.ones(1))
        if self.refuses:
            raise ValueError("not this one")


class Overridden(nn.Linear):
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        super().load_state_dict(*args, **kwargs)
        raise RuntimeError("after all is loaded")


class Lossy(nn.Linear):
    """Loads, and does not keep what it was given."""

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        with torch.no_grad():
            self.bias.add_(1)


def hooked(refuses: bool) -> nn.Module:
    model = nn.Linear(2, 2)

    def refuse(module: nn.Module, keys: Any) -> None:
        raise KeyError("hook")

    if refuses:
        model.register_load_state_dict_post_hook(refuse)
    return model


def overlapping(refuses: bool) -> nn.Module:
    """Two buffers over one memory, which no two different states fit into."""
    model = nn.Linear(2, 2)
    memory = torch.zeros(5)
    model.register_buffer("first", memory[:3])
    model.register_buffer("second", memory[2:] if refuses else torch.ones(3))
    return model


MODELS: dict[str, tuple[Callable[[bool], nn.Module], str]] = {
    "set_extra_state": (lambda refuses: nn.Sequential(nn.Linear(2, 2), Extra(refuses)), "not this one"),
    "load_state_dict": (lambda refuses: Overridden(2, 2) if refuses else nn.Linear(2, 2), "after all is loaded"),
    "loses": (lambda refuses: Lossy(2, 2) if refuses else nn.Linear(2, 2), "state.bias came back different"),
    "hook": (hooked, "hook"),
    "overlap": (overlapping, "state.first came back different"),
    "expanded": (
        lambda refuses: nn.ParameterList([torch.ones(1).expand(3)] if refuses else [torch.ones(3)]),
        "refused its state: RuntimeError",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_fails_half_way_is_as_it_was(tmp_path: Path, name: str) -> None:
    """And so is everything that was loaded before it, and what would have come after."""
    make, told = MODELS[name]

    def made(refuses: bool, number: float) -> dict[str, Any]:
        torch.manual_seed(int(number))
        plain, model = nn.Linear(2, 1), make(refuses)
        optimizer = torch.optim.SGD([*plain.parameters(), *model.parameters()], lr=number, momentum=0.9)
        for parameter in plain.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return {"model": {"a": plain, "b": model, "c": nn.Linear(1, 1)}, "optimizer": optimizer}

    def state(things: dict[str, Any]) -> dict[str, Any]:
        modules = [one for model in things["model"].values() for one in model.modules()]
        tensors = [tensor for model in things["model"].values() for tensor in model.state_dict(keep_vars=True).values()]
        tensors = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        return {
            "bits": [bits(model.state_dict()) for model in things["model"].values()],
            "objects": [(id(tensor), tensor.data_ptr(), tensor.requires_grad, id(tensor.grad)) for tensor in tensors],
            "untouched": [one._version for key in "ac" for one in things["model"][key].parameters()],
            "attributes": [{key: id(value) for key, value in vars(module).items()} for module in modules],
            "seen": [bits(module.seen) for module in modules if hasattr(module, "seen")],
            "optimizer": bits(things["optimizer"].state_dict()),
            "moments": [(id(one["momentum_buffer"])) for one in things["optimizer"].state.values()],
            "rng": bits(rng.read()),
        }

    with mementum.open_run(tmp_path, task="t", **made(False, 1)) as run:
        run.record()
    live = made(True, 2)
    before = state(live)
    with pytest.raises(StateMismatch) as caught:
        mementum.open_run(tmp_path, task="t", **live)
    assert told in str(caught.value)
    assert "as they were" in str(caught.value)
    after = state(live)
    assert [part for part in before if before[part] != after[part]] == []


def test_what_cannot_be_undone_is_named(tmp_path: Path) -> None:
    """State in objects that only the thing itself knows, and a load that always refuses."""

    class Inner:
        __slots__ = ("n",)

    class Hidden:
        def __init__(self, n: int) -> None:
            self.inner = Inner()
            self.inner.n = n

        def state_dict(self) -> dict[str, int]:
            return {"n": self.inner.n}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.inner.n = state["n"]
            raise ValueError("always")

    held: dict[str, int] = {"mine": 1}
    with mementum.open_run(tmp_path, task="t", state={"x": Hidden(1), "held": {"n": 2}}) as run:
        run.record()
    with pytest.raises(StateMismatch) as caught:
        mementum.open_run(tmp_path, task="t", state={"x": Hidden(5), "held": held})
    assert any("x could not be brought back: ValueError" in line for line in caught.value.differences)
    assert caught.value.kept == "the checkpoint, and the live objects that are not named here"
    assert held == {"mine": 1}
