"""The structure is read once, and read anew when the state has another one; what is frozen has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mementum.execute import structure
from mementum.execute.structure import Reader, Reading, is_plain
from mementum.live.component import Component
from mementum.live.stateful import components_in


class Made:
    """A model whose first layer is frozen, and an optimizer of the rest."""

    def __init__(self, *, momentum: float = 0.9) -> None:
        torch.manual_seed(0)
        self.model: Any = torch.nn.Sequential(
            torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40, affine=False), torch.nn.Linear(40, 1)
        )
        self.model[0].requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model[2].parameters(), lr=0.1, momentum=momentum)
        self.components: Sequence[Component] = components_in({"model": self.model, "optimizer": self.optimizer})

    def step(self) -> None:
        for parameter in self.model[2].parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "FROZEN_MIN", 1)


def names_in(reading: Reading, file: str) -> set[str]:
    return {placed.laid.name for layout in reading.structure.layouts if layout.name == file for placed in layout.placed}


def frozen_in(reading: Reading) -> set[str]:
    return names_in(reading, "model.frozen.safetensors")


def test_it_is_read_once_and_again_when_it_has_changed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[str] = []
    real = structure._full
    monkeypatch.setattr(structure, "_full", lambda component: full.append(component.name) or real(component))
    reader = Reader(codec="raw")
    first = reader.read(made.components)
    assert full == ["model", "optimizer"]
    again = reader.read(made.components)
    assert again.structure is first.structure
    assert full == ["model", "optimizer"]
    made.step()  # the optimizer has state now
    grown = reader.read(made.components)
    assert grown.structure is not first.structure
    assert len(grown.tensors) == len(first.tensors) + 2
    full.clear()
    made.step()
    made.optimizer.param_groups[0]["lr"] = 0.5
    reading = reader.read(made.components)
    assert full == []
    told: Any = reading.components["optimizer"]["state"]
    assert told["groups"][0]["lr"] == 0.5
    assert reading.structure is grown.structure


def test_a_place_is_of_its_tensor(made: Made) -> None:
    made.step()
    reader = Reader(codec="raw")
    for _ in range(2):
        reading = reader.read(made.components)
        assert len(reading.spots) == len(reading.tensors) == len({spot.name for spot in reading.spots})
        for spot, tensor in zip(reading.spots, reading.tensors, strict=True):
            assert spot.address == tensor.data_ptr()
            assert spot.source().tobytes() == tensor.detach().numpy().tobytes()
            assert reading.structure.places[spot.component][spot.key] == (spot.file, spot.start, spot.stop)


def test_what_lies_in_another_layout_has_no_address() -> None:
    turned = torch.arange(6.0).view(2, 3).t()
    (spot,) = Reader(codec="raw").read(components_in({"t": turned})).spots
    assert spot.address == 0
    assert not is_plain(turned)
    assert not is_plain(torch.ones(2, dtype=torch.complex64).conj())
    assert is_plain(turned.contiguous())


def test_tied_tensors_are_one(made: Made) -> None:
    made.model[2] = torch.nn.Linear(40, 40, bias=False)
    made.model[2].weight = made.model[0].weight
    reader = Reader(codec="raw")
    for _ in range(2):
        reading = reader.read(made.components)
        assert [spot.key for spot in reading.spots if spot.component == "model"].count("0.weight") == 1
        assert "2.weight" not in {spot.key for spot in reading.spots}


def test_somebody_elses_state_is_read_each_time_and_may_move() -> None:
    held = {"a": torch.ones(2)}
    components = components_in({"mine": held})
    reader = Reader(codec="raw")
    first = reader.read(components)
    (one,) = first.loose
    assert one.address == held["a"].data_ptr()
    held["a"] = torch.full((2,), 3.0)
    second = reader.read(components)
    assert second.structure is first.structure
    assert second.loose[0].address == held["a"].data_ptr() != one.address
    assert second.tensors[0] is held["a"] or torch.equal(second.tensors[0], held["a"])
    held["b"] = torch.ones(1)
    assert reader.read(components).structure is not first.structure


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["no state", "state"])
def test_what_is_still_the_same_at_the_second_reading_is_frozen(momentum: float) -> None:
    """Also where nothing else of the state ever changes its structure."""
    made = Made(momentum=momentum)
    reader = Reader(codec="raw", frozen=True)
    assert frozen_in(reader.read(made.components)) == set()
    made.step()
    second = reader.read(made.components)
    assert frozen_in(second) == {"0.weight", "0.bias"}
    assert [one.name for one in second.structure.layouts if one.frozen] == ["model.frozen.safetensors"]
    assert names_in(second, "model.safetensors") == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.weight",
        "2.bias",
    }
    assert reader.read(made.components).structure is second.structure


def test_what_changes_between_readings_is_not_frozen(made: Made) -> None:
    reader = Reader(codec="raw", frozen=True)
    reader.read(made.components)
    with torch.no_grad():
        made.model[0].bias.add_(1)
    assert frozen_in(reader.read(made.components)) == {"0.weight"}


def test_what_an_optimizer_has_or_a_gradient_reaches_is_not_frozen(made: Made) -> None:
    made.model[0].weight.requires_grad_(True)
    made.optimizer.add_param_group({"params": [made.model[0].bias]})
    reader = Reader(codec="raw", frozen=True)
    reader.read(made.components)
    assert frozen_in(reader.read(made.components)) == set()


def test_what_was_unfrozen_stays_so(made: Made) -> None:
    reader = Reader(codec="raw", frozen=True)
    reader.read(made.components)
    assert frozen_in(reader.read(made.components)) == {"0.weight", "0.bias"}
    reader.unfreeze([("model", "0.weight")])
    for _ in range(3):
        assert frozen_in(reader.read(made.components)) == {"0.bias"}


def test_little_is_not_worth_a_file_of_its_own(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "FROZEN_MIN", 41 * 40 * 4 + 1)
    reader = Reader(codec="raw", frozen=True)
    reader.read(made.components)
    assert frozen_in(reader.read(made.components)) == set()


def test_a_model_of_the_files_name_keeps_it(made: Made) -> None:
    other = torch.nn.Linear(3, 3)
    components = components_in({"model": made.model, "optimizer": made.optimizer, "model.frozen": other})
    reader = Reader(codec="raw", frozen=True)
    reader.read(components)
    reading = reader.read(components)
    assert frozen_in(reading) == {"weight", "bias"}
    assert not any(one.frozen for one in reading.structure.layouts)
