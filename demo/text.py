"""Text as windows of bytes: what the demo's model is trained on."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset

# Of the standard library: 512 windows of 64 bytes, so that the demo's few hundred steps pass the end of an epoch.
STDLIB_BYTES = 32 * 1024


def read_text(file: Path | None) -> bytes:
    """The bytes of `file`; without one, the first modules of this Python's standard library, in the order of names."""
    if file is not None:
        return file.read_bytes()
    text = b""
    for module in sorted(Path(os.__file__).parent.glob("[a-z]*.py")):
        text += module.read_bytes()
        if len(text) >= STDLIB_BYTES:
            break
    return text[:STDLIB_BYTES]


class Windows(Dataset[torch.Tensor]):
    """`text` cut into windows of `length` bytes; item i is an int64 tensor of shape (length,), values 0 to 255."""

    def __init__(self, text: bytes, *, length: int) -> None:
        if len(text) < length:
            raise ValueError(f"the text has {len(text)} bytes, one window needs {length}")
        self._text = text
        self._length = length

    def __len__(self) -> int:
        return len(self._text) // self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        window = self._text[index * self._length : (index + 1) * self._length]
        return torch.tensor(list(window), dtype=torch.int64)
