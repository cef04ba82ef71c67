"""Shortage: whether an error says that there was no memory, of the machine or of a device."""

from __future__ import annotations

import torch

CPU_SAYS = "DefaultCPUAllocator"  # torch's allocator of the machine's memory raises a bare RuntimeError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, comes from memory that could not be had."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(at, RuntimeError) and CPU_SAYS in str(at):
            return True
        at = at.__cause__
    return False
