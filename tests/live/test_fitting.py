"""Fitting: models and optimizers that changed since they were stored, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mementum
from mementum.errors import StateMismatch, UsageError
from mementum.live.fitting import Fit
from mementum.live.optimizers import regroup
from mementum.records import Resumed
from trips import bits, save_now


def resumed(root: Path, things: Mapping[str, Any], **wishes: Any) -> Resumed:
    with mementum.open_run(root, task="trip", resume="must", **things, **wishes) as run:
        assert run.resumed is not None
        return run.resumed


def refused(root: Path, things: Mapping[str, Any], **wishes: Any) -> tuple[str, ...]:
    models = [model for model in [things["model"]] if isinstance(model, nn.Module)]
    before = [bits(model.state_dict()) for model in models]
    with pytest.raises(StateMismatch) as caught:
        mementum.open_run(root, task="trip", resume="must", **things, **wishes)
    assert [bits(model.state_dict()) for model in models] == before
    return caught.value.differences


def trained(**layers: nn.Module) -> dict[str, Any]:
    """A model with an optimizer that has moments for every parameter."""
    model = nn.ModuleDict(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 1.0 + number)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def moment(things: Mapping[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = things["optimizer"].state[parameter]["exp_avg"]
    return value


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ({}, "model.a.weight", "model.a.weight"),
        ({"model.a.": "model.b."}, "model.a.weight", "model.b.weight"),
        ({"model.a.": "model.b."}, "model.ab.weight", "model.ab.weight"),
        ({"model.a.weight": "model.w"}, "model.a.weight", "model.w"),
        ({"model.a.": "model.b.", "model.a.weight": "model.w"}, "model.a.weight", "model.w"),
        ({"model.a.": "model.b.", "model.a.c.": "model.d."}, "model.a.c.x", "model.d.x"),
        ({"model.a.": "model.b.", "model.b.": "model.a."}, "model.a.x", "model.b.x"),
        ({"model": "net"}, "model.a.weight", "net.a.weight"),
        ({"model": "net", "net.a.": "net.b."}, "model.a.weight", "net.b.weight"),
        ({"model": "net"}, "models.a", "models.a"),
        ({"one": "two", "two": "one"}, "one.x", "two.x"),
    ],
)
def test_a_rule_applies_once_the_longest_first(rules: dict[str, str], name: str, expected: str) -> None:
    assert Fit(rename=rules).renamed(name) == expected


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"fit": "loose"}, "fit must be"),
        ({"lr_wins": "old"}, "lr_wins must be"),
        ({"rename": {"a.": "b"}}, "two names, or two prefixes"),
        ({"rename": {"a": ""}}, "two names, or two prefixes"),
    ],
)
def test_wishes_that_cannot_be_are_told(tmp_path: Path, wishes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        mementum.open_run(tmp_path / "root", task="trip", state={"s": {}}, **wishes)
    assert not (tmp_path / "root").exists()


def test_partial_lists_exactly_what_was_not_loaded(tmp_path: Path) -> None:
    saved = trained(same=nn.Linear(2, 2), shape=nn.Linear(2, 2), gone=nn.Linear(1, 1, bias=False))
    save_now(tmp_path, {**saved, "state": {"old": {"n": 1}, "held": [1], "kind": {}}})
    fresh = trained(same=nn.Linear(2, 2), shape=nn.Linear(3, 2), new=nn.Linear(1, 1, bias=False))
    fresh["optimizer"].param_groups[0]["lr"] = 0.7
    before = {name: bits(layer.state_dict()) for name, layer in fresh["model"].items()}
    given = {"held": [2], "kind": [], "late": {"mine": 1}}
    assert refused(tmp_path, {**fresh, "state": given}) != ()
    back = resumed(tmp_path, {**fresh, "state": given}, fit="partial")
    assert back.rung == "partial"
    assert sorted(back.left_out) == [
        "kind was stored as dict and is list",
        "late is given and was not stored",
        "model.gone.weight was stored and the model has no such entry",
        "model.new.weight is in the model and was not stored",
        "model.shape.weight was stored with shape (2, 2) and has shape (2, 3)",
        "old was stored and is not given",
        "optimizer: model.gone.weight was stored and is not in it",
        "optimizer: model.new.weight is in it and was not stored",
        "optimizer: the state of model.gone.weight is not loaded",
        "optimizer: the state of model.shape.weight is not loaded",
    ]
    old, new = saved["model"], fresh["model"]
    assert bits(new["same"].state_dict()) == bits(old["same"].state_dict())
    assert torch.equal(new["shape"].bias, old["shape"].bias)
    assert bits(new["shape"].state_dict())[".weight"] == before["shape"][".weight"]
    assert bits(new["new"].state_dict()) == before["new"]
    assert torch.equal(moment(fresh, new["same"].weight), moment(saved, old["same"].weight))
    assert {new["shape"].weight, new["new"].weight}.isdisjoint(fresh["optimizer"].state)
    assert fresh["optimizer"].param_groups[0]["lr"] == 0.5  # the group's settings were stored, whoever joined it
    assert given == {"held": [1], "kind": [], "late": {"mine": 1}}


def test_partial_of_what_fits_whole_is_exact(tmp_path: Path) -> None:
    saved = trained(a=nn.Linear(1, 1))
    save_now(tmp_path, saved)
    fresh = trained(a=nn.Linear(1, 1))
    back = resumed(tmp_path, fresh, fit="partial")
    assert (back.rung, back.left_out) == ("exact", ())
    assert bits(fresh["optimizer"].state_dict()) == bits(saved["optimizer"].state_dict())


def test_partial_of_nothing_is_refused(tmp_path: Path) -> None:
    save_now(tmp_path, trained(a=nn.Linear(1, 1)))
    told = refused(tmp_path, trained(b=nn.Linear(1, 1)), fit="partial")
    assert told == ("model: nothing of what was stored fits the model",)


def test_partial_keeps_modes_and_buffers_of_what_is_new(tmp_path: Path) -> None:
    saved = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "gone": nn.Dropout()})
    saved["norm"](torch.ones(3, 2))
    save_now(tmp_path, {"model": saved.eval()})
    fresh = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "more": nn.BatchNorm1d(2)})
    back = resumed(tmp_path, {"model": fresh}, fit="partial")
    assert "model.gone was stored and is not in it" in back.left_out
    assert (fresh["norm"].num_batches_tracked.item(), fresh["more"].num_batches_tracked.item()) == (1, 0)
    assert (fresh.training, fresh["norm"].training, fresh["more"].training) == (False, False, True)


RENAMED: dict[str, tuple[dict[str, str], Callable[[nn.Module, nn.Module], nn.Module]]] = {
    "a prefix": ({"model.old.": "model.new."}, lambda a, b: nn.ModuleDict({"new": a, "b": b})),
    "names": (
        {"model.old.weight": "model.new.weight", "model.old.bias": "model.new.bias"},
        lambda a, b: nn.ModuleDict({"new": a, "b": b}),
    ),
    "deeper": (
        {"model.": "model.inner."},
        lambda a, b: nn.ModuleDict({"inner": nn.ModuleDict({"old": a, "b": b})}),
    ),
    "swapped": ({"model.old.": "model.b.", "model.b.": "model.old."}, lambda a, b: nn.ModuleDict({"b": a, "old": b})),
}


@pytest.mark.parametrize("name", RENAMED)
def test_names_that_changed(tmp_path: Path, name: str) -> None:
    rename, wrap = RENAMED[name]
    saved = trained(old=nn.Linear(2, 2), b=nn.Linear(2, 2))
    save_now(tmp_path, saved)
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    model = wrap(first, second)
    fresh = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}
    if name != "swapped":  # then everything would fit, wrongly
        assert refused(tmp_path, fresh) != ()
    back = resumed(tmp_path, fresh, rename=rename)
    assert (back.rung, back.left_out) == ("exact", ())
    for old, new in zip(saved["model"].values(), (first, second), strict=True):
        for before, after in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(before, after)
            assert torch.equal(moment(saved, before), moment(fresh, after))


def test_modes_follow_the_names_that_changed(tmp_path: Path) -> None:
    saved = nn.ModuleDict({"old": nn.Sequential(nn.Linear(1, 1), nn.Dropout()), "b": nn.Linear(1, 1)})
    saved["old"].eval()
    save_now(tmp_path, {"model": saved})
    fresh = nn.ModuleDict({"new": nn.Sequential(nn.Linear(1, 1), nn.Dropout()), "b": nn.Linear(1, 1)})
    resumed(tmp_path, {"model": fresh}, rename={"model.old.": "model.new."})
    assert [module.training for module in fresh.modules()] == [True, False, False, False, True]


def test_a_component_that_changed_its_name(tmp_path: Path) -> None:
    saved = trained(a=nn.Linear(2, 2))
    save_now(tmp_path, saved)
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    fresh = {"model": {"net": model}, "optimizer": torch.optim.Adam(model.parameters())}
    back = resumed(tmp_path, fresh, rename={"model": "net"})
    assert (back.rung, back.left_out) == ("exact", ())
    assert torch.equal(model["a"].weight, saved["model"]["a"].weight)
    assert torch.equal(moment(fresh, model["a"].weight), moment(saved, saved["model"]["a"].weight))


def test_two_components_that_changed_places(tmp_path: Path) -> None:
    models = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}
    save_now(tmp_path, {"model": models})
    fresh = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}
    resumed(tmp_path, {"model": fresh}, rename={"one": "two", "two": "one"})
    assert torch.equal(fresh["two"].weight, models["one"].weight)
    assert torch.equal(fresh["one"].weight, models["two"].weight)


def test_two_names_that_would_become_one_are_refused(tmp_path: Path) -> None:
    save_now(tmp_path, trained(a=nn.Linear(2, 2), b=nn.Linear(2, 2)))
    told = refused(tmp_path, trained(b=nn.Linear(2, 2)), rename={"model.a.": "model.b."})
    assert "model: rename makes one name of two that were stored" in told
    assert "optimizer: rename makes one name of two that were stored" in told


def test_a_name_that_would_leave_its_model_is_refused(tmp_path: Path) -> None:
    save_now(tmp_path, {"model": {"a": nn.Linear(1, 1)}})
    with pytest.raises(UsageError, match=r"a\.weight to b\.weight would leave its component a"):
        resumed(tmp_path, {"model": {"a": nn.Linear(1, 1)}}, rename={"a.": "b."})


def grouped(*groups: tuple[list[nn.Parameter], dict[str, Any]]) -> torch.optim.AdamW:
    return torch.optim.AdamW([{"params": params, **settings} for params, settings in groups], lr=0.9)


def test_groups_with_the_same_settings_may_merge_split_and_turn_round(tmp_path: Path) -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))

    model = layers()
    first, second, third = (list(layer.parameters()) for layer in model)
    same, other = {"lr": 0.1, "weight_decay": 0.5}, {"lr": 0.2}
    optimizer = grouped((first, same), (second, same), (third, other))
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 1.0 + number)
    optimizer.step()
    save_now(tmp_path, {"model": model, "optimizer": optimizer})

    def lrs(make: Callable[[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]], Any]) -> list[float]:
        live = layers()
        fresh = make(*(list(layer.parameters()) for layer in live))
        resumed(tmp_path, {"model": live, "optimizer": fresh})
        for before, after in zip(model.parameters(), live.parameters(), strict=True):
            assert bits(dict(fresh.state[after])) == bits(dict(optimizer.state[before]))
        return [group["lr"] for group in fresh.param_groups]

    assert lrs(lambda a, b, c: grouped((a + b, {}), (c, {}))) == [0.1, 0.2]
    assert lrs(lambda a, b, c: grouped((c[::-1], {}), (b[::-1] + a[::-1], {}))) == [0.2, 0.1]
    assert lrs(lambda a, b, c: grouped((a[:1], {}), (a[1:], {}), (b, {}), (c[1:], {}), (c[:1], {}))) == [
        0.1,
        0.1,
        0.1,
        0.2,
        0.2,
    ]
    live = layers()
    a, b, c = (list(layer.parameters()) for layer in live)
    told = refused(tmp_path, {"model": live, "optimizer": grouped((a, {}), (b + c, {}))})
    assert told == ("optimizer, group 1: its parameters were in the groups 1 and 2, whose lr, weight_decay differ",)
    live_optimizer = grouped((a, {}), (b + c, {"lr": 0.8}))
    back = resumed(tmp_path, {"model": live, "optimizer": live_optimizer}, fit="partial")
    assert back.left_out == told
    assert [group["lr"] for group in live_optimizer.param_groups] == [0.1, 0.8]
    assert len(live_optimizer.state) == 6


def test_an_empty_group_is_known_by_its_number() -> None:
    stored = [{"lr": 1, "params": ["a"]}, {"lr": 2, "params": []}]
    live = [{"lr": 8, "params": ["a"]}, {"lr": 9, "params": []}, {"lr": 7, "params": []}]
    assert regroup("o", stored, live) == (
        [{"lr": 1, "params": ["a"]}, {"lr": 2, "params": []}, {"lr": 7, "params": []}],
        [],
    )


def test_a_group_of_new_parameters_keeps_its_own_settings() -> None:
    stored = [{"lr": 1, "params": ["a"]}, {"lr": 2, "params": ["gone"]}]
    live = [{"lr": 8, "params": ["a"]}, {"lr": 9, "params": ["new"]}]
    assert regroup("o", stored, live) == (
        [{"lr": 1, "params": ["a"]}, {"lr": 9, "params": ["new"]}],
        ["o: gone was stored and is not in it", "o: new is in it and was not stored"],
    )
