"""A glance shows the tensors of a full reading, or shows nothing; its shape changes with whatever else does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mementum.live.component import Component
from mementum.live.glance import Glance, glance, retold
from mementum.live.stateful import components_in
from mementum.live.tree import split


class Made:
    """A model with what models have, and an optimizer with two groups."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: Any = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(3, 4), torch.nn.Linear(4, 4, bias=False)
        )
        self.model[3].weight = self.model[0].weight
        self.model.register_buffer("kept", torch.randn(2))
        self.model.register_buffer("passing", torch.randn(2), persistent=False)
        first, *rest = self.model.parameters()
        groups = [{"params": [first]}, {"params": rest, "lr": 0.5}]
        self.optimizer: Any = torch.optim.AdamW(groups, lr=0.1)
        self.step()
        self.components: tuple[Component, ...] = components_in({"model": self.model, "optimizer": self.optimizer})

    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def see(self) -> list[Glance | None]:
        return [glance(component) for component in self.components]

    def read(self, component: Component) -> tuple[Any, dict[str, torch.Tensor]]:
        return split(component.read(), component=component.name, named_by="state" if component.weights else "")


def place(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def test_it_shows_the_tensors_of_a_full_reading() -> None:
    made = Made()
    for component in made.components:
        seen = glance(component)
        _, held = made.read(component)
        assert seen is not None
        assert {place(one) for one in seen.tensors} == {place(one) for one in held.values()}


def test_it_stays_equal_while_only_numbers_change() -> None:
    made = Made()
    before = made.see()
    made.step()
    with torch.no_grad():
        made.model.kept.add_(1)
        made.model[0].weight.data.mul_(2)
    made.model.passing = torch.zeros(5)  # is in no checkpoint
    made.model[1](torch.randn(3, 4))  # moves the buffers of the norm
    after = made.see()
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert old.shape == new.shape
        assert [id(one) for one in old.tensors] == [id(one) for one in new.tensors]


def _swap(made: Made) -> None:
    made.keep = made.model[0].weight.data  # type: ignore[attr-defined]  # its memory must not be had again
    made.model[0].weight.data = made.model[0].weight.data.clone()


def _state_anew(made: Made) -> None:
    values = made.optimizer.state[made.model[1].weight]
    made.keep = values["exp_avg"]  # type: ignore[attr-defined]
    values["exp_avg"] = values["exp_avg"].clone()


def _untie(made: Made) -> None:
    made.model[3].weight = torch.nn.Parameter(made.model[0].weight.detach().clone())


CHANGES: dict[str, Callable[[Made], object]] = {
    "data": _swap,
    "dtype": lambda made: made.model.half(),
    "layout": lambda made: setattr(made.model[0].weight, "data", made.model[0].weight.data.t()),
    "buffer added": lambda made: made.model.register_buffer("more", torch.ones(1)),
    "buffer removed": lambda made: delattr(made.model, "kept"),
    "buffer passing": lambda made: made.model._non_persistent_buffers_set.add("kept"),
    "buffer kept": lambda made: made.model._non_persistent_buffers_set.discard("passing"),
    "untied": _untie,
    "module added": lambda made: made.model.append(torch.nn.Linear(1, 1)),
    "module replaced": lambda made: setattr(made.model, "1", copy.deepcopy(made.model[1])),
    "module without tensors": lambda made: made.model.append(torch.nn.ReLU()),
    "mode": lambda made: made.model[1].eval(),
    "frozen": lambda made: made.model[0].weight.requires_grad_(False),
    "state replaced": _state_anew,
    "state cleared": lambda made: made.optimizer.state.clear(),
    "state of one": lambda made: made.optimizer.state.pop(made.model[0].bias),
    "key added": lambda made: made.optimizer.state[made.model[0].bias].update(more=torch.ones(1)),
    "plain key added": lambda made: made.optimizer.state[made.model[0].bias].update(seen=1),
    "group added": lambda made: made.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    "setting added": lambda made: made.optimizer.param_groups[0].update(warmup=3),
    "parameters in another order": lambda made: made.optimizer.param_groups[1]["params"].reverse(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_its_shape_changes(change: str) -> None:
    made = Made()
    before = made.see()
    CHANGES[change](made)
    after = made.see()
    assert any(
        new is None or (old is not None and old.shape != new.shape) for old, new in zip(before, after, strict=True)
    )


def test_plain_values_are_told_anew_and_the_rest_stays() -> None:
    made = Made()
    _, component = made.components
    tree, _ = made.read(component)
    kept = copy.deepcopy(tree)
    made.optimizer.param_groups[0]["lr"] = 0.125
    made.optimizer.param_groups[1]["betas"] = (0.5, 0.75)
    seen = glance(component)
    assert seen is not None
    told = retold(component, tree, seen)
    assert tree == kept
    assert told == made.read(component)[0]
    assert [group["lr"] for group in told["groups"]] == [0.125, 0.5]
    model, _ = made.components
    tree, _ = made.read(model)
    of_model = glance(model)
    assert of_model is not None
    assert retold(model, tree, of_model) is tree


def test_plain_state_is_told_anew() -> None:
    made = Made()
    _, component = made.components
    for number, parameter in enumerate(made.model.parameters()):
        made.optimizer.state[parameter]["seen"] = number
    tree, _ = made.read(component)
    made.optimizer.state[made.model[0].bias]["seen"] = 77
    seen = glance(component)
    assert seen is not None
    assert retold(component, tree, seen) == made.read(component)[0] != tree


class Own(torch.nn.Module):
    """Reads itself in its own way."""

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}


class Lonely(torch.optim.SGD):
    """Tells its state in its own way."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": 1}


def _shadowed(made: Made) -> None:
    made.model[0].state_dict = lambda *args, **kwargs: {}


REFUSED: dict[str, Callable[[Made], object]] = {
    "extra state": lambda made: made.model.append(Own()),
    "state_dict of an instance": _shadowed,
    "a hook after the reading": lambda made: made.model[1].register_state_dict_post_hook(lambda *args: None),
    "a hook before the reading": lambda made: made.model[1].register_state_dict_pre_hook(lambda *args: None),
    "a sparse buffer": lambda made: made.model.register_buffer("more", torch.eye(3).to_sparse()),
    "a complex parameter": lambda made: made.model.register_buffer("more", torch.ones(2, dtype=torch.complex64)),
    "a subclass": lambda made: made.model.register_buffer("more", torch.ones(1).as_subclass(Marked)),
    "a setting that is a tensor": lambda made: made.optimizer.param_groups[0].update(lr=torch.tensor(0.1)),
    "a setting that is a list": lambda made: made.optimizer.param_groups[0].update(scales=[1, 2]),
    "state that is a list": lambda made: made.optimizer.state[made.model[0].bias].update(history=[1]),
    "state of no parameter": lambda made: made.optimizer.state[torch.ones(1)].update(seen=1),
    "a hook of the optimizer": lambda made: made.optimizer.register_state_dict_post_hook(lambda *args: None),
}


class Marked(torch.Tensor):
    """More than its bytes."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_a_full_reading_tells(case: str) -> None:
    made = Made()
    assert None not in made.see()
    REFUSED[case](made)
    assert None in made.see()


def test_other_kinds_are_not_glanced_at() -> None:
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), 1)
    for component in components_in({"scheduler": schedule, "mine": {"a": torch.ones(1)}}):
        assert glance(component) is None
    parameter = torch.nn.Parameter(torch.ones(1))
    (component,) = components_in({"optimizer": Lonely([parameter], lr=1.0)})
    assert glance(component) is None
