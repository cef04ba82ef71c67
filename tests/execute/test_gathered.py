"""A stream that is put together from live tensors is, byte for byte, the one that a copy would have given."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mementum.execute.capture import BlockingCapture
from mementum.execute.gathered import Gathered
from mementum.execute.structure import Reader, Reading
from mementum.format.blocks import BLOCK, encode
from mementum.live.component import Component
from mementum.live.stateful import components_in


class Made:
    """A model and tensors of many kinds, with their streams as a capture copies them, and as they are gathered."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
        self.model.register_buffer("large", torch.randint(255, (BLOCK + 4099,), dtype=torch.uint8))
        state = {
            "model": self.model,
            "turned": torch.randn(6, 4).t(),
            "flag": torch.tensor(True),
            "half": torch.randn(9).half(),
            "empty": torch.empty(0, 3),
            "conj": torch.randn(4, dtype=torch.complex64).conj(),
        }
        components: tuple[Component, ...] = components_in(state)
        captured = BlockingCapture(codec="raw").take(components)
        assert captured is not None
        self.expected = [bytes(image.raw[:]) for image in captured.images]
        self.reading: Reading = Reader(codec="raw").read(components)
        self.gathered = [
            Gathered(layout, self.reading, number) for number, layout in enumerate(self.reading.structure.layouts)
        ]


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


def test_whole_streams(made: Made) -> None:
    assert [bytes(one[:]) for one in made.gathered] == made.expected


def test_any_piece(made: Made, rng: random.Random) -> None:
    for gathered, expected in zip(made.gathered, made.expected, strict=True):
        for _ in range(60):
            start = rng.choice((0, rng.randrange(len(expected)), len(expected)))
            stop = start + rng.choice((0, 1, 17, 5000, BLOCK))
            assert bytes(gathered[start:stop]) == expected[start:stop], (gathered.layout.name, start, stop)


def test_a_piece_lies_on_a_page(made: Made) -> None:
    """A write past the page cache takes no other."""
    for gathered in made.gathered:
        assert np.frombuffer(gathered[10:20], np.uint8).ctypes.data % 4096 == 0


def test_digests_are_those_of_the_blocks_that_are_written(made: Made) -> None:
    """Of a file of weights, which is all that is ever frozen."""
    (weights,) = [one for one in made.gathered if one.layout.name == "model.safetensors"]
    expected = made.expected[made.gathered.index(weights)]
    written = [block for block, _ in encode(memoryview(expected), weights.layout.stretches, "raw")]
    assert len(written) > 1
    assert weights.digests() == tuple(block.digest for block in written)
    assert weights.digests() is weights.digests()  # made once


def test_names_are_those_of_its_tensors(made: Made) -> None:
    (weights,) = [one for one in made.gathered if one.layout.name == "model.safetensors"]
    assert {name for _, name in weights.names} == set(made.model.state_dict())
    assert {component for component, _ in weights.names} == {"model"}


@pytest.mark.parametrize("how", ["in place", "swapped", "through data"])
def test_a_change_is_seen(how: str) -> None:
    made = Made()
    weight = made.model[0].weight
    (weights,) = [one for one in made.gathered if one.layout.name == "model.safetensors"]
    before = bytes(weights[:])
    assert weights.changed() is None
    if how == "in place":
        with torch.no_grad():
            weight.add_(1)
    elif how == "swapped":
        weight.data = weight.data.clone()
    else:
        weight.data.add_(1)
    assert weights.changed() == "model.0.weight"  # through data by the head of the tensor
    assert (bytes(weights[:]) == before) is (how == "swapped")  # memory that was given away is held


def test_the_memory_of_a_swapped_parameter_is_held() -> None:
    """What it had is read, and not what took its place in the machine's memory."""
    model = torch.nn.Linear(1000, 1000, bias=False)
    reader = Reader(codec="raw")
    reader.read(components_in({"model": model}))
    reading = reader.read(components_in({"model": model}))  # by a glance: it holds the parameter, whose memory may go
    gathered = Gathered(reading.structure.layouts[0], reading, 0)
    before = bytes(gathered[:])
    del reader, reading
    model.weight.data = torch.zeros(1)
    others = [torch.full((1000, 1000), 7.0) for _ in range(5)]
    assert bytes(gathered[:]) == before
    assert len(others) == 5
