"""Tests of bytes on their way from one store to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from mementum.execute.transfer import DIRECT_MIN, NotWhole, Proved
from mementum.format import blocks
from mementum.records import Block, DataFile
from mementum.storage.direct import ALIGNMENT, address
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

BLOCK = DIRECT_MIN // 2


def made(store: LocalStore) -> tuple[DataFile, list[bytes]]:
    data = [bytes([number]) * BLOCK for number in range(3)]
    store.put("file", data)
    proofs = tuple(
        Block(offset=number * BLOCK, size=BLOCK, raw_size=BLOCK, codec="raw", digest=digest, raw_digest=digest)
        for number, digest in enumerate(map(blocks.digest, data))
    )
    return DataFile(name="file", size=3 * BLOCK, blocks=proofs), data


def test_each_block_is_lent_on_a_border_of_pages_so_that_a_disk_takes_it_from_there(tmp_path: Path) -> None:
    store = LocalStore(PosixDisk(), str(tmp_path))
    file, data = made(store)
    proved = Proved(store, "file", file, lambda: None)
    places: set[int] = set()
    for stored, expected in zip(proved, data, strict=True):
        assert bytes(stored) == expected
        places.add(address(memoryview(stored)))
    assert len(places) == 1  # the next one came into the same memory
    assert places.pop() % ALIGNMENT == 0
    assert [bytes(stored) for stored in proved] == data  # again


def test_a_damaged_block_is_not_handed_on(tmp_path: Path) -> None:
    store = LocalStore(PosixDisk(), str(tmp_path))
    file, data = made(store)
    with (tmp_path / "file").open("r+b") as damaged:
        damaged.seek(BLOCK + 7)
        damaged.write(b"?")
    found: list[bytes] = []
    with pytest.raises(NotWhole, match=f"the block at {BLOCK} does not match"):
        found.extend(bytes(stored) for stored in Proved(store, "file", file, lambda: None))
    assert found == data[:1]
