"""An export in torch's own format: one file of plain state dicts, which a program without mementum loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, cast

import torch

from mementum.errors import MementumError
from mementum.exchange.folder import NewFolder
from mementum.exchange.reading import read_torch
from mementum.live.component import compare
from mementum.live.tree import proved
from mementum.records import Buffer
from mementum.storage.disk import NewFile

NAME = "checkpoint.pt"


class Sink:
    """What torch.save writes to: a new file, through the one door to the disk."""

    def __init__(self, file: NewFile) -> None:
        self._file = file

    def write(self, chunk: Buffer) -> int:
        self._file.write(chunk)
        return memoryview(chunk).nbytes

    def flush(self) -> None:
        """The file has no buffer of its own."""


def write(folder: NewFolder, content: Mapping[str, Any]) -> None:
    """Write `content`, tensors and plain values only, and read it back with `weights_only` before anyone has it."""
    with folder.create(NAME) as file:
        torch.save(dict(content), cast("IO[bytes]", Sink(file)))  # all that torch calls of it is there
        file.fsync()
    back = read_torch(folder.place(NAME), mapped=True)
    wrong, besides = compare("checkpoint", proved(dict(content)), back)
    if wrong or besides:
        raise MementumError(
            f"what torch wrote came back different: {(wrong + besides)[0]}", kept="the checkpoint; nothing was exported"
        )
