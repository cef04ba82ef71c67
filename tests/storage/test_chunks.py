"""Chunks say whether they can be repeated, and keep their bytes whatever their shape."""

import itertools

import numpy as np
import pytest

from mementum.storage.chunks import can_repeat, flat, pieces, watched


def test_lists_can_be_repeated_and_iterators_cannot():
    assert can_repeat([b"1"])
    assert can_repeat((b"1",))
    assert can_repeat(watched([b"1"], len))
    for once in (iter([b"1"]), (chunk for chunk in [b"1"]), map(bytes, [[1]]), itertools.chain([b"1"])):
        assert not can_repeat(once)
    assert not can_repeat(watched(iter([b"1"]), len))


@pytest.mark.parametrize(("make", "times"), [(list, 2), (iter, 1)])
def test_each_chunk_is_looked_at_before_it_is_handed_on(make, times):
    seen: list[bytes] = []
    chunks = watched(make([b"1", b"2"]), seen.append)
    assert seen == []
    for handed_on, chunk in enumerate(chunks, 1):
        assert len(seen) == handed_on
        assert chunk == seen[-1]
    assert list(chunks) == [b"1", b"2"] * (times - 1)
    assert seen == [b"1", b"2"] * times


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pieces_have_their_size_and_all_bytes(size):
    wide = memoryview(bytes(range(24))).cast("i").cast("B").cast("B", (4, 6))
    chunks = (b"", b"12", wide, bytearray(b"345"), np.zeros((0, 3), np.float32).data)
    data = b"".join(memoryview(chunk).tobytes() for chunk in chunks)
    found = list(pieces(chunks, size))
    assert b"".join(found) == data
    assert {len(piece) for piece in found[:-1]} <= {size}
    assert 0 < len(found[-1]) <= size
    assert list(pieces([b"", b""], size)) == []


def test_flat_memory_is_not_copied():
    data = bytearray(range(64))
    view = flat(memoryview(data).cast("i"))
    data[5] = 99
    assert (view.ndim, view.format, view[5], len(view)) == (1, "B", 99, 64)
