"""Which errors say that there was no memory."""

from __future__ import annotations

import pytest
import torch

from mementum.errors import StateMismatch
from mementum.live.shortage import is_out_of_memory


def test_torchs_own_and_pythons() -> None:
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 62, dtype=torch.uint8)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("a size does not fit"))


def test_what_it_was_raised_from_counts() -> None:
    outer = StateMismatch("c1", ["refused"], kept="all", next_command="look")
    assert not is_out_of_memory(outer)
    outer.__cause__ = ValueError("no")
    outer.__cause__.__cause__ = MemoryError()
    assert is_out_of_memory(outer)
    outer.__cause__.__cause__ = outer  # a ring ends
    assert not is_out_of_memory(outer)
