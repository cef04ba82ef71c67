"""Load: reads a checkpoint's tensors and context into memory, proving every byte on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mementum.records import Block, Buffer, Damage, DataFile, Manifest, StoredTensor, record
from mementum.recover.verify import Proved, examine, read_blocks
from mementum.storage.store import Store


@record
class Loaded:
    """A checkpoint in memory, proved: tensors by component and name, and the context."""

    manifest: Manifest
    context: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]


def load(store: Store, folder: str, manifest: Manifest) -> Loaded | tuple[Damage, ...]:
    """Read all of a checkpoint, or the damage that was found. Nothing live is touched.

    The tensors are views into one array a file: whoever keeps one clones it."""
    proved = examine(store, folder, manifest)
    if not isinstance(proved, Proved):
        return proved
    found: list[Damage] = []
    raw: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    for file in proved.index.files:
        raw[file.name], wrong = _read(store, f"{folder}/{file.name}", file)
        found += wrong
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for stored in () if found else proved.index.tensors:
        tensor = _tensor(stored, raw[stored.file], f"{folder}/{stored.file}")
        if isinstance(tensor, Damage):
            found.append(tensor)
        else:
            tensors.setdefault(stored.component, {})[stored.name] = tensor
    if found:
        return tuple(found)
    return Loaded(manifest=manifest, context=proved.context, tensors=tensors)


def _read(store: Store, key: str, file: DataFile) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[Damage]]:
    array = np.empty(sum(block.raw_size for block in file.blocks), np.uint8)
    place = 0

    def take(block: Block, data: Buffer) -> None:
        nonlocal place
        array[place : place + block.raw_size] = np.frombuffer(data, np.uint8)
        place += block.raw_size

    return array, read_blocks(store, key, file, take)


def _tensor(stored: StoredTensor, raw: np.ndarray[Any, np.dtype[np.uint8]], key: str) -> torch.Tensor | Damage:
    dtype = vars(torch).get(stored.dtype)  # not getattr: torch imports modules when it is asked for their names
    if not isinstance(dtype, torch.dtype):
        return Damage(key=key, what=f"{stored.name} has dtype {stored.dtype!r}, which this torch does not know")
    elements = 1
    for extent in stored.shape:
        elements *= extent
    if elements * dtype.itemsize != stored.size:
        return Damage(key=key, what=f"{stored.name}: its shape and its size do not agree")
    if stored.size == 0:
        return torch.empty(stored.shape, dtype=dtype, device="cpu")
    flat = torch.from_numpy(raw[stored.offset : stored.offset + stored.size])
    if stored.offset % dtype.itemsize:
        flat = flat.clone()  # a file of somebody else's making may place a tensor on an odd offset
    return flat.view(dtype).view(stored.shape)
