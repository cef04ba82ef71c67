"""Levels: what of a checkpoint is weights, optimizer or context, and what is left where some are dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from mementum.errors import UnknownFormat
from mementum.format.generations import SUFFIX, key_of
from mementum.format.index import raw_sizes
from mementum.records import LEVELS, Granularity, Index

WEIGHTS, OPTIMIZER, CONTEXT = LEVELS
CODED = ".blocks"  # what a file is called after its own name where its bytes were coded
OF_WEIGHTS = re.compile(rf".+\.safetensors(?:{SUFFIX}\.blocks)?", re.DOTALL)
OF_THE_PLACE = ("format", "step", "epoch")  # what a context says besides components where level 2 was dropped

# What a checkpoint holds of which the weights are gone: it counts as essentials, so that nothing takes it for more than
# it is, and yet it is not what was saved as essentials, which has weights.
OPTIMIZER_ONLY, CONTEXT_ONLY = "optimizer", "context"
KINDS = (*(one.name.lower() for one in Granularity), OPTIMIZER_ONLY, CONTEXT_ONLY)


def kind_of(granularity: Granularity, levels: Sequence[int]) -> str:
    """In one word of KINDS what a checkpoint holds; `context` is no more than a record of it."""
    if WEIGHTS in levels:
        return granularity.name.lower()
    return OPTIMIZER_ONLY if OPTIMIZER in levels else CONTEXT_ONLY


def level_of(name: str) -> int:
    """The level of a data file by its name."""
    return WEIGHTS if OF_WEIGHTS.fullmatch(name) else OPTIMIZER


def coded_name(name: str) -> str:
    """What a file is called where its bytes are coded: one of weights is no standard file then, and says so."""
    return name if name.endswith(CODED) else name + CODED


def standard_name(name: str) -> str:
    """What a file of weights is called where it lies as it is: `model.safetensors` of `model.safetensors-2.blocks`."""
    match = re.fullmatch(rf"(.+\.safetensors){SUFFIX}\.blocks", name, re.DOTALL)
    return name if match is None else match[1]


def granularity_left(granularity: Granularity, levels: Sequence[int]) -> Granularity:
    """What a checkpoint of this granularity counts as with these levels alone: never as more than it was."""
    if WEIGHTS not in levels:
        return Granularity.ESSENTIALS
    if OPTIMIZER not in levels:
        return granularity if granularity is Granularity.ESSENTIALS else Granularity.WEIGHTS
    if CONTEXT not in levels and granularity is Granularity.FULL:
        return Granularity.WEIGHTS_AND_OPTIMIZER
    return granularity


def index_left(index: Index, levels: Sequence[int]) -> Index:
    """The index without the files and tensors of other levels, and without bases that nothing left needs."""
    files = tuple(file for file in index.files if level_of(file.name) in levels)
    names = {file.name for file in files}
    wanted = {file.base for file in files}
    return Index(
        rank=index.rank,
        files=files,
        tensors=tuple(tensor for tensor in index.tensors if tensor.file in names),
        bases=tuple(base for base in index.bases if key_of("", base) in wanted),
    )


def context_left(data: bytes | memoryview, before: Index, levels: Sequence[int], what: str) -> bytes:
    """A context's bytes without components that lose tensors; and without level 2 only what tells how the tensors left
    are put together. The bare JSON is cut, so that no class that it names need be here. UnknownFormat if it is none."""
    left = {tensor.component for tensor in index_left(before, levels).tensors}
    lost = {tensor.component for tensor in before.tensors if level_of(tensor.file) not in levels}
    try:
        fields: dict[str, Any] = json.loads(bytes(data))
        components = fields["components"]
        keep = [name for name in components if name not in lost and (CONTEXT in levels or name in left)]
        if CONTEXT not in levels:
            fields = {name: fields[name] for name in OF_THE_PLACE if name in fields}
        fields["components"] = {name: components[name] for name in keep}
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError, LookupError, TypeError) as cause:
        raise UnknownFormat(f"{what} is not a context: {cause}") from cause


def is_cut_alike(index: Index, other: Index, name: str, other_name: str) -> bool:
    """Whether two files hold the same tensors at the same places, cut into the same blocks."""
    sizes = [
        raw_sizes(file)
        for held, wanted in ((index, name), (other, other_name))
        for file in held.files
        if file.name == wanted
    ]
    return len(sizes) == 2 and sizes[0] == sizes[1] and _places(index, name) == _places(other, other_name)


def _places(index: Index, name: str) -> list[tuple[object, ...]]:
    return sorted(
        (tensor.offset, tensor.size, tensor.component, tensor.name, tensor.dtype, tensor.shape)
        for tensor in index.tensors
        if tensor.file == name
    )
