"""What is left of a checkpoint whose levels are dropped: fewer files and tensors, and a context that knows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mementum.errors import UnknownFormat
from mementum.format.levels import (
    KINDS,
    context_left,
    granularity_left,
    index_left,
    is_cut_alike,
    kind_of,
    level_of,
    standard_name,
)
from mementum.records import Block, DataFile, Granularity, Index, StoredTensor

FULL, WEIGHTS, BOTH, ESSENTIALS = Granularity


def file(name: str, *sizes: int, **given: Any) -> DataFile:
    cut = [Block(offset=0, size=size, raw_size=size, codec="raw", digest="", raw_digest="") for size in sizes]
    return DataFile(name=name, size=sum(sizes), blocks=tuple(cut), **given)


def tensor(component: str, held: str, offset: int = 0, size: int = 8) -> StoredTensor:
    return StoredTensor(component=component, name="w", dtype="float32", shape=(2,), file=held, offset=offset, size=size)


BASE = file("optimizer.blocks", 8, folder="step_0000000001")
INDEX = Index(
    rank=0,
    files=(file("model.safetensors", 8), file("optimizer-2.blocks", 8, base="step_0000000001/optimizer.blocks")),
    tensors=(tensor("model", "model.safetensors"), tensor("optimizer", "optimizer-2.blocks")),
    bases=(BASE,),
)
CONTEXT = {
    "format": 1,
    "step": 3,
    "epoch": 1,
    "components": {"model": {"kind": "module"}, "optimizer": {"kind": "optimizer"}, "schedule": {"kind": "object"}},
    "rng": {"$enum": ["a.class:that.is.not.here", 1]},
    "values": {},
}


@pytest.mark.parametrize(
    ("name", "level", "standard"),
    [
        ("model.safetensors", 0, "model.safetensors"),
        ("model.frozen.safetensors", 0, "model.frozen.safetensors"),
        ("model.safetensors.blocks", 0, "model.safetensors"),
        ("a.b.frozen.safetensors-12.blocks", 0, "a.b.frozen.safetensors"),
        ("optimizer.blocks", 1, "optimizer.blocks"),
        ("optimizer-2.blocks", 1, "optimizer-2.blocks"),
    ],
)
def test_names_tell_the_level(name: str, level: int, standard: str) -> None:
    assert (level_of(name), standard_name(name)) == (level, standard)


@pytest.mark.parametrize(
    ("was", "levels", "left"),
    [
        (FULL, (0, 1, 2), FULL),
        (FULL, (0, 1), BOTH),
        (FULL, (0, 2), WEIGHTS),
        (FULL, (0,), WEIGHTS),
        (FULL, (1, 2), ESSENTIALS),
        (FULL, (), ESSENTIALS),
        (BOTH, (0, 1), BOTH),
        (BOTH, (0,), WEIGHTS),
        (WEIGHTS, (0, 1, 2), WEIGHTS),
        (WEIGHTS, (0, 1), WEIGHTS),
        (ESSENTIALS, (0,), ESSENTIALS),
    ],
)
def test_less_never_counts_as_more(was: Granularity, levels: tuple[int, ...], left: Granularity) -> None:
    assert granularity_left(was, levels) is left


@pytest.mark.parametrize(
    ("was", "levels", "kind"),
    [
        (FULL, (0, 1, 2), "full"),
        (BOTH, (0, 1), "weights_and_optimizer"),
        (ESSENTIALS, (0, 2), "essentials"),
        (ESSENTIALS, (1, 2), "optimizer"),
        (ESSENTIALS, (2,), "context"),
    ],
)
def test_without_weights_it_is_called_by_what_is_left(was: Granularity, levels: tuple[int, ...], kind: str) -> None:
    assert kind_of(was, levels) == kind
    assert kind in KINDS


def test_the_index_names_what_is_left_and_its_bases() -> None:
    assert index_left(INDEX, (0, 1, 2)) == INDEX
    assert index_left(INDEX, (0,)) == Index(rank=0, files=INDEX.files[:1], tensors=INDEX.tensors[:1])
    assert index_left(INDEX, (1,)) == Index(rank=0, files=INDEX.files[1:], tensors=INDEX.tensors[1:], bases=(BASE,))


@pytest.mark.parametrize(
    ("levels", "components", "fields"),
    [
        ((0, 1, 2), ["model", "optimizer", "schedule"], ["format", "step", "epoch", "components", "rng", "values"]),
        ((0, 2), ["model", "schedule"], ["format", "step", "epoch", "components", "rng", "values"]),
        ((0, 1), ["model", "optimizer"], ["format", "step", "epoch", "components"]),
        ((0,), ["model"], ["format", "step", "epoch", "components"]),
        ((1,), ["optimizer"], ["format", "step", "epoch", "components"]),
    ],
)
def test_the_context_speaks_of_what_is_left(levels: tuple[int, ...], components: list[str], fields: list[str]) -> None:
    left = json.loads(context_left(json.dumps(CONTEXT).encode(), INDEX, levels, "context"))
    assert (list(left["components"]), list(left)) == (components, fields)
    assert {name: left[name] for name in fields if name != "components"} == {
        name: CONTEXT[name] for name in fields if name != "components"
    }


@pytest.mark.parametrize("data", [b"", b"[]", b'{"step": 1}', b'{"components": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_context_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="ctx is not a context"):
        context_left(data, INDEX, (0,), "ctx")


def test_files_are_alike_where_tensors_and_blocks_are() -> None:
    def index(*files: DataFile, offset: int = 0) -> Index:
        return Index(rank=0, files=files, tensors=(tensor("optimizer", files[0].name, offset),))

    one, two = index(file("a", 8, 8)), index(file("b", 8, 8))
    assert is_cut_alike(one, two, "a", "b")
    assert not is_cut_alike(one, two, "a", "c")
    assert not is_cut_alike(one, index(file("b", 16)), "a", "b")
    assert not is_cut_alike(one, index(file("b", 8, 8), offset=8), "a", "b")
