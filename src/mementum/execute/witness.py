"""Witness: what tensors were when their copy was asked for, so that a copy which something overtook is found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from mementum.execute.structure import SAMPLE, Bytes, Spot
from mementum.format.blocks import digest
from mementum.records import record


class Watched:
    """Tensors in memory, with the views that a copy of them and a look at them need: made once for a structure."""

    def __init__(self, spots: Sequence[Spot]) -> None:
        self.spots = tuple(spots)
        self.sources = tuple(spot.source() for spot in spots)

    @cached_property
    def heads(self) -> tuple[Bytes, ...]:
        return tuple(source[:SAMPLE] for source in self.sources)

    def sample(self) -> Bytes:
        return _joined(self.heads)


@record
class Witness:
    """torch's counts of changes, and a part of the bytes; with `digests`, all of them.

    The counts see every change in place but those through `.data` and of some fused kernels; the bytes see those."""

    tensors: tuple[torch.Tensor, ...]
    storages: tuple[torch.UntypedStorage, ...]  # held, since a tensor may be given another one meanwhile
    places: tuple[int, ...]  # of their memory: a storage that is shared or resized gives it up
    versions: tuple[int, ...]
    sample: Bytes
    digests: tuple[str, ...] | None


def witness(watched: Watched, tensors: Sequence[torch.Tensor], *, verify: bool) -> Witness:
    """What the tensors are now."""
    storages = tuple([tensor.untyped_storage() for tensor in tensors])
    return Witness(
        tensors=tuple(tensors),
        storages=storages,
        places=tuple([storage.data_ptr() for storage in storages]),
        versions=tuple([tensor._version for tensor in tensors]),
        sample=watched.sample(),
        digests=tuple(digest(source.data) for source in watched.sources) if verify else None,
    )


def what_happened(before: Witness, watched: Watched, targets: Sequence[Bytes]) -> str | None:
    """Why the copy in `targets` is not of the tensors as they were, or None."""
    if tuple([storage.data_ptr() for storage in before.storages]) != before.places:
        return "the memory of a tensor was moved (shared with a process, or resized) while it was copied"
    versions = tuple([tensor._version for tensor in before.tensors])
    same = versions == before.versions and np.array_equal(before.sample, _joined([one[:SAMPLE] for one in targets]))
    if same and before.digests is None:
        return None
    place = 0
    for number, (spot, target) in enumerate(zip(watched.spots, targets, strict=True)):
        head = target[:SAMPLE]
        seen = before.sample[place : place + head.size]
        place += head.size
        if (
            versions[number] != before.versions[number]
            or not np.array_equal(seen, head)
            or (before.digests is not None and before.digests[number] != digest(target.data))
        ):
            return f"{spot.name} was changed while it was copied, not by its optimizer's step"
    return None


def _joined(heads: Sequence[Bytes]) -> Bytes:
    return np.concatenate(heads) if heads else np.empty(0, np.uint8)
