"""Which files landed raw, and of what width the numbers in a block are."""

from __future__ import annotations

from mementum.execute.compress import Widths, is_raw
from mementum.records import Block, DataFile, StoredTensor


def block(raw_size: int, codec: str = "raw") -> Block:
    return Block(offset=0, size=raw_size, raw_size=raw_size, codec=codec, digest="", raw_digest="")


def test_what_was_compressed_is_not_raw() -> None:
    """One in which only some blocks are raw was compressed, and those did not shrink."""
    assert is_raw(DataFile(name="x", size=16, blocks=(block(8), block(8))))
    assert not is_raw(DataFile(name="x", size=16, blocks=(block(8), block(8, "zstd:1"))))
    assert not is_raw(DataFile(name="x", size=0, blocks=()))


def test_widths_follow_the_tensors() -> None:
    def tensor(name: str, offset: int, size: int, *shape: int) -> StoredTensor:
        return StoredTensor(component="o", name=name, dtype="?", shape=shape, file="f", offset=offset, size=size)

    widths = Widths([tensor("b", 16, 8, 2, 1), tensor("a", 0, 16, 2), tensor("e", 24, 0, 0), tensor("s", 24, 2)])
    assert [widths.of_next(block(size)) for size in (8, 8, 8, 2, 5)] == [8, 8, 4, 2, 1]
    assert Widths([]).of_next(block(4)) == 1
