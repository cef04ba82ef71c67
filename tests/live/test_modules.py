"""Models: all that a state dict holds comes back in place, and what does not fit is named before anything changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from mementum.errors import StateMismatch, UnsupportedState
from mementum.live.fitting import LEFT, STRICT, Fit
from mementum.live.modules import ModuleState
from mementum.live.tree import UNCOPYABLE, as_bytes
from trips import bits, resume, save_now, there_and_back


def weights_file(root: Path, name: str = "model") -> Path:
    (found,) = root.rglob(f"{name}.safetensors")
    return found


def trip(root: Path, make: Callable[[], nn.Module], change: Callable[[Any], object] = lambda _: None) -> Any:
    """The model that was saved after `change`, and a fresh one after the resume."""
    saved, fresh = there_and_back(root, lambda: {"model": make()}, lambda made: change(made["model"]))
    assert bits(saved["model"].state_dict()) == bits(fresh["model"].state_dict())
    return saved["model"], fresh["model"]


class Counting(nn.Module):
    """Keeps a dict with tensors beside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.extra: Any = {"calls": 0}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_state_comes_back(tmp_path: Path) -> None:
    def change(model: nn.Sequential) -> None:
        model[0].extra = {"calls": 3, "seen": (1, "a"), "scale": torch.tensor([2.0, 3.0]), 4: None}

    _, fresh = trip(tmp_path, lambda: nn.Sequential(Counting()), change)
    extra = fresh[0].extra
    assert {key: value for key, value in extra.items() if key != "scale"} == {"calls": 3, "seen": (1, "a"), 4: None}
    assert extra["scale"].tolist() == [2.0, 3.0]


def test_an_extra_state_may_change_its_shape_and_kind(tmp_path: Path) -> None:
    """Some modules give an empty tensor at first and a longer one later; only they know what they take."""
    for number, (first, later) in enumerate(
        [(torch.empty(0), torch.arange(9)), (None, torch.ones(2)), (torch.ones(1), {"now": "a dict"})]
    ):

        def make(first: Any = first) -> Counting:
            model = Counting()
            model.extra = first
            return model

        _, fresh = trip(tmp_path / str(number), make, lambda model, later=later: setattr(model, "extra", later))
        assert str(fresh.extra) == str(later)


