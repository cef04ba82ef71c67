"""Values that are still on a device: copied beside its work, and seen when they have come, a step late."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from mementum.records import record

K = TypeVar("K")

PENDING_MAX = 64  # copies on their way: a device that is further behind than that has values that nobody waits for

Parts = torch.Tensor | Sequence[torch.Tensor]


@record
class _Coming:
    """A copy on its way into pinned memory. The event tells its end."""

    place: torch.Tensor
    event: torch.cuda.Event


class Late(Generic[K]):
    """Takes small tensors of any device, each under a key, and gives their values in the order of their coming in.

    A CPU's tensors are read at once. A GPU's are copied into pinned memory on the present stream, where an event tells
    the end: neither `put` nor `ready` waits for a device. Those of other accelerators are read at once, which waits."""

    def __init__(self, *, pending_max: int = PENDING_MAX) -> None:
        self._pending: deque[tuple[K, list[_Coming | tuple[float, ...]]]] = deque()
        self._pending_max = pending_max
        self._free: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}  # pinning memory takes long: it is kept

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, key: K, parts: Parts) -> bool:
        """Take the values of one tensor or of several, of any shape and real dtype, on any devices. False: dropped,
        because `pending_max` others have not come yet."""
        if len(self._pending) >= self._pending_max:
            return False
        tensors = (parts,) if isinstance(parts, torch.Tensor) else parts
        self._pending.append((key, [self._begin(tensor.detach()) for tensor in tensors]))
        return True

    def ready(self) -> list[tuple[K, tuple[float, ...]]]:
        """Key and values, all parts in a row, of those whose copies have ended. One that has not holds back the later
        ones, so that the order stays."""
        come: list[tuple[K, tuple[float, ...]]] = []
        while self._pending:
            key, parts = self._pending[0]
            if not all(map(_has_come, parts)):
                break
            self._pending.popleft()
            come.append((key, tuple(value for part in parts for value in self._values(part))))
        return come

    def forget(self) -> None:
        """What is still on its way is of no use any more. Its pinned memory goes back to torch, which waits for the
        copies."""
        self._pending.clear()

    def _begin(self, tensor: torch.Tensor) -> _Coming | tuple[float, ...]:
        if tensor.device.type != "cuda":
            return (float(tensor.item()),) if tensor.numel() == 1 else tuple(map(float, tensor.reshape(-1).tolist()))
        # float32 holds every value of the smaller floats; what is cast, is cast on the device.
        wide = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
        dtype = torch.float32 if wide else torch.float64
        with torch.cuda.device(tensor.device):
            place = self._place(tensor.numel(), dtype)
            place.copy_(tensor.reshape(-1), non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(tensor.device))
        return _Coming(place=place, event=event)

    def _place(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        free = self._free.get((count, dtype))
        return free.pop() if free else torch.empty(count, dtype=dtype, pin_memory=True)

    def _values(self, part: _Coming | tuple[float, ...]) -> tuple[float, ...]:
        if isinstance(part, tuple):
            return part
        values = tuple(map(float, part.place.tolist()))
        self._free.setdefault((part.place.numel(), part.place.dtype), []).append(part.place)
        return values


def _has_come(part: _Coming | tuple[float, ...]) -> bool:
    return isinstance(part, tuple) or bool(part.event.query())  # type: ignore[no-untyped-call]
