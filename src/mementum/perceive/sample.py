"""A sample of many tensors: short runs of each, gathered into the rows of one matrix a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mementum.records import record

BLOCK = 2048  # elements that are read of a tensor: 8 KB, about what a call for one tensor costs anyhow
SERIAL_ROWS = 15  # that are computed with at once on a CPU: from 32768 elements on torch splits the work between its
# threads, and where another program holds one of their cores, each such call waits for the scheduler: 7 ms for 0.1.
RUNS = 8  # pieces of it, spread evenly: one piece would be a single row of an embedding. On a CUDA device it is one
# piece all the same, for there only dense pieces are copied by one kernel for all tensors.

Strided = tuple[tuple[int, ...], tuple[int, ...], int]


@record
class _Place:
    """Where one tensor's sample goes, and where it lies in the tensor: size, stride, offset; None: all of it."""

    number: int
    row: torch.Tensor
    target: torch.Tensor
    source: Strided | None
    is_complex: bool


class Sample:
    """The places of a sample of tensors like `tensors`: same shapes and devices, of any real or complex dtype."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        dense = [dense_of(tensor) for tensor in tensors]
        self._is_complex = [tensor.is_complex() for tensor in tensors]
        by_device: dict[torch.device, list[int]] = {}
        for number, tensor in enumerate(dense):
            by_device.setdefault(tensor.device, []).append(number)
        self._shapes = [tensor.shape for tensor in dense]
        self._devices = [tensor.device for tensor in dense]
        self._lanes = [(device, numbers, *self._lay_out(device, numbers)) for device, numbers in by_device.items()]
        self._roots: list[torch.Tensor] = []  # of second moments
        self.order = [number for numbers in by_device.values() for number in numbers]
        self.sizes = [tensor.numel() for tensor in dense]
        self._sharded = any(hasattr(tensor, "to_local") for tensor in tensors)
        self.is_plain = not self._sharded and not any(self._is_complex)
        self.in_order = self.order == list(range(len(dense)))
        self.on_cuda = any(device.type == "cuda" for device in by_device)

    @property
    def part(self) -> float:
        """Which part of all elements the sample is."""
        return sum(min(size, BLOCK) for size in self.sizes) / max(1, sum(self.sizes))

    def gather(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Float32 matrices, one a device, [its tensors, BLOCK]: rows in `order`, zeros behind what is shorter. They
        are overwritten by the next call. The row of a tensor that is None holds what it held before."""
        if self._sharded:
            tensors = [None if tensor is None else dense_of(tensor) for tensor in tensors]
        strided = torch.strided
        for _, _, _, places in self._lanes:
            targets, sources = [], []
            for place in places:
                tensor = tensors[place.number]
                if tensor is None:
                    continue
                if tensor.layout is not strided or place.is_complex:
                    _put(place.row, tensor)
                elif place.source is None:
                    targets.append(place.target)
                    sources.append(tensor)
                elif _is_dense(tensor):
                    size, stride, offset = place.source
                    targets.append(place.target)
                    sources.append(tensor.as_strided(size, stride, tensor.storage_offset() + offset))
                else:
                    _put(place.row, tensor)
            if targets:
                torch._foreach_copy_(targets, sources)
        return [rows for _, _, rows, _ in self._lanes]

    def norms(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Norms of the rows of `gather`, one vector a device."""
        return [
            torch.cat([torch.linalg.vector_norm(some, dim=1) for some in _served(rows)])
            for rows in self.gather(tensors)
        ]

    def append_moments(
        self,
        parts: list[torch.Tensor],
        first: Sequence[torch.Tensor | None],
        second: Sequence[torch.Tensor | None],
        weights: Sequence[torch.Tensor | None],
        *,
        eps: float,
    ) -> None:
        """Append, row by row: norms of first moments over (root of second ones + `eps`), norms of weights, sums of
        second moments."""
        measured = self.norms(weights)
        if not self._roots:  # kept: as much memory made anew takes longer than what is computed in it
            self._roots = [torch.empty_like(rows) for _, _, rows, _ in self._lanes]
        traces = []
        for rows, kept in zip(self.gather(second), self._roots, strict=True):
            traces.append(torch.cat([some.sum(dim=1) for some in _served(rows)]))
            for some, root in zip(_served(rows), _served(kept), strict=True):
                torch.sqrt(some, out=root).add_(eps)
        for rows, kept in zip(self.gather(first), self._roots, strict=True):
            pairs = zip(_served(rows), _served(kept), strict=True)
            parts.append(
                torch.cat([torch.linalg.vector_norm(root.reciprocal_().mul_(some), dim=1) for some, root in pairs])
            )
        parts += measured
        parts += traces

    def fits(self, number: int, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the shape and the device of the one that has this number."""
        same = tensor.shape == self._shapes[number] and tensor.device == self._devices[number]
        return same and tensor.layout == torch.strided

    def _lay_out(self, device: torch.device, numbers: Sequence[int]) -> tuple[torch.Tensor, list[_Place]]:
        rows = torch.zeros(len(numbers), BLOCK, dtype=torch.float32, device=device)
        runs = 1 if device.type == "cuda" else RUNS
        places = []
        for row, number in zip(rows, numbers, strict=True):
            shape = self._shapes[number]
            size = shape.numel()
            target, source = row[:size].view(shape) if size <= BLOCK else row.view(runs, BLOCK // runs), None
            if size > BLOCK:
                part, run = size // runs, BLOCK // runs
                source = ((runs, run), (part, 1), (part - run) // 2)
            whether = self._is_complex[number]
            places.append(_Place(number=number, row=row, target=target, source=source, is_complex=whether))
        return rows, places


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that this process holds of a tensor: of a sharded one its own shard, of a sparse one those that are
    stored, of a complex one real and imaginary parts."""
    local = getattr(tensor, "to_local", None)
    if local is not None:
        tensor = local()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout != torch.strided:
        tensor = tensor.values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def full_norms(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """Norms of whole tensors, one vector for each device and dtype, and the tensors' numbers in the order of the
    vectors. Of halves they are float32, which holds what would be infinite as a half."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(number)
    vectors = []
    for (_, dtype), numbers in groups.items():
        norms = torch._foreach_norm(
            [tensors[number] for number in numbers], 2, dtype=torch.float32 if dtype.itemsize < 4 else None
        )
        vectors.append(torch.stack(norms))
    return vectors, [number for numbers in groups.values() for number in numbers]


def _served(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows in the portions in which they are computed with: on a device, all at once."""
    return torch.split(rows, SERIAL_ROWS) if rows.device.type == "cpu" else (rows,)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _put(row: torch.Tensor, tensor: torch.Tensor) -> None:
    """The beginning of a tensor that lies in memory in its own way."""
    flat = dense_of(tensor).reshape(-1)[:BLOCK]
    row.zero_()
    row[: flat.numel()].copy_(flat)
