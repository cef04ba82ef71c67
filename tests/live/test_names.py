"""Names: those of the bare model, whatever it is wrapped in, and refused where two would be one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mementum.errors import UsageError
from mementum.live.names import bare, by_canonical, canonical, parameter_names


def compiled(model: nn.Module) -> nn.Module:
    wrapped: nn.Module = torch.compile(model, backend="eager")
    return wrapped


def test_wrappers_are_taken_off_in_any_order() -> None:
    model = nn.Linear(1, 1)
    for wrapped in (model, compiled(model), nn.DataParallel(model), nn.DataParallel(compiled(nn.DataParallel(model)))):
        assert bare(wrapped) is model
    own = nn.Module()
    own.module = model  # a model may call a part of itself so
    assert bare(own) is own


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.weight", "a.weight"),
        ("_orig_mod.a.weight", "a.weight"),
        ("a._orig_mod.b._orig_mod.weight", "a.b.weight"),
        ("_orig_mod", ""),
        ("a_orig_mod.weight", "a_orig_mod.weight"),
        ("module.weight", "module.weight"),
    ],
)
def test_what_compiling_adds_is_left_out(name: str, expected: str) -> None:
    assert canonical(name) == expected


def test_two_names_that_differ_by_compiling_only_are_refused() -> None:
    assert by_canonical(["a", "b._orig_mod.c"], of="m") == {"a": "a", "b.c": "b._orig_mod.c"}
    with pytest.raises(UsageError, match=r"m: 'b\._orig_mod\.c' and 'b\.c' are one name"):
        by_canonical(["b.c", "b._orig_mod.c"], of="m")


def test_a_parameter_of_several_models_has_the_name_of_the_first() -> None:
    shared = nn.Linear(1, 1)
    models = {"actor": nn.ModuleDict({"trunk": shared}), "critic": compiled(nn.ModuleDict({"body": shared}))}
    assert sorted(parameter_names(models).values()) == ["actor.trunk.bias", "actor.trunk.weight"]
