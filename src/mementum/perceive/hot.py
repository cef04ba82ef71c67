"""The rows that carry most of a tensor's norm: of an embedding, those of the tokens that are seen most."""

from __future__ import annotations

from collections.abc import Sequence

import torch

READ = 16_384  # elements that are read of a tensor: 64 KB, as long as a dozen calls for one tensor take anyhow
ROWS_MAX = 64  # of them: more move a median of ratios by less than the next batch does
PART_MAX = 1 / 8  # of all rows; where so many would be read, a plain sample is as good
SHARE = 0.5  # of the squared norm, that they carry together: with less, a plain sample is as good
TENSORS_MAX = 8  # that are read so: each costs two calls a step


def count_of(shape: Sequence[int]) -> int:
    """How many rows of a tensor of this shape are read; 0 where rows are not worth looking for."""
    if len(shape) != 2 or shape[1] == 0:
        return 0
    count = min(ROWS_MAX, READ // shape[1])
    return count if 0 < count <= PART_MAX * shape[0] else 0


def find(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a matrix: its norm, that of its hottest rows, and which ones these are. Nothing waits for a device."""
    halves = gradient.dtype.itemsize < 4
    rows = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float32 if halves else None)
    top = torch.topk(rows, count_of(gradient.shape), sorted=False)
    return torch.linalg.vector_norm(rows), torch.linalg.vector_norm(top.values), top.indices


def norm(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Of these rows together, a scalar in float32 at least."""
    halves = gradient.dtype.itemsize < 4
    found: torch.Tensor = torch.linalg.vector_norm(
        gradient.index_select(0, rows), dtype=torch.float32 if halves else None
    )
    return found
