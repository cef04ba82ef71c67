"""Overlapped capture: copies in the background what only an optimizer's step changes, and holds that step back.

Parameters and optimizer state change in `optimizer.step()` alone. So at a step's end their copy is begun, forward and
backward of the next step run beside it, and a pre-hook on the optimizer's next step waits until the copy has ended.
Everything else (buffers, averages of the weights, tensors of the user's own) can change at any time and is copied at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mementum.clock import Clock
from mementum.execute.capture import BlockingCapture, Captured, Placement, copy
from mementum.format.blocks import digest
from mementum.live.component import Component
from mementum.live.optimizers import OptimizerState

SAMPLE = 4096  # bytes at the head of every tensor that are looked at before and after: 0.2 ms for 144 tensors
CHUNK = 4 << 20  # bytes that are copied at once: in between, the interpreter may be had by the training


class Witness:
    """What a tensor was when its copy was asked for: torch's count of its changes, and a part of its bytes.

    The count sees every change in place but those through `.data` and of some fused kernels; the bytes see those."""

    def __init__(self, placement: Placement, *, verify: bool) -> None:
        self._placement = placement
        self._version = placement.source._version
        live = _bytes_of(placement.source)
        self._digest = digest(live.data) if verify else None
        self._head = live[:SAMPLE].copy()

    def what_happened(self) -> str | None:
        """Why the copy is not of the tensor as it was, or None."""
        placement = self._placement
        same = placement.source._version == self._version and np.array_equal(self._head, placement.target[:SAMPLE])
        if same and self._digest in (None, digest(placement.target.data)):
            return None
        return f"{placement.name} was changed while it was copied, not by its optimizer's step"


class Copying:
    """A copy on its way."""

    def __init__(self, placements: Sequence[Placement], *, verify: bool, clock: Clock) -> None:
        self._placements, self._clock = placements, clock
        self._witnesses = [Witness(placement, verify=verify) for placement in placements]
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._held_back_s: float | None = None  # when the first step came that had to wait
        self._ended_s = 0.0
        self.torn: str | None = None
        self._thread = threading.Thread(target=self._run, name="mementum-copy", daemon=True)
        self._thread.start()

    def hold_back(self) -> None:
        """Wait until nothing of the source is needed any more."""
        if self._ended.is_set():
            return
        if self._held_back_s is None:
            self._held_back_s = self._clock.monotonic()
        self._ended.wait()

    @property
    def under_way(self) -> bool:
        return not self._ended.is_set()

    def outcome(self) -> str | None:
        """Wait for the end; why the copy is of no use, or None. Raises what the copy has raised."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.torn

    def waited_s(self) -> float:
        """Seconds for which a step was held back, once the copy has ended."""
        return 0.0 if self._held_back_s is None else max(0.0, self._ended_s - self._held_back_s)

    def _run(self) -> None:
        try:
            for placement in self._placements:
                _copy_in_chunks(placement)
            told = (witness.what_happened() for witness in self._witnesses)
            self.torn = next((what for what in told if what is not None), None)
        except Exception as error:  # a thread's end: kept, and raised in the save
            self._error = error
        finally:
            self._ended_s = self._clock.monotonic()
            self._ended.set()


class OverlappedCapture:
    """A `Capture` that returns while the steady part of the state is still being copied.

    A program that changes that part beside its steps loses the save that it overtook; `give_up` is told why, and from
    then on everything is copied at once."""

    def __init__(
        self,
        *,
        codec: str,
        components: Sequence[Component],
        clock: Clock,
        verify: bool = False,
        give_up: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._whole = BlockingCapture(codec=codec)
        self._verify, self._clock = verify, clock
        optimizers = [component for component in components if isinstance(component, OptimizerState)]
        self._hooked = {id(one.optimizer): one for one in optimizers if _calls_hooks(one.optimizer)}
        self.unhooked = tuple(one.name for one in optimizers if id(one.optimizer) not in self._hooked)
        self._copying: Copying | None = None
        self._give_up, self.gave_up = give_up, False
        # One registration for all optimizers, also copies and wrapped ones; it is filtered by identity.
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def check(self, components: Sequence[Component]) -> Mapping[str, Mapping[str, object]]:
        return self._whole.check(components)

    def take(self, components: Sequence[Component]) -> Captured | None:
        if self._copying is not None:
            self._copying.hold_back()  # no step came since: the source must not be read twice at a time
            if self._copying.torn is not None and not self.gave_up:
                self.gave_up = True
                self._give_up(self._copying.torn)
        if self.gave_up:
            return self._whole.take(components)
        planned = self._whole.prepare(components)
        if planned is None:
            return None
        steady = self._steady()
        later: list[Placement] = []
        try:
            for placement in planned.placements:
                tensor = placement.source
                if _is_plain(tensor) and _address(tensor) in steady:
                    later.append(placement)
                else:
                    copy(placement)
            copying = self._copying = Copying(later, verify=self._verify, clock=self._clock)
        except BaseException:  # also where no thread can be started
            planned.captured.release()
            raise
        return replace(planned.captured, outcome=copying.outcome, waited_s=copying.waited_s)

    def close(self) -> None:
        """Let go of the optimizers."""
        self._handle.remove()

    def _steady(self) -> set[tuple[int, int]]:
        """Addresses of the tensors that only the step of a hooked optimizer changes."""
        steady: set[tuple[int, int]] = set()
        for one in self._hooked.values():
            for group in one.optimizer.param_groups:
                # A parameter without gradient is changed by no step, hence by the program, if at all.
                steady.update(_address(parameter) for parameter in group["params"] if parameter.requires_grad)
            for values in one.optimizer.state.values():
                if isinstance(values, dict):
                    steady.update(_address(value) for value in values.values() if isinstance(value, torch.Tensor))
        return steady

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        copying = self._copying
        if copying is None or not copying.under_way or id(optimizer) not in self._hooked:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None or not type(optimizer).__module__.startswith("torch.optim"):
            copying.hold_back()  # an optimizer of somebody else's may write before it calls the closure
            return None
        after = _then(closure, copying.hold_back)
        if len(args) > 1:
            return (args[0], after, *args[2:]), kwargs
        return args, {**kwargs, "closure": after}


def _then(closure: Callable[[], Any], wait: Callable[[], None]) -> Callable[[], Any]:
    """The closure, whose forward and backward pass run beside the copy, and then the wait."""

    def both() -> Any:
        loss = closure()
        wait()
        return loss

    return both


def _calls_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of it goes through torch's wrapper: not if it never called Optimizer.__init__."""
    return bool(getattr(type(optimizer).step, "hooked", False)) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory holds its bytes as they go into the file."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _address(tensor: torch.Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat: np.ndarray[Any, np.dtype[np.uint8]] = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat


def _copy_in_chunks(placement: Placement) -> None:
    """With numpy, not torch: torch would take the training's threads for it."""
    source = _bytes_of(placement.source)
    for start in range(0, source.size, CHUNK):
        placement.target[start : start + CHUNK] = source[start : start + CHUNK]
