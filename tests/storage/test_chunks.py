"""Chunks say whether they can be repeated, and keep their bytes whatever their shape."""

import itertools

import numpy as np
import pytest

from mementum.storage.chunks import COPY_ALONE_MIN, can_repeat, copied, flat, pieces, watched


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


@pytest.mark.parametrize("size", [0, 5, COPY_ALONE_MIN - 1, COPY_ALONE_MIN, 3 * COPY_ALONE_MIN])
def test_a_copy_stays_as_it_is_when_the_memory_is_used_again(size):
    memory = bytearray(range(256)) * (size // 256 + 1)
    data = bytes(memory[:size])
    made = copied(memoryview(memory)[:size])
    memory[:] = bytes(len(memory))
    assert bytes(made) == data
    assert len(made) == size  # also where the memory has several dimensions
    wide = memoryview(bytearray(data) * 2).cast("B", (2, size)) if size else memoryview(b"")
    assert len(copied(wide)) == 2 * size


def test_bytes_are_not_copied():
    data = bytes(2 * COPY_ALONE_MIN)
    assert copied(data) is data
