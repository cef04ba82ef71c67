"""Trees of state: what is taken out under which name, and that it comes back as the same tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mementum.errors import CheckpointDamaged, UnsupportedState
from mementum.live.tree import ALONE, DEPTH_MAX, join, leaves, prove, prove_all, proved, same, split, stored
from trips import Box, bits, there_and_back


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_containers_come_back_as_they_were() -> None:
    state = {
        "a": [torch.ones(2), (torch.zeros(1), 3, None)],
        "b": OrderedDict([("z", torch.ones(1)), ("y", "word")]),
        "empty": [{}, [], (), OrderedDict()],
        ("a", 1): {2.5: torch.ones(3)},
    }
    skeleton, tensors = split(state, component="s")
    assert list(tensors) == ["a/0", "a/1/0", "b/z", "('a', 1)/2.5"]
    back = join(skeleton, tensors.__getitem__)
    assert bits(back) == bits(state)
    assert [type(value) for value in back.values()] == [list, OrderedDict, list, dict]
    assert list(back["b"]) == ["z", "y"]
    assert type(back["a"][1]) is tuple
    assert [type(value) for value in back["empty"]] == [dict, list, tuple, OrderedDict]


def test_keys_that_look_alike_stay_apart() -> None:
    state = {1: torch.tensor(1), "1": torch.tensor(2), "a/b": torch.tensor(4), "a~1b": [1]}
    state |= {"a": {"b": torch.tensor(5)}, "~": torch.tensor(6), "1~": torch.tensor(7), "": torch.tensor(8)}
    skeleton, tensors = split(state, component="s")
    assert len(tensors) == 7
    assert {
        key: int(value) for key, value in join(skeleton, tensors.__getitem__).items() if key not in ("a", "a~1b")
    } == {
        1: 1,
        "1": 2,
        "a/b": 4,
        "~": 6,
        "1~": 7,
        "": 8,
    }


def test_tensors_right_under_a_key_have_its_names_alone() -> None:
    state = {"state": {"0.weight": torch.ones(1), "a/b~1": torch.ones(2), "deep": {"x": torch.ones(3)}}}
    _, tensors = split(state, component="m", named_by="state")
    assert list(tensors) == ["0.weight", "a/b~1", "state/deep/x"]


def test_no_tensor_takes_the_name_that_safetensors_keeps() -> None:
    _, tensors = split({"state": {"__metadata__": torch.ones(1)}}, component="m", named_by="state")
    assert list(tensors) == ["__metadata__~"]


def test_a_tied_tensor_is_taken_once_and_comes_back_as_one_object() -> None:
    tied = torch.ones(4)
    skeleton, tensors = split({"a": tied, "b": [tied, tied[:2], tied.view(2, 2)]}, component="s")
    assert list(tensors) == ["a", "b/1", "b/2"]
    back = join(skeleton, stored(tensors, id="c"))
    assert back["a"] is back["b"][0]
    assert back["b"][2] is not back["a"]


def test_empty_tensors_are_never_tied() -> None:
    """They all have the address zero."""
    skeleton, tensors = split({"a": torch.empty(0), "b": torch.empty(0)}, component="s")
    assert list(tensors) == ["a", "b"]
    back = join(skeleton, stored(tensors, id="c"))
    assert back["a"] is not back["b"]


def test_one_memory_read_in_two_ways_is_two_tensors() -> None:
    pairs = numbers(3, 2)
    complex_ = torch.view_as_complex(pairs)
    state = {
        "z": complex_,
        "conj": complex_.conj(),
        "imag": complex_.imag,
        "neg": complex_.conj().imag,
        "int": pairs.view(torch.int32),
        "transposed": pairs.T,
        "pairs": pairs,
    }
    assert len(split(state, component="s")[1]) == len(state)


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "a part of a large one": lambda: numbers(1_000_000)[:1000],
    "transposed": lambda: numbers(5, 7).T,
    "strided": lambda: numbers(40)[3::3],
    "expanded": lambda: numbers(1, 3).expand(4, 3),
    "flipped": lambda: numbers(6).flip(0),
    "channels last": lambda: numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.view_as_complex(numbers(4, 2)).conj(),
    "negated": lambda: torch.view_as_complex(numbers(4, 2)).conj().imag,
    "no dimension": lambda: torch.tensor(1.25),
    "nothing in it": lambda: torch.empty(0),
    "nothing in it, of a shape": lambda: torch.empty(3, 0, 2, dtype=torch.bfloat16),
    "one of many dimensions": lambda: numbers(1).reshape(*[1] * 20),
    "not a number": lambda: (
        torch.tensor([0x7FC00001, 0x7F800001, 0x80000000], dtype=torch.int64).to(torch.int32).view(torch.float32)
    ),
    "requires grad": lambda: numbers(3).requires_grad_(),
    "part of a graph": lambda: numbers(3).requires_grad_() * 2,
    "made for inference": lambda: torch.inference_mode()(numbers)(3),
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_view_comes_back_equal(tmp_path: Path, view: str) -> None:
    tensor = VIEWS[view]()
    box = Box(a=tensor, twice=[tensor])
    _, fresh = there_and_back(tmp_path, lambda: {"state": {"box": Box()}}, lambda made: made["state"].update(box=box))
    back = fresh["state"]["box"].held
    assert same(back["a"], tensor.detach())
    assert back["a"].layout == torch.strided
    assert (back["a"].is_conj(), back["a"].is_neg()) == (False, False)
    assert back["a"].untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_two_readings_of_one_memory_come_back_as_they_were(tmp_path: Path) -> None:
    complex_ = torch.view_as_complex(numbers(4, 2))
    wanted = {"plain": complex_.imag.clone(), "negated": -complex_.imag}
    box = Box(plain=complex_.imag, negated=complex_.conj().imag)
    _, fresh = there_and_back(tmp_path, lambda: {"state": {"box": Box()}}, lambda made: made["state"].update(box=box))
    for name, tensor in wanted.items():
        assert torch.equal(fresh["state"]["box"].held[name], tensor), name


def test_an_empty_tensor_comes_back_on_its_device_whatever_the_default_is(tmp_path: Path) -> None:
    with torch.device("meta"):
        _, fresh = there_and_back(
            tmp_path,
            lambda: {"state": {"box": Box()}},
            lambda made: made["state"]["box"].held.update(nothing=torch.empty(0, 2, device="cpu")),
        )
    assert str(fresh["state"]["box"].held["nothing"].device) == "cpu"


class Subclass(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(2).as_subclass(Subclass), "tensor subclass"),
        (lambda: torch.nn.UninitializedParameter(), "tensor subclass"),
        (lambda: torch.ones(2, device="meta"), "meta device"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), r"can be taken apart \(nested\)"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.uint4), "torch cannot copy"),
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused_with_its_path(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(UnsupportedState, match=rf"s\.a\.0\.b: .*{why}"):
        split({"a": [{"b": make()}]}, component="s")


def test_what_refers_to_itself_is_refused() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedState, match=r"s\.l\.0.*refers to itself"):
        split({"l": cycle}, component="s")
    deep: list[object] = [torch.ones(1)]
    for _ in range(DEPTH_MAX - 1):
        deep = [deep]
    assert len(split(deep, component="s")[1]) == 1


def test_a_missing_tensor_is_named() -> None:
    skeleton, _ = split({"a": torch.ones(1)}, component="s")
    with pytest.raises(CheckpointDamaged, match="a tensor 'a' that is in no file"):
        join(skeleton, stored({}, id="c1"))


def test_leaves_have_paths_that_can_be_read() -> None:
    state = {"a": {1: 2, "1": 3, "x.y": 4}, "b": [(), [5]], "c": {}}
    assert dict(leaves(state, "s")) == {
        "s.a[1]": 2,
        "s.a['1']": 3,
        "s.a['x.y']": 4,
        "s.b[0]": (),
        "s.b[1][0]": 5,
        "s.c": {},
    }


def test_same_compares_bits() -> None:
    assert same(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert not same(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(1, 2))
    assert same(torch.ones(2, 3).T, torch.ones(3, 2))


def test_many_proofs_are_those_of_each_in_order() -> None:
    """Large enough for several threads: a view that is not contiguous, a sparse one, one that is there twice."""
    many = [numbers(ALONE // 32 + number) for number in range(9)]
    many += [numbers(64, 32).T, numbers(3, 3).to_sparse(), torch.empty(0), many[2]]
    assert prove_all(many) == [prove(tensor) for tensor in many]
    assert prove_all(many)[2] != prove_all(many)[3]
    assert proved({"a": [many[1], 3], "b": many[9]}) == {"a": [prove(many[1]), 3], "b": prove(many[9])}
