"""Foreign files, read without running anything that is in them."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mementum.errors import UnknownFormat
from mementum.format.weights import HEADER_MAX

ZIP = b"PK\x03\x04"  # what torch has written since 1.6
PICKLE = b"\x80"  # what it wrote before
REFUSED = ("Trying to load unsupported", "Unsupported global", "Unsupported class", "WeightsUnpickler error:")
TOLD_MAX = 300  # characters of torch's own words; what follows is advice that we do not give
JSON_MAX = 64 << 20  # bytes: indexes of shards and trainer states have far less

# What readers raise on bytes that are not theirs. torch's restricted unpickler meets them as Python's own errors.
FAULTS = (
    UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    ImportError,
    MemoryError,
    struct.error,
)


def is_torch_file(path: Path) -> bool:
    """Whether a file begins as those of torch.save do."""
    with path.open("rb") as file:
        begin = file.read(len(ZIP))
    return begin == ZIP or begin.startswith(PICKLE)


def is_safetensors(path: Path) -> bool:
    """Whether a file begins with the length of a header that is JSON."""
    with path.open("rb") as file:
        begin = file.read(9)
    return len(begin) == 9 and 2 <= int.from_bytes(begin[:8], "little") <= HEADER_MAX and begin[8:] == b"{"


def read_torch(path: Path, *, arrays: bool = False, mapped: bool = False) -> Any:
    """What a file of torch.save holds, if that is tensors and plain values only. UnknownFormat says what was refused.

    With `arrays` the plain arrays of numpy are let in too. With `mapped` tensors stay in the file until they are
    used; only zip files can be mapped."""
    allowed = _plain_arrays() if arrays else ()
    try:
        with torch.serialization.safe_globals(list(allowed)), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickle protocols that it does not know: it says so itself
            return torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
    except UnpicklingError as cause:
        raise UnknownFormat(
            f"{path} was refused: {_told(cause)}",
            kept="the file; nothing of it was run",
            next_command="save plain state dicts with the program that made it: torch.save(model.state_dict(), …)",
        ) from cause
    except FAULTS as cause:
        raise _unreadable(path, cause) from cause


def _told(cause: Exception) -> str:
    """What torch refused, without its advice to read the file unsafely."""
    text = str(cause)
    for mark in REFUSED:
        _, found, after = text.partition(mark)
        if found:
            text = found.removesuffix("error:").strip() + " " + after.strip()
            break
    else:
        return type(cause).__name__
    return text.split("\n")[0].split(" was not an allowed")[0].split(". Please use")[0].strip()[:TOLD_MAX]


def _plain_arrays() -> tuple[Any, ...]:
    """What arrays of numbers are rebuilt with: none of it can do anything but make arrays."""
    rebuild: Any = vars(np)["_core"].multiarray._reconstruct
    kinds = {type(np.dtype(code)) for code in "?bhilqBHILQefdgFDG"}
    old = "numpy.core.multiarray._reconstruct"  # as numpy 1 wrote it
    return (rebuild, (rebuild, old), np.ndarray, np.dtype, *kinds)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name. UnknownFormat if it is cut short or is none."""
    try:
        return load_file(path)
    except (SafetensorError, *FAULTS) as cause:
        raise _unreadable(path, cause) from cause


def read_shards(index: Path) -> dict[str, Any]:
    """The state dict that an index of shards describes: `{"weight_map": {name: file}}`, all files beside it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and isinstance(file, str) and Path(file).name == file for name, file in weight_map.items()
    ):
        raise UnknownFormat(f"{index} is not an index of shards", kept="the folder", next_command=None)
    state: dict[str, Any] = {}
    for name in sorted(set(weight_map.values())):
        shard = index.parent / name
        if not shard.is_file():
            raise UnknownFormat(f"{index} names {name}, which is not there", next_command="copy the folder again")
        state |= read_weights(shard)
    missing = sorted(weight_map.keys() - state.keys())
    if missing:
        raise UnknownFormat(f"{index} names {missing[0]!r}, which is in no shard", next_command="copy the folder again")
    return state


def read_weights(path: Path) -> dict[str, Any]:
    """A file of weights, whichever of the two kinds it is."""
    if is_safetensors(path):
        return dict(read_safetensors(path))
    state = read_torch(path)
    if not isinstance(state, dict):
        raise UnknownFormat(f"{path} holds no state dict", next_command=None)
    return state


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. UnknownFormat if it is none."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(JSON_MAX))
    except (ValueError, RecursionError) as cause:
        raise _unreadable(path, cause) from cause
    if not isinstance(value, dict):
        raise UnknownFormat(f"{path} is not a JSON object", next_command="copy the file again")
    return value


def first_file(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of `names` that is a file in the folder."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _unreadable(path: Path, cause: Exception) -> UnknownFormat:
    told = str(cause).strip().split("\n")[0][:TOLD_MAX] or type(cause).__name__
    return UnknownFormat(
        f"{path} cannot be read, it may be cut short: {told}", kept="the file", next_command="copy the file again"
    )
