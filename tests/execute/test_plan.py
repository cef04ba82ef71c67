"""The plan puts models into safetensors files, everything else into one file of blocks, without gap."""

from __future__ import annotations

import json

from mementum.execute.plan import BLOCKS_NAME, Facts, plan, weights_name
from mementum.format.blocks import Stretch
from mementum.records import StoredTensor


def fact(name: str, dtype: str, itemsize: int, *shape: int) -> Facts:
    size = itemsize
    for extent in shape:
        size *= extent
    return (name, dtype, shape, itemsize, size)


WEIGHTS = {"model": [fact("b", "bfloat16", 2, 3), fact("w", "float32", 4, 2, 2)], "ema": [fact("w", "float32", 4, 1)]}
OTHERS = {
    "optimizer": [fact("step", "int64", 8), fact("m", "float32", 4, 3), fact("flags", "uint8", 1, 5)],
    "scaler": [fact("scale", "float32", 4), fact("more", "float64", 8, 2)],
}


def test_nothing_gives_no_files() -> None:
    assert plan({}, {}, codec="raw") == ()
    assert plan({}, {"scheduler": []}, codec="zstd:1") == ()


def test_a_file_a_model_and_one_for_the_rest_in_this_order() -> None:
    layouts = plan(WEIGHTS, OTHERS, codec="planes+zstd:1")
    assert [layout.name for layout in layouts] == ["model.safetensors", "ema.safetensors", BLOCKS_NAME]
    assert [layout.codec for layout in layouts] == ["raw", "raw", "planes+zstd:1"]
    assert weights_name("generator.2") == "generator.2.safetensors"


def test_weights_lie_behind_a_header_of_whole_pages() -> None:
    layout = plan(WEIGHTS, {}, codec="zstd:1")[0]
    assert len(layout.header) == 4096
    assert layout.raw_size == 4096 + 16 + 6
    assert layout.stretches == (Stretch(offset=0, size=layout.raw_size, width=1),)
    assert [(tensor.name, tensor.offset, tensor.size) for tensor in layout.tensors] == [
        ("w", 4096, 16),
        ("b", 4112, 6),
    ]
    fields = json.loads(layout.header[8:])
    assert fields["w"]["data_offsets"] == [0, 16]  # of the data, where the index counts from the file's beginning
    assert fields["b"]["data_offsets"] == [16, 22]


def test_the_rest_is_sorted_by_width_into_one_stretch_a_width() -> None:
    (layout,) = plan({}, OTHERS, codec="planes+zstd:1")
    assert layout.header == b""
    assert [(t.component, t.name, t.offset, t.size) for t in layout.tensors] == [
        ("optimizer", "step", 0, 8),
        ("scaler", "more", 64, 16),
        ("optimizer", "m", 128, 12),
        ("scaler", "scale", 192, 4),
        ("optimizer", "flags", 256, 5),
    ]
    assert layout.stretches == (
        Stretch(offset=0, size=128, width=8),
        Stretch(offset=128, size=128, width=4),
        Stretch(offset=256, size=64, width=1),
    )
    assert layout.raw_size == 320


def test_equal_names_of_two_components_stay_apart() -> None:
    (layout,) = plan({}, {"a": [fact("x", "int8", 1, 2)], "b": [fact("x", "int8", 1, 3)]}, codec="raw")
    assert [(t.component, t.name, t.offset, t.size) for t in layout.tensors] == [("a", "x", 0, 2), ("b", "x", 64, 3)]


def test_empty_and_scalar_tensors_have_their_places() -> None:
    (layout,) = plan({}, {"a": [fact("none", "float32", 4, 0, 3), fact("one", "float32", 4)]}, codec="raw")
    assert [(t.name, t.shape, t.offset, t.size) for t in layout.tensors] == [("none", (0, 3), 0, 0), ("one", (), 0, 4)]
    (empty,) = plan({}, {"a": [fact("none", "float32", 4, 0)]}, codec="raw")
    assert (empty.raw_size, empty.stretches) == (0, (Stretch(offset=0, size=0, width=4),))


def test_a_model_without_tensors_is_a_file_with_a_header() -> None:
    (layout,) = plan({"model": []}, {}, codec="raw")
    assert (layout.raw_size, layout.tensors) == (4096, ())


def test_the_index_gets_what_was_planned() -> None:
    (layout,) = plan({"model": [fact("w", "float32", 4, 2, 2)]}, {}, codec="raw")
    assert layout.tensors == (
        StoredTensor(
            component="model",
            name="w",
            dtype="float32",
            shape=(2, 2),
            file="model.safetensors",
            offset=4096,
            size=16,
        ),
    )