def test_batch_norm_counts_on(tmp_path: Path) -> None:
    _, fresh = trip(tmp_path, lambda: nn.BatchNorm1d(3), lambda model: [model(torch.randn(4, 3)) for _ in range(3)])
    assert (fresh.num_batches_tracked.item(), fresh.num_batches_tracked.dtype) == (3, torch.int64)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_parametrizations(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

    def change(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(inputs).sum().backward()
            optimizer.step()

    saved, fresh = trip(tmp_path, lambda: wrap(nn.Linear(4, 3)), change)
    assert torch.equal(saved.eval()(inputs), fresh.eval()(inputs))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    _, fresh = trip(tmp_path, Tied)
    assert fresh.head.weight is fresh.embedding.weight
    with safe_open(weights_file(tmp_path), "pt") as file:
        assert list(file.keys()) == ["embedding.weight"]
    assert weights_file(tmp_path).stat().st_size == 4096 + 50 * 8 * 4


def test_weights_that_were_tied_and_are_not_come_back_equal(tmp_path: Path) -> None:
    save_now(tmp_path, {"model": Tied()})
    fresh = Tied()
    fresh.head.weight = nn.Parameter(torch.zeros(50, 8))
    resume(tmp_path, {"model": fresh})
    assert torch.equal(fresh.head.weight, fresh.embedding.weight)
    assert fresh.head.weight.data_ptr() != fresh.embedding.weight.data_ptr()


def test_weights_that_were_apart_do_not_fit_into_tied_ones(tmp_path: Path) -> None:
    apart = Tied()
    apart.head.weight = nn.Parameter(torch.zeros(50, 8))
    save_now(tmp_path, {"model": apart})
    fresh = Tied()
    before = bits(fresh.state_dict())
    with pytest.raises(
        StateMismatch, match=r"embedding\.weight and head\.weight are one tensor and were stored with d"
    ):
        resume(tmp_path, {"model": fresh})
    assert bits(fresh.state_dict()) == before


def test_weights_that_were_apart_and_equal_fit_into_tied_ones(tmp_path: Path) -> None:
    apart = Tied()
    apart.head.weight = nn.Parameter(apart.embedding.weight.detach().clone())
    save_now(tmp_path, {"model": apart})
    fresh = Tied()
    resume(tmp_path, {"model": fresh})
    assert torch.equal(fresh.head.weight, apart.head.weight)
    assert fresh.head.weight is fresh.embedding.weight


def test_weights_without_gaps_are_not_required(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = nn.Linear(4, 6)
        model.weight = nn.Parameter(torch.randn(4, 6).T)
        model.register_buffer("every_third", torch.arange(30)[::3])
        return model

    saved, fresh = trip(tmp_path, make, lambda model: model.every_third.add_(1))
    assert fresh.weight.stride() == saved.weight.stride() == (1, 6)
    assert fresh.every_third.tolist() == [number + 1 for number in range(0, 30, 3)]


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTISED = {torch.qint8, torch.quint8, torch.qint32}


def buffered(dtype: torch.dtype, fill: int) -> nn.Module:
    model = nn.Module()
    pattern = torch.arange(fill, fill + 8 * dtype.itemsize, dtype=torch.uint8)
    model.register_buffer("held", pattern.remainder(2).bool() if dtype is torch.bool else pattern.view(dtype))
    return model


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in UNCOPYABLE | QUANTISED], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_buffers_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    save_now(tmp_path, {"model": buffered(dtype, 3)})
    fresh = buffered(dtype, 60)
    resume(tmp_path, {"model": fresh})
    assert fresh.held.dtype == dtype
    assert torch.equal(as_bytes(fresh.held), as_bytes(buffered(dtype, 3).held))


@pytest.mark.parametrize("dtype", sorted(UNCOPYABLE, key=str), ids=str)
def test_a_dtype_that_torch_cannot_copy_is_refused_at_once(tmp_path: Path, dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedState, match=rf"model\.state\.held: .*{dtype}"):
        save_now(tmp_path / "root", {"model": buffered(dtype, 3)})
    assert not (tmp_path / "root").exists()


def test_names_may_be_anything_that_torch_allows(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = nn.Module()
        for number, name in enumerate(("größe", "a/b", "~", "重み", "with space", "__metadata__", 'quo"te\\')):
            model.register_parameter(name, nn.Parameter(torch.full((2,), float(number))))
        model.add_module("läyer", nn.ModuleDict({"x": nn.Linear(1, 1)}))
        return model

    trip(tmp_path, make, lambda model: [parameter.data.add_(1) for parameter in model.parameters()])


def test_modes_of_every_module_come_back(tmp_path: Path) -> None:
    def change(model: nn.Module) -> None:
        model.eval()
        model[1][0].train()

    saved, fresh = trip(
        tmp_path, lambda: nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Dropout())), change
    )
    assert [module.training for module in fresh.modules()] == [False, False, False, True, False]
    assert [module.training for module in saved.modules()] == [False, False, False, True, False]


def test_several_models_have_a_file_each(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return {"model": {"generator": nn.Linear(2, 3), "critic-1.b": nn.Linear(3, 1), "empty": nn.ReLU()}}

    saved, fresh = there_and_back(tmp_path, make)
    for name in saved["model"]:
        assert bits(saved["model"][name].state_dict()) == bits(fresh["model"][name].state_dict())
        assert weights_file(tmp_path, name).exists()


def test_objects_stay_the_same_objects(tmp_path: Path) -> None:
    save_now(tmp_path, {"model": nn.Linear(2, 2)})
    fresh = nn.Linear(2, 2)
    weight, pointer, grad = fresh.weight, fresh.weight.data_ptr(), torch.ones(2, 2)
    fresh.weight.grad = grad
    resume(tmp_path, {"model": fresh})
    assert fresh.weight is weight
    assert (weight.data_ptr(), weight.requires_grad) == (pointer, True)
    assert weight.grad is grad


def test_every_difference_is_named_and_nothing_changes(tmp_path: Path) -> None:
    def make(**layers: nn.Module) -> dict[str, Any]:
        return {"model": nn.ModuleDict({"same": nn.Linear(1, 1), **layers}), "state": {"seen": {"kept": 1}}}

    save_now(tmp_path, make(gone=nn.Linear(1, 2, bias=False), shape=nn.Linear(2, 1), dtype=nn.Linear(1, 1)))
    fresh = make(new=nn.Linear(1, 3, bias=False), shape=nn.Linear(3, 1), dtype=nn.Linear(1, 1).half())
    fresh["state"]["seen"] = {"mine": 2}
    before = bits(fresh["model"].state_dict())
    with pytest.raises(StateMismatch) as refused:
        resume(tmp_path, fresh)
    assert sorted(refused.value.differences) == [
        "model.dtype.bias was stored as torch.float32 and is torch.float16",
        "model.dtype.weight was stored as torch.float32 and is torch.float16",
        "model.gone.weight was stored and the model has no such entry",
        "model.new.weight is in the model and was not stored",
        "model.shape.weight was stored with shape (1, 2) and has shape (1, 3)",
    ]
    assert bits(fresh["model"].state_dict()) == before
    assert fresh["state"]["seen"] == {"mine": 2}


def test_a_file_of_weights_is_what_readers_of_safetensors_expect(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    save_now(tmp_path, {"model": model})
    with safe_open(weights_file(tmp_path), "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert torch.equal(file.get_tensor("weight"), model.weight)
    head = weights_file(tmp_path).read_bytes()
    fields = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])
    assert sorted(fields) == ["__metadata__", "bias", "weight"]


def test_what_was_no_model_is_refused() -> None:
    for tree in ([1], {"state": 3}):
        assert ModuleState("m", nn.ReLU()).fit(tree, STRICT).problems == ("m was not stored as a model",)
        partial = ModuleState("m", nn.ReLU()).fit(tree, Fit(partial=True))
        assert (partial.tree, partial.left_out, partial.problems) == (LEFT, ("m was not stored as a model",), ())


def test_a_module_without_tensors_that_is_gone_is_named_by_its_mode(tmp_path: Path) -> None:
    save_now(tmp_path, {"model": nn.Sequential(nn.Linear(1, 1), nn.Dropout()).eval()})
    fresh = nn.Sequential(nn.Linear(1, 1))
    with pytest.raises(StateMismatch, match=r"model\.1 was stored and is not in it"):
        resume(tmp_path, {"model": fresh})
    assert fresh.training


def test_modules_may_come_in_another_order(tmp_path: Path) -> None:
    save_now(tmp_path, {"model": nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}).eval()})
    fresh = nn.ModuleDict({"b": nn.Linear(1, 1), "a": nn.Linear(1, 1)})
    resume(tmp_path, {"model": fresh})
    assert [module.training for module in fresh.modules()] == [False] * 3
