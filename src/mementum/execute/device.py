"""Device copy: tensors of GPUs to host memory beside the training, which waits for it on the devices, never here.

Every device has a stream of its own for it. That stream first waits for the work that the training has queued so far,
so that it copies what the last step has left; the training's stream waits for its end before the next step changes
anything. Both waits are queued on the device: no thread of the host stands still for them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mementum.records import record

CHUNK = (
    16 << 20
)  # bytes a copy: long enough for the whole bus, short enough that a gradient's reduction gets in between

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every GPU of the process, not only for the present one

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@record
class _Lane:
    """One device: the training's stream on it, and at which point of that stream the copy may begin."""

    device: torch.device
    training: torch.cuda.Stream
    ready: torch.cuda.Event
    done: torch.cuda.Event
    pairs: tuple[tuple[torch.Tensor, Bytes], ...]


class DeviceCopy:
    """A copy of tensors of one or more GPUs into host memory, each as its bytes in C order.

    Made on the training thread, at the instant whose state is wanted; `issue` and `finish` belong to the thread that
    copies, `hold_back` to the training thread before anything changes a source. The memory should be pinned (`pin`):
    into other memory the copies are as right and slower, and `issue` then waits for each."""

    def __init__(self, pairs: Sequence[tuple[torch.Tensor, Bytes]]) -> None:
        by_device: dict[torch.device, list[tuple[torch.Tensor, Bytes]]] = {}
        for source, target in pairs:
            if source.device.type != "cuda":
                raise ValueError(f"a tensor of {source.device} is not copied from a GPU")
            if source.numel() * source.element_size() != target.size:
                raise ValueError(f"{source.numel() * source.element_size()} bytes do not fit into {target.size}")
            by_device.setdefault(source.device, []).append((source.detach(), target))
        self._lanes = tuple(_lane(device, tuple(held)) for device, held in by_device.items())
        self._issued = threading.Event()
        self._error: BaseException | None = None

    def issue(self) -> None:
        """Queue all copies. Returns before they have ended if the memory is pinned."""
        try:
            for lane in self._lanes:
                _queue(lane)
        except BaseException as error:
            self._error = error  # `finish` raises it; the training must not wait for what was never queued
            raise
        finally:
            self._issued.set()

    def hold_back(self) -> None:
        """Let the training's streams wait for the copies. The thread waits only until they are queued, and the
        device is asked nothing."""
        self._issued.wait()
        if self._error is not None:
            return
        for lane in self._lanes:
            lane.training.wait_event(lane.done)
            present = torch.cuda.current_stream(lane.device)
            if present != lane.training:
                present.wait_event(lane.done)  # the step may run on another stream than the one before

    def finish(self) -> None:
        """Wait until the bytes are in memory; raises what kept `issue` from queueing them."""
        self._issued.wait()
        for lane in self._lanes:
            lane.done.synchronize()  # also of an error: what was queued before it still writes into the memory
        if self._error is not None:
            raise self._error


def _lane(device: torch.device, pairs: tuple[tuple[torch.Tensor, Bytes], ...]) -> _Lane:
    with torch.cuda.device(device):
        training, ready = torch.cuda.current_stream(device), torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(training)
        # Waiting for it gives the core away: a thread that spins would take it from the training.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return _Lane(device=device, training=training, ready=ready, done=done, pairs=pairs)


def _queue(lane: _Lane) -> None:
    # A new thread stands on device 0: without this, the copies would make a context there.
    with torch.cuda.device(lane.device):
        beside = torch.cuda.Stream(lane.device)  # type: ignore[no-untyped-call]
        beside.wait_event(lane.ready)
        try:
            with torch.cuda.stream(beside):
                for source, target in lane.pairs:
                    # The training may free a tensor at once: its memory is not given away before this stream is past.
                    source.record_stream(beside)
                    _copy(source, target)
        finally:
            lane.done.record(beside)


def _copy(source: torch.Tensor, target: Bytes) -> None:
    whole = source.resolve_conj().resolve_neg().contiguous()  # a copy on the device, only where it must be one
    live, host = whole.reshape(-1).view(torch.uint8), torch.from_numpy(target)
    for start in range(0, target.size, CHUNK):
        host[start : start + CHUNK].copy_(live[start : start + CHUNK], non_blocking=True)


def pin(array: Bytes) -> Callable[[], None] | None:
    """Lock memory for direct access by the GPUs, and give what lets go of it again, to be called before the memory is
    unmapped. None where that is refused (RLIMIT_MEMLOCK, memory that is locked already): copies are slower then."""
    if not torch.cuda.is_available() or array.size == 0:
        return None
    address = array.ctypes.data
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(address, array.size, PORTABLE)) != 0:
        # The refusal stays this thread's last error, and torch would raise it in the program's next kernel.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return None

    def let_go() -> None:
        runtime.cudaHostUnregister(address)

    return let_go
