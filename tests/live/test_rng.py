"""The global generators: what is read is put back to the last bit, spare normal numbers included."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mementum.format import typed_json
from mementum.live import rng


def draws() -> tuple[list[float], list[float], list[float]]:
    """Numbers of every kind from every generator; `gauss` and `standard_normal` keep a second one for later."""
    return (
        [random.gauss(0, 1), random.random(), float(random.getrandbits(70))],
        [float(np.random.standard_normal()), float(np.random.rand()), float(np.random.randint(1 << 30))],
        torch.cat((torch.randn(3), torch.rand(3), torch.randperm(3).float())).tolist(),
    )


@pytest.mark.parametrize("before", range(4))
def test_the_numbers_that_follow_are_the_same(before: int) -> None:
    """An odd count of normal numbers leaves one in store, in python and in numpy."""
    random.seed(before)
    np.random.seed(before)
    torch.manual_seed(before)
    for _ in range(before):
        random.gauss(0, 1)
        np.random.standard_normal()
        torch.randn(1)
    state = typed_json.loads(typed_json.dumps(rng.read()))
    expected = draws(), draws()
    assert isinstance(state, dict)
    rng.apply(state)
    assert (draws(), draws()) == expected


def test_the_spare_normal_numbers_are_part_of_the_state() -> None:
    random.seed(1)
    np.random.seed(1)
    random.gauss(0, 1)
    np.random.standard_normal()
    state = rng.read()
    assert isinstance(state["python"]["gauss"], float)
    assert state["numpy"]["has_gauss"] == 1


def test_reading_and_putting_back_change_nothing() -> None:
    torch.manual_seed(2)
    before = typed_json.dumps(rng.read())
    rng.apply(rng.read())
    assert typed_json.dumps(rng.read()) == before


def test_devices_that_are_not_here_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = {**rng.read(), "cuda": [bytes(16), bytes(16)]}
    assert rng.inexact(state) == ["the generators of 2 CUDA devices were stored, there are 0 here"]
    assert rng.inexact(rng.read()) == []
    rng.apply(state)
