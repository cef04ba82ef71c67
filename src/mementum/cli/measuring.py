"""Measuring: how far the numbers of two tensors are apart, and the bytes of tensors read one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from mementum.errors import CheckpointDamaged
from mementum.format.generations import key_of
from mementum.records import Damage, DataFile, Index, StoredTensor, record
from mementum.recover.verify import raw_blocks
from mementum.storage.store import Store

CHUNK = 1 << 20  # numbers at a time: eight MiB as float64, which stay in a processor's cache
NUMPY = {  # torch's names of those that numpy has under the same name
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("uint16", "uint32", "uint64"),
}
BFLOAT16 = "bfloat16"  # the upper half of a float32

Name = tuple[str, str]  # a tensor's component and its name in it


@record
class Apart:
    """How far two tensors of one type and shape are apart: `changed` of their `elements` are not the same bits.

    `most` is the largest absolute difference, `relative` the norm of the difference over that of the first one. Both
    are None where nothing is to be said: a type that numpy lacks. `unlike`: elements of which one alone is finite; they
    are in neither."""

    elements: int
    changed: int
    most: float | None = None
    relative: float | None = None
    unlike: int = 0


def apart(dtype: str, first: memoryview, second: memoryview) -> Apart:
    """Both are raw bytes of the same length."""
    import numpy as np  # late: only a deep comparison needs it

    plain = dtype in NUMPY or dtype == BFLOAT16
    width = 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize if plain else 1
    bits = np.dtype(f"u{width}")
    ours, theirs = np.frombuffer(first, dtype=bits), np.frombuffer(second, dtype=bits)
    changed, unlike, most, squares, whole = 0, 0, 0.0, 0.0, 0.0
    for begin in range(0, len(ours), CHUNK):
        one, other = ours[begin : begin + CHUNK], theirs[begin : begin + CHUNK]
        differs = one != other
        changed += int(np.count_nonzero(differs))
        if not plain:
            continue
        if dtype == BFLOAT16:
            a = (one.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            b = (other.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            a, b = one.view(dtype).astype(np.float64), other.view(dtype).astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        unlike += int(np.count_nonzero(differs & ~finite))
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        gap = np.abs(a - b)
        most = max(most, float(gap.max(initial=0.0)))
        squares += float(np.square(gap).sum())
        whole += float(np.square(a).sum())
    if not plain:
        return Apart(elements=len(ours), changed=changed)
    relative = math.sqrt(squares / whole) if whole else (0.0 if not squares else math.inf)
    return Apart(elements=len(ours), changed=changed, most=most, relative=relative, unlike=unlike)


def tensors_of(
    store: Store, folder: str, index: Index, wanted: Collection[Name], *, id: str
) -> Iterator[tuple[Name, memoryview]]:
    """The raw bytes of tensors, file by file and in the order in which they lie there: only one is held at a time.
    CheckpointDamaged where a block is not what was written."""
    for file in index.files:
        here = sorted(
            (one for one in index.tensors if one.file == file.name and (one.component, one.name) in wanted),
            key=lambda one: one.offset,
        )
        if here:
            yield from _cut(store, folder, file, here, index.bases, id)


def _cut(
    store: Store, folder: str, file: DataFile, here: Sequence[StoredTensor], bases: Sequence[DataFile], id: str
) -> Iterator[tuple[Name, memoryview]]:
    waiting = list(here)
    held = bytearray()
    end = 0  # of what was read of the raw stream
    for found in raw_blocks(store, folder, file, bases):
        if isinstance(found, Damage):
            raise CheckpointDamaged(id, [(found.key, found.what)])
        raw = memoryview(found).cast("B")
        begin, end = end, end + raw.nbytes
        while waiting:
            tensor = waiting[0]
            low, high = tensor.offset + len(held), tensor.offset + tensor.size
            if low < begin:
                raise CheckpointDamaged(id, [(key_of(folder, file), f"{tensor.name} does not lie where it should")])
            if low < end:
                held += raw[low - begin : min(high, end) - begin]
            if len(held) < tensor.size or (tensor.size == 0 and tensor.offset > end):
                break
            yield (tensor.component, tensor.name), memoryview(bytes(held))
            held = bytearray()
            waiting.pop(0)
    if waiting:
        raise CheckpointDamaged(id, [(key_of(folder, file), f"{waiting[0].name} does not lie inside it")])
