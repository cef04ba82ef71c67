"""The comparison after a load: whatever came back different is named, and nothing else is."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

import pytest
import torch

from mementum.live.component import compare


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        None,
        math.nan,
        [1, (2, {"a": b"x"})],
        {3, 1, 2},
        deque([1], maxlen=4),
        torch.tensor([math.nan, -0.0]),
        OrderedDict(a=torch.ones(1)),
        torch.float32,
    ],
)
def test_what_is_equal_is_not_named(value: object) -> None:
    assert compare("s", {"v": value}, {"v": value}) == []


def test_sets_have_no_order() -> None:
    one, other = set(), set()
    one.update((8, 0, 16))
    for number in (16, 8, 0):
        other.add(number)
    assert compare("s", {"v": one}, {"v": other}) == []


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (1, 2, ["s.v came back different"]),
        (1, 1.0, ["s.v came back different"]),
        (1, True, ["s.v came back different"]),
        (0.0, -0.0, ["s.v came back different"]),
        ("1", 1, ["s.v came back different"]),
        (torch.ones(1), 1.0, ["s.v came back different"]),
        (None, torch.ones(1), ["s.v came back different"]),
        (torch.zeros(1), -torch.zeros(1), ["s.v came back different"]),
        (torch.ones(2), torch.ones(2).double(), ["s.v came back different"]),
        (torch.ones(2), torch.ones(2, 1), ["s.v came back different"]),
        (deque([1], maxlen=2), deque([1], maxlen=3), ["s.v came back different"]),
        ([1, 2], [1], ["s.v[1] is missing after the load"]),
        ({}, {"k": 1}, ["s.v is missing after the load", "s.v.k is there after the load and was not stored"]),
        ({"1": 1}, {1: 1}, ["s.v['1'] is missing after the load", "s.v[1] is there after the load and was not stored"]),
    ],
)
def test_what_differs_is_named(before: object, after: object, named: list[str]) -> None:
    assert compare("s", {"v": before}, {"v": after}) == named


def test_all_differences_are_named_in_order() -> None:
    before = {"c": 1, "a": torch.ones(2), "b": {"x": 1}}
    after = {"c": 2, "a": torch.zeros(2), "b": {}}
    assert compare("s", before, after) == [
        "s.a came back different",
        "s.b is there after the load and was not stored",
        "s.b.x is missing after the load",
        "s.c came back different",
    ]
