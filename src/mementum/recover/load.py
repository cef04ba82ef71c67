"""Load: reads a checkpoint's tensors and context into memory, proving every byte on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mementum.errors import NotReadableHere
from mementum.records import Block, Buffer, Damage, DataFile, Manifest, StoredTensor, record
from mementum.recover.verify import Proved, examine, read_blocks
from mementum.storage.store import Store

WEIGHTS = ".safetensors"  # files of weights: always raw, and read by copying out of them


@record
class Loaded:
    """A checkpoint in memory, proved: tensors by component and name, and the context."""

    manifest: Manifest
    context: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]


def load(store: Store, folder: str, manifest: Manifest) -> Loaded | tuple[Damage, ...]:
    """Read all of a checkpoint, or the damage that was found. Nothing live is touched.

    Tensors of weights are views of their mapped file where the store has one: whoever keeps one clones it. All
    others have memory of their own, to be given away. NotReadableHere if there is not enough memory."""
    proved = examine(store, folder, manifest)
    if not isinstance(proved, Proved):
        return proved
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    found: list[Damage] = []
    for file in proved.index.files:
        held = [tensor for tensor in proved.index.tensors if tensor.file == file.name]
        wrong = [damage for tensor in held if (damage := _impossible(tensor, f"{folder}/{file.name}")) is not None]
        try:
            read = wrong or _read(store, f"{folder}/{file.name}", file, held)
        except MemoryError as cause:
            raise NotReadableHere(
                f"{folder}/{file.name} does not fit into memory", kept="the checkpoint; nothing was loaded"
            ) from cause
        if isinstance(read, list):
            found += read
        else:
            for tensor in held:
                tensors.setdefault(tensor.component, {})[tensor.name] = read[tensor.component, tensor.name]
    if found:
        return tuple(found)
    return Loaded(manifest=manifest, context=proved.context, tensors=tensors)


Named = dict[tuple[str, str], torch.Tensor]


def _read(store: Store, key: str, file: DataFile, held: list[StoredTensor]) -> Named | list[Damage]:
    path = store.locate(key) if file.name.endswith(WEIGHTS) else None
    if path is not None and file.size and all(block.codec == "raw" for block in file.blocks):
        damage = read_blocks(store, key, file, lambda block, raw: None)
        return damage or _map(path, held)
    filling = Filling(held)
    return read_blocks(store, key, file, filling.take) or filling.tensors()


def _map(path: Path, held: list[StoredTensor]) -> Named:
    # Private, so that a write through a tensor that somebody kept cannot reach the file.
    raw = np.memmap(path, np.uint8, mode="c")
    return {
        (stored.component, stored.name): _tensor(stored, raw[stored.offset : stored.offset + stored.size])
        for stored in held
    }


class Filling:
    """Tensors with memory of their own, filled as the blocks of their file come in."""

    def __init__(self, held: list[StoredTensor]) -> None:
        self._held = sorted(held, key=lambda stored: stored.offset)
        self._arrays: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._first = 0  # tensors before it are full
        self._place = 0  # in the file's raw stream

    def take(self, block: Block, raw: Buffer) -> None:
        data = np.frombuffer(raw, np.uint8)
        begin, end = self._place, self._place + block.raw_size
        number = self._first
        while number < len(self._held) and self._held[number].offset < end:
            stored = self._held[number]
            start, stop = max(begin, stored.offset), min(end, stored.offset + stored.size)
            if start < stop:
                array = self._arrays.setdefault(number, np.empty(0, np.uint8))
                if not array.size:  # made when its first bytes are here and proved, not on an index's word
                    array = self._arrays[number] = np.empty(stored.size, np.uint8)
                array[start - stored.offset : stop - stored.offset] = data[start - begin : stop - begin]
            number += 1
        while self._first < len(self._held) and self._held[self._first].offset + self._held[self._first].size <= end:
            self._first += 1
        self._place = end

    def tensors(self) -> Named:
        empty = np.empty(0, np.uint8)
        return {
            (stored.component, stored.name): _tensor(stored, self._arrays.get(number, empty))
            for number, stored in enumerate(self._held)
        }


def _impossible(stored: StoredTensor, key: str) -> Damage | None:
    dtype = vars(torch).get(stored.dtype)  # not getattr: torch imports modules when it is asked for their names
    if not isinstance(dtype, torch.dtype):
        return Damage(key=key, what=f"{stored.name} has dtype {stored.dtype!r}, which this torch does not know")
    if math.prod(stored.shape) * dtype.itemsize != stored.size:
        return Damage(key=key, what=f"{stored.name}: its shape and its size do not agree")
    try:
        torch.empty(stored.shape, dtype=dtype, device="meta")
    except (RuntimeError, ValueError, TypeError) as error:
        return Damage(key=key, what=f"{stored.name}: no tensor has the shape {stored.shape}: {str(error)[:100]}")
    return None


def _tensor(stored: StoredTensor, raw: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    dtype: torch.dtype = vars(torch)[stored.dtype]
    if stored.size == 0:
        return torch.empty(stored.shape, dtype=dtype, device="cpu")
    flat = torch.from_numpy(raw)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()  # a file of somebody else's making may place a tensor on an odd offset
    return flat.view(dtype).view(stored.shape)
