"""A checkpoint's generations have names of their own, which no rank and no file of a user is mixed up with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.errors import UnknownFormat
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import Granularity, Health, Manifest

ONE = Manifest(
    id="c1",
    seq=1,
    task="t",
    attempt=1,
    parent=None,
    step=1,
    epoch=0,
    time="2026-11-30T06:10:09.000000Z",
    reason="asked",
    granularity=Granularity.FULL,
    health=Health.CLEAN,
    files=(),
)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("meta.json", 1),
        ("meta-2.json", 2),
        ("meta-10.json", 10),
        ("meta-9999.json", 9999),
        ("meta-1.json", None),
        ("meta-02.json", None),
        ("meta-10000.json", None),
        ("meta-2.json.bak", None),
        ("xmeta.json", None),
        ("meta-.json", None),
    ],
)
def test_a_manifest_is_known_by_its_name(name: str, generation: int | None) -> None:
    assert generations.generation_of(name) == generation
    if generation is not None:
        assert generations.manifest_name(generation) == name


@pytest.mark.parametrize(
    ("name", "generation", "expected"),
    [
        ("optimizer.blocks", 2, "optimizer-2.blocks"),
        ("optimizer-2.blocks", 3, "optimizer-3.blocks"),
        ("optimizer-2.blocks", 1, "optimizer.blocks"),
        ("index-00000.json", 2, "index-00000-2.json"),
        ("index-00000-2.json", 11, "index-00000-11.json"),
        ("optimizer-00002.blocks", 2, "optimizer-00002-2.blocks"),
        ("index-12345.json", 2, "index-12345-2.json"),
    ],
)
def test_a_part_gets_the_name_of_the_generation_that_brings_it(name: str, generation: int, expected: str) -> None:
    assert generations.part_name(name, generation) == expected
    assert generations.brought_by(expected) == generation


@pytest.mark.parametrize("name", ["model.safetensors", "context-00000.json", "index-00003.json", "no suffix"])
def test_what_no_later_generation_brought_is_of_the_first(name: str) -> None:
    assert generations.brought_by(name) == 1


def test_the_highest_number_holds_not_the_last_name() -> None:
    keys = ["b/meta-9.json", "b/meta-10.json", "a/meta.json", "b/meta.json", "c/index-00000-2.json", "b/x/meta-99.json"]
    assert generations.newest(keys) == {"a": "a/meta.json", "b": "b/meta-10.json"}
    assert generations.standing(["meta-10.json", "x", "meta.json", "meta-9.json"]) == (
        "meta.json",
        "meta-9.json",
        "meta-10.json",
    )


def test_parts_tell_which_manifests_could_have_named_them() -> None:
    assert generations.possible([]) == ("meta.json",)
    assert generations.possible(["index-00000-2.json", "optimizer.blocks", "a-17.blocks"]) == (
        "meta.json",
        "meta-2.json",
        "meta-17.json",
    )


def test_a_manifest_lies_under_the_name_of_its_generation() -> None:
    second = replace(ONE, generation=2)
    assert generations.parse(manifests.render(second), "step_0000000001/meta-2.json") == second
    assert generations.parse(manifests.render(ONE), "step_0000000001/meta.json") == ONE
    for written, name in ((second, "meta.json"), (second, "meta-3.json"), (ONE, "meta-2.json"), (ONE, "other.json")):
        with pytest.raises(UnknownFormat, match=f"{name} is generation {written.generation} of its manifest"):
            generations.parse(manifests.render(written), f"step_0000000001/{name}")
