"""The index comes back as it was written, and what cannot be true of any checkpoint is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.errors import NotReadableHere, UnknownFormat
from mementum.format import index
from mementum.format.blocks import MAX_BLOCK
from mementum.format.fields import FORMAT
from mementum.records import Block, DataFile, Index, StoredTensor

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)


@st.composite
def data_files(draw: st.DrawFn, name: str) -> DataFile:
    blocks: list[Block] = []
    offset = 0
    for _ in range(draw(st.integers(0, 4))):
        size, codec, digest = draw(st.integers(0, MAX_BLOCK)), draw(st.sampled_from(["raw", "zstd:1"])), draw(HEX)
        raw = codec == "raw"
        blocks.append(
            Block(
                offset=offset,
                size=size,
                raw_size=size if raw else draw(st.integers(0, MAX_BLOCK)),
                codec=codec,
                digest=digest,
                raw_digest=digest if raw else draw(HEX),
            )
        )
        offset += size
    return DataFile(name=name, size=offset, blocks=tuple(blocks))


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    files = tuple(draw(data_files(name)) for name in draw(st.lists(NAMES, max_size=3, unique=True)))
    tensors: list[StoredTensor] = []
    for file in files:
        raw_size = sum(block.raw_size for block in file.blocks)
        for _ in range(draw(st.integers(0, 2))):
            offset = draw(st.integers(0, raw_size))
            tensors.append(
                StoredTensor(
                    component=draw(NAMES),
                    name=draw(NAMES),
                    dtype=draw(NAMES),
                    shape=tuple(draw(st.lists(st.integers(0, 1 << 40), max_size=4))),
                    file=file.name,
                    offset=offset,
                    size=draw(st.integers(0, raw_size - offset)),
                )
            )
    return Index(rank=draw(st.integers(0, 1 << 20)), files=files, tensors=tuple(tensors))


SMALL = Index(
    rank=0,
    files=(
        DataFile(
            name="a.blocks",
            size=15,
            blocks=(
                Block(offset=0, size=10, raw_size=10, codec="raw", digest="aa", raw_digest="aa"),
                Block(offset=10, size=5, raw_size=30, codec="zstd:1", digest="bb", raw_digest="cc"),
            ),
        ),
    ),
    tensors=(StoredTensor(component="m", name="w", dtype="int8", shape=(4, 10), file="a.blocks", offset=0, size=40),),
)


@given(written=indexes())
def test_what_was_rendered_is_parsed(written: Index) -> None:
    assert index.parse(index.render(written)) == written


def test_an_empty_index_comes_back() -> None:
    assert index.parse(index.render(Index(rank=3, files=(), tensors=()))) == Index(rank=3, files=(), tensors=())


def test_it_is_one_line_a_tensor_and_a_block() -> None:
    assert index.render(SMALL).decode().splitlines() == [
        '{"format": 1, "rank": 0, "files": [',
        '{"name": "a.blocks", "size": 15, "blocks": [',
        '[0,10,10,"raw","aa"],',
        '[10,5,30,"zstd:1","bb","cc"]',
        "]}",
        '], "tensors": [',
        '{"component":"m","name":"w","dtype":"int8","shape":[4,10],"file":"a.blocks","offset":0,"size":40}',
        "]}",
    ]


def test_names_of_files_by_rank() -> None:
    assert (index.name(0), index.name(12345)) == ("index-00000.json", "index-12345.json")


def edited(*path: str | int, value: Any) -> bytes:
    """The small index with one field changed, or taken out where `value` is Ellipsis."""
    data: Any = json.loads(index.render(SMALL))
    inside = data
    for step in path[:-1]:
        inside = inside[step]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("rank",), -1, "index.rank"),
        (("rank",), ..., "index.rank should be .* missing"),
        (("files",), ..., "index.files"),
        (("files", 0), [], r"index.files\[0\] is not an object"),
        (("files", 0, "size"), 16, "the blocks of a.blocks cover 15 of 16 bytes"),
        (("files", 0, "size"), 1 << 62, "size should be a whole number"),
        (("files", 0, "blocks", 1, 0), 9, "does not follow the block before it"),
        (("files", 0, "blocks", 1, 0), 11, "does not follow the block before it"),
        (("files", 0, "blocks", 0, 0), 1, "does not follow the block before it"),
        (("files", 0, "blocks", 1, 2), MAX_BLOCK + 1, "is too large"),
        (("files", 0, "blocks", 1, 2), -1, "is not a block"),
        (("files", 0, "blocks", 1, 1), -5, "is not a block"),
        (("files", 0, "blocks", 1, 3), 7, "is not a block"),
        (("files", 0, "blocks", 1), [10, 5, 30, "zstd:1"], "is not a block"),
        (("files", 0, "blocks", 1), [10, 5, 30, "zstd:1", "b", "c", "d"], "is not a block"),
        (("files", 0, "blocks", 1), [10, 5.0, 30, "zstd:1", "b"], "is not a block"),
        (("files", 0, "blocks", 1), "block", "is not a block"),
        (("files", 0, "blocks", 0, 2), 11, "is raw, and its two sizes differ"),
        (("tensors", 0, "file"), "b.blocks", "does not lie inside b.blocks"),
        (("tensors", 0, "offset"), 1, "does not lie inside a.blocks"),
        (("tensors", 0, "size"), 41, "does not lie inside a.blocks"),
        (("tensors", 0, "offset"), -1, "offset should be"),
        (("tensors", 0, "shape"), [4, -10], "shape should be a list of extents"),
        (("tensors", 0, "shape"), [1 << 62], "shape should be a list of extents"),
        (("tensors", 0, "shape"), [1] * 65, "shape should be a list of extents"),
        (("tensors", 0, "shape"), [4.0], "shape should be a list of extents"),
        (("tensors", 0, "shape"), [True], "shape should be a list of extents"),
        (("tensors", 0, "shape"), 40, "shape should be a list"),
        (("tensors", 0, "name"), None, r"index.tensors\[0\].name"),
        (("tensors", 0, "dtype"), ..., r"index.tensors\[0\].dtype"),
    ],
)
def test_what_cannot_be_is_refused_and_named(path: tuple[str | int, ...], value: Any, told: str) -> None:
    with pytest.raises(UnknownFormat, match=told):
        index.parse(edited(*path, value=value))


def test_a_newer_index_is_not_damage() -> None:
    with pytest.raises(NotReadableHere, match=f"has format {FORMAT + 1}"):
        index.parse(edited("format", value=FORMAT + 1))


def test_a_file_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(UnknownFormat, match="names a file twice"):
        index.parse(index.render(replace(SMALL, files=SMALL.files * 2)))


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_parsed_never_another_error(at: int, byte: int) -> None:
    data = bytearray(index.render(SMALL))
    data[at % len(data)] = byte
    try:
        index.parse(data)
    except UnknownFormat:
        return


def coded(raw_size: int = 8, codec: str = "delta:4+zstd:1") -> Block:
    return Block(offset=0, size=4, raw_size=raw_size, codec=codec, digest="0" * 32, raw_digest="1" * 32)


WHOLE = DataFile(name="optimizer.blocks", size=4, blocks=(replace(coded(), codec="zstd:1"),), folder="step_0000000001")
DELTA = DataFile(name="optimizer.blocks", size=4, blocks=(coded(),), base="step_0000000001/optimizer.blocks")
TWO = Index(rank=0, files=(DELTA,), tensors=(), bases=(WHOLE,))
LENT = Index(rank=0, files=(WHOLE,), tensors=())


@pytest.mark.parametrize(("one", "format"), [(SMALL, 1), (TWO, 2), (LENT, 2)])
def test_what_refers_to_other_checkpoints_is_of_the_second_format(one: Index, format: int) -> None:
    rendered = index.render(one)
    assert json.loads(rendered)["format"] == format
    assert index.parse(rendered) == one


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (replace(TWO, bases=()), r"the base of optimizer\.blocks is not among the bases"),
        (replace(TWO, files=(replace(DELTA, base=None),)), r"the base of optimizer\.blocks is not among the bases"),
        (replace(TWO, files=(replace(DELTA, base="step_0000000002/x"),)), "is not among the bases"),
        (replace(TWO, bases=(WHOLE, WHOLE)), r"bases names a file twice"),
        (replace(TWO, bases=(replace(WHOLE, folder=None),)), "is not a whole file of another checkpoint"),
        (replace(TWO, bases=(replace(WHOLE, base="x"),)), "is not a whole file of another checkpoint"),
        (replace(TWO, bases=(replace(WHOLE, blocks=(coded(),)),)), "is not a whole file of another checkpoint"),
        (replace(TWO, bases=(replace(WHOLE, blocks=(coded(9, "zstd:1"),)),)), "are not cut into the same blocks"),
        (replace(TWO, bases=(replace(WHOLE, folder="../x"),)), r"folder is not the folder of a checkpoint"),
    ],
)
def test_bases_are_whole_and_there_and_cut_alike(wrong: Index, told: str) -> None:
    with pytest.raises(UnknownFormat, match=told):
        index.parse(index.render(wrong))
