"""A checkpoint's weights are read by safetensors as they lie there, with the names and values of the state dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import mementum
from mementum.errors import UsageError
from mementum.live.tree import same


def save(root: Path, **given: Any) -> Path:
    """One checkpoint of the given things; its folder."""
    with mementum.open_run(root, task="t", every_steps=1, **given) as run:
        run.record(loss=1.0)
    (folder,) = root.glob("*/*/step_*")
    return folder


def assert_equal(path: Path, expected: dict[str, torch.Tensor]) -> None:
    found = load_file(path)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not same(found[name], tensor.contiguous())] == []


class Odd(torch.nn.Module):
    """Buffers of every dtype that safetensors has, and shapes and strides of every kind."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
        for name in (*kinds, "uint16", "uint32", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"):
            self.register_buffer(f"of_{name}", torch.arange(7).to(getattr(torch, name)))
        self.register_buffer("scalar", torch.tensor(3.5))
        self.register_buffer("none", torch.empty(0, 4))
        self.register_buffer("transposed", torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("expanded", torch.arange(3.0).expand(2, 3))
        self.register_buffer("of_this_run_only", torch.ones(3), persistent=False)
        self.register_buffer("größe", torch.ones(2))
        self.add_module("a/b~0", torch.nn.Linear(2, 2))
        self.weight = torch.nn.Parameter(torch.tensor([float("nan"), float("inf"), -0.0]))


def test_a_model_reads_as_it_lies_there(tmp_path: Path) -> None:
    model = Odd()
    folder = save(tmp_path, model=model, optimizer=torch.optim.AdamW(model.parameters()))
    assert_equal(folder / "model.safetensors", dict(model.state_dict()))


def test_a_new_model_takes_it_by_torch_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 3))
    folder = save(tmp_path, model=model)
    torch.manual_seed(2)
    other = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 3))
    other.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    expected = model.state_dict()
    assert all(same(tensor, expected[name]) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("several", [dict, list])
def test_each_of_several_models_has_a_file(tmp_path: Path, several: type) -> None:
    g, d = torch.nn.Linear(3, 2), torch.nn.Embedding(5, 4)
    given: Any = {"g": g, "d": d} if several is dict else [g, d]
    names = ("g", "d") if several is dict else ("model0", "model1")
    folder = save(tmp_path, model=given)
    assert_equal(folder / f"{names[0]}.safetensors", dict(g.state_dict()))
    assert_equal(folder / f"{names[1]}.safetensors", dict(d.state_dict()))


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    def make() -> torch.nn.Module:
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(50, 8), "head": torch.nn.Linear(8, 50, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    model = make()
    folder = save(tmp_path, model=model)
    assert_equal(folder / "model.safetensors", {"embed.weight": model["embed"].weight.detach()})
    assert (folder / "model.safetensors").stat().st_size == 4096 + 50 * 8 * 4
    again = make()
    with mementum.open_run(tmp_path, task="t", model=again):
        assert again["head"].weight is again["embed"].weight
        assert torch.equal(again["head"].weight, model["embed"].weight)


def test_dtypes_that_safetensors_lacks_are_bytes_there_and_come_back(tmp_path: Path) -> None:
    def make(scale: float) -> torch.nn.Module:
        model = torch.nn.Module()
        model.register_buffer("wide", torch.arange(3) * torch.tensor(scale * (1 + 2j), dtype=torch.complex128))
        model.register_buffer("power", torch.full((4,), scale).to(torch.float8_e8m0fnu))
        return model

    model = make(2.0)
    folder = save(tmp_path, model=model)
    found = load_file(folder / "model.safetensors")
    assert (found["wide"].dtype, tuple(found["wide"].shape)) == (torch.uint8, (3, 16))
    assert same(found["wide"].reshape(-1).view(torch.complex128), model.wide)
    assert tuple(found["power"].shape) == (4, 1)
    again = make(1.0)
    with mementum.open_run(tmp_path, task="t", model=again):
        assert same(again.wide, model.wide)
        assert same(again.power, model.power)


def test_names_are_kept_over_a_resume(tmp_path: Path) -> None:
    model, again = Odd(), Odd()
    for each in (model, again):
        del each.expanded  # torch itself cannot load into elements that share memory
    with torch.no_grad():
        again.weight.zero_()
        again.scalar.zero_()
    save(tmp_path, model=model)
    with mementum.open_run(tmp_path, task="t", model=again) as run:
        assert run.resumed is not None
        expected = model.state_dict()
        assert all(same(tensor, expected[name]) for name, tensor in again.state_dict().items())


def test_the_data_starts_on_a_page(tmp_path: Path) -> None:
    data = (save(tmp_path, model=torch.nn.Linear(3, 3)) / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 4096 == 0


def test_a_name_that_the_format_keeps_for_itself_comes_back_all_the_same(tmp_path: Path) -> None:
    def make(value: float) -> torch.nn.Module:
        model = torch.nn.Linear(1, 1)
        model.register_buffer("__metadata__", torch.full((2,), value))
        return model

    folder = save(tmp_path, model=make(3.0))
    assert load_file(folder / "model.safetensors").keys() == {"weight", "bias", "__metadata__~"}
    again = make(0.0)
    with mementum.open_run(tmp_path, task="t", model=again):
        assert torch.equal(again.state_dict()["__metadata__"], torch.full((2,), 3.0))


def test_what_no_file_can_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    model.register_buffer("x" * 100_000_000, torch.ones(1))
    with pytest.raises(UsageError, match="over the format's limit"):
        mementum.open_run(tmp_path, task="t", model=model)
    assert list(tmp_path.iterdir()) == []
