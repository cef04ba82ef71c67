"""The comparison after a load: whatever came back different is named, and what is only there besides is told apart."""

from __future__ import annotations

import math
from collections import OrderedDict, deque

import pytest
import torch

from mementum.live.component import compare
from mementum.live.tree import proved

MORE = "s.v{} is there after the load and was not stored"


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
    assert compare("s", proved({"v": value}), {"v": value}) == ([], [])


def test_sets_have_no_order() -> None:
    one, other = set(), set()
    one.update((8, 0, 16))
    for number in (16, 8, 0):
        other.add(number)
    assert compare("s", {"v": one}, {"v": other}) == ([], [])


def test_a_proof_is_of_the_bits_before_they_are_given_away() -> None:
    held = torch.ones(3)
    expected = proved({"v": [held]})
    held.add_(1)
    assert compare("s", expected, {"v": [held]}) == (["s.v[0] came back different"], [])


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
        ({}, OrderedDict(), ["s.v came back different"]),
        ({"1": 1}, {2: torch.ones(1)}, ["s.v['1'] is missing after the load", MORE.format("[2]")]),
        ({"a": 1}, {"a": 1, "b": torch.ones(1)}, [MORE.format(".b")]),
        (True, torch.tensor(1.0), ["s.v came back different"]),
        (2, torch.tensor(3.0), ["s.v came back different"]),
        (2, torch.tensor([2.0]), ["s.v came back different"]),
    ],
)
def test_what_differs_is_named(before: object, after: object, named: list[str]) -> None:
    assert compare("s", proved({"v": before}), {"v": after}) == (named, [])


@pytest.mark.parametrize(
    ("before", "after", "besides"),
    [
        ({"a": 1}, {"a": 1, "new setting": False}, MORE.format("['new setting']")),
        ([1], [1, "x"], MORE.format("[1]")),
        (3, torch.tensor(3.0), "s.v was stored as a number and is a tensor"),
        (0.5, torch.tensor(0.5, dtype=torch.float64), "s.v was stored as a number and is a tensor"),
    ],
)
def test_what_is_there_besides_is_told_and_not_wrong(before: object, after: object, besides: str) -> None:
    assert compare("s", proved({"v": before}), {"v": after}) == ([], [besides])


def test_all_differences_are_named_in_order() -> None:
    before = {"c": 1, "a": torch.ones(2), "b": {"x": 1}}
    after = {"c": 2, "a": torch.zeros(2), "b": {}, "z": 1}
    assert compare("s", proved(before), after) == (
        ["s.a came back different", "s.b.x is missing after the load", "s.c came back different"],
        ["s.b is there after the load and was not stored", "s.z is there after the load and was not stored"],
    )
