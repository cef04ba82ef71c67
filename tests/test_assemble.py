"""What open_run is given becomes components, policy and retention, or is refused before anything is written."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from mementum.assemble import (
    NO_DATA,
    components_of,
    exactness_of,
    held,
    number,
    retention_of,
)
from mementum.decide.retain import Retention
from mementum.errors import UnsupportedState, UsageError
from mementum.records import Exactness


def components(**given: Any) -> list[tuple[str, str]]:
    roles = {"model": None, "optimizer": None, "scheduler": None, "scaler": None, "state": None}
    return [(each.name, each.kind) for each in components_of(**{**roles, **given})]


def test_nothing_is_nothing() -> None:
    assert components() == []
    assert components(model={}, optimizer=[], state={}) == []


def test_single_things_are_called_after_their_role() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert components(model=model, optimizer=optimizer, scheduler=scheduler, scaler=torch.amp.GradScaler("cpu")) == [
        ("model", "module"),
        ("optimizer", "optimizer"),
        ("scheduler", "stateful"),
        ("scaler", "stateful"),
    ]


def test_several_have_names_or_numbers() -> None:
    g, d = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert components(model={"g": g, "d.2": d}) == [("g", "module"), ("d.2", "module")]
    assert components(model=[g, d]) == [("model0", "module"), ("model1", "module")]
    assert components(model=torch.nn.ModuleDict({"g": g})) == [("model", "module")]
    assert components(model=torch.nn.ModuleList([g])) == [("model", "module")]


def test_state_holds_anything_that_can_be_restored_in_place() -> None:
    state = {"seen": set(), "log": [], "rng": random.Random(1), "np": np.random.default_rng(1), "t": torch.ones(1)}
    kinds = [kind for _, kind in components(state=state)]
    assert kinds == ["container", "container", "generator", "generator", "container"]


@pytest.mark.parametrize("value", [3, "text", None, (1, 2), object(), lambda: None])
def test_state_that_cannot_be_restored_in_place_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="thing"):
        components(state={"thing": value})
    if value is not None:
        with pytest.raises(UnsupportedState):
            components(state={"thing": value})


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "-a", "ä", "x" * 65, "a\n", 3, None])
def test_names_that_are_no_file_names_are_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="is not a name of letters"):
        components(state={name: []})


@pytest.mark.parametrize(
    "given",
    [
        {"model": torch.nn.Linear(1, 1), "state": {"model": []}},
        {"model": {"a": torch.nn.Linear(1, 1)}, "state": {"a": []}},
        {"model": [torch.nn.Linear(1, 1)], "state": {"model0": {}}},
    ],
)
def test_a_name_that_is_given_twice_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        components(**given)


def test_a_none_among_several_is_refused() -> None:
    with pytest.raises(UsageError, match="model: 'b' is None"):
        components(model={"a": torch.nn.Linear(1, 1), "b": None})
    with pytest.raises(UsageError, match="model: 'model0' is None"):
        components(model=[None])


def test_retention() -> None:
    assert retention_of(3, None) == Retention(last=3, every_steps=None)
    assert retention_of(None, 100) == Retention(last=None, every_steps=100)
    for last, every in ((0, None), (-1, None), (1, 0), (None, -5)):
        with pytest.raises(UsageError, match="must be 1 or more, got"):
            retention_of(last, every)


def test_exactness_is_that_of_the_data_and_of_parameters_without_a_name() -> None:
    model = torch.nn.Linear(2, 1)
    loose = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))]
    optimizer = torch.optim.SGD([*model.parameters(), *loose], lr=0.1)
    parts = components_of(model=model, optimizer=optimizer, scheduler=None, scaler=None, state=None)
    assert exactness_of(parts, None).reasons == (NO_DATA,)
    found = exactness_of(parts, Exactness(reasons=("shuffled anew",), conditions=("the data stays",)))
    assert found.reasons == ("shuffled anew",)
    assert found.conditions[:2] == (
        "the data stays",
        "the 2 parameters of optimizer that belong to no given model keep their order",
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (0.5, 0.5),
        (True, True),
        ("word", "word"),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([3]), 3),
        (torch.tensor(True), True),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (np.float32(0.25), 0.25),
        (np.int64(7), 7),
        (np.array([4.0]), 4.0),
    ],
)
def test_recorded_values_become_plain_ones(value: object, expected: object) -> None:
    found = number(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [None, [1], {}, b"x", 1j, object(), np.complex64(1)])
def test_what_is_no_metric_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="a metric must be a number or a word, got"):
        number(value)


def test_a_held_value_has_no_graph() -> None:
    loss = torch.ones(1, requires_grad=True) * 2
    assert held(loss).grad_fn is None
    assert held(3) == 3
