"""The header of a safetensors file, made before its data is: sizes are known, so a file streams in one pass.

The layout is that of the safetensors format (https://github.com/huggingface/safetensors): eight bytes of header
length, little endian, the header in JSON, then the data without gaps. The header is padded with spaces, which the
format allows, so that the data starts on a 4096 boundary and can be mapped and written directly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mementum.errors import UsageError
from mementum.records import record

ALIGNMENT = 4096  # bytes: a page, and the largest sector of disks that matter
HEADER_MAX = 100_000_000  # bytes: what readers of the format accept
RESERVED = "__metadata__"  # the format keeps this name for itself

# torch's names to the format's. What is not here is stored as U8 with one more dimension of the element's bytes,
# and the index has the true dtype.
CODES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint8": "U8",
        "uint16": "U16",
        "uint32": "U32",
        "uint64": "U64",
        "bool": "BOOL",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e4m3fnuz": "F8_E4M3FNUZ",
        "float8_e5m2": "F8_E5M2",
        "float8_e5m2fnuz": "F8_E5M2FNUZ",
        "complex64": "C64",
    }
)


@record
class Laid:
    """A tensor in a file's raw stream: bytes `offset` to `offset + size`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    offset: int
    size: int


def lay(tensors: Iterable[tuple[str, str, tuple[int, ...], int, int]], *, alignment: int = 1) -> tuple[Laid, ...]:
    """Lay out (name, dtype, shape, itemsize, size), widest elements first, so that all are aligned to their elements;
    without gaps, or each at a multiple of `alignment`."""
    laid: list[Laid] = []
    offset = 0
    for name, dtype, shape, itemsize, size in sorted(tensors, key=lambda tensor: -tensor[3]):
        laid.append(Laid(name=name, dtype=dtype, shape=shape, itemsize=itemsize, offset=offset, size=size))
        offset += -(-size // alignment) * alignment
    return tuple(laid)


def header(laid: Iterable[Laid]) -> bytes:
    """The header for tensors that were laid out from 0; its length is a multiple of ALIGNMENT."""
    fields: dict[str, object] = {RESERVED: {"format": "pt", "mementum": "1"}}
    for tensor in laid:
        if tensor.name == RESERVED:
            raise UsageError(f"a tensor cannot be called {RESERVED!r}: safetensors keeps that name for itself")
        code = CODES.get(tensor.dtype)
        fields[tensor.name] = {
            "dtype": code or "U8",
            "shape": list(tensor.shape) if code else [*tensor.shape, tensor.itemsize],
            "data_offsets": [tensor.offset, tensor.offset + tensor.size],
        }
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8
    if length > HEADER_MAX:
        raise UsageError(f"a safetensors header of {length} bytes is over the format's limit of {HEADER_MAX}")
    return length.to_bytes(8, "little") + text.ljust(length)
