"""Overlapped capture: copies in the background what only an optimizer's step changes, and holds that step back.

Parameters and optimizer state change in `optimizer.step()` alone. So at a step's end their copy is begun, forward and
backward of the next step run beside it, and a pre-hook on the optimizer's next step waits until the copy has ended.
Everything else (buffers, averages of the weights, tensors of the user's own) can change at any time and is copied at
once.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mementum.clock import Clock
from mementum.execute import moves
from mementum.execute.capture import BlockingCapture, Captured, Head, Slots, copy
from mementum.execute.copier import Copier
from mementum.execute.copying import Copying, Split
from mementum.execute.device import pin
from mementum.execute.gathered import Gathered
from mementum.execute.snapshot import Label
from mementum.execute.structure import Bytes, Reading, Structure
from mementum.execute.witness import Watched
from mementum.live.component import Component
from mementum.live.optimizers import OptimizerState


class OverlappedCapture:
    """A `Capture` that returns before the steady part of the state is copied: that begins when it is sealed.

    A program that changes that part beside its steps loses the save that it overtook; `give_up` is told why, and from
    then on everything is copied at once."""

    def __init__(
        self,
        *,
        codec: str,
        components: Sequence[Component],
        clock: Clock,
        slots: Slots | None = None,
        reuse_frozen: bool = False,
        verify: bool = False,
        give_up: Callable[[str], None] = lambda why: None,
        failed: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._whole = BlockingCapture(codec=codec, slots=slots, reuse_frozen=reuse_frozen)
        self._verify, self._clock = verify, clock
        optimizers = [component for component in components if isinstance(component, OptimizerState)]
        self._hooked = {id(one.optimizer): one for one in optimizers if _calls_hooks(one.optimizer)}
        self.unhooked = tuple(one.name for one in optimizers if id(one.optimizer) not in self._hooked)
        self._copying: Copying | None = None
        self._split: Split | None = None
        self._pinned: dict[int, tuple[Bytes, Callable[[], None] | None]] = {}
        self._pinned_for: Structure | None = None
        self._copier = Copier(failed)
        self._pid = os.getpid()
        self._give_up, self.gave_up = give_up, False
        # One registration for all optimizers, also copies and wrapped ones; it is filtered by identity.
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        self._turn = threading.RLock()  # of a capture that begins, and of memory that moves
        self._let_move = moves.guard(self._while_moving)

    @property
    def size(self) -> int:
        return self._whole.size

    def note(self, components: Sequence[Component]) -> None:
        self._whole.note(components)

    def warm(self, components: Sequence[Component]) -> None:
        self._copier.submit(self._whole.warming(components))

    def wait(self, timeout_s: float) -> bool:
        return self._copier.wait(timeout_s)

    def unfreeze(self, names: Sequence[tuple[str, str]]) -> None:
        self._whole.unfreeze(names)

    def take(
        self, components: Sequence[Component], *, safe_seq: int | None = None, sure: bool = False
    ) -> Captured | None:
        copying = self._copying
        if copying is not None:
            copying.wait()  # no step came since: the source must not be read twice at a time
            if copying.moved:
                self._whole.reader.forget()
            elif copying.torn is not None and not self.gave_up:
                self.gave_up = True
                self._give_up(copying.torn)
        with self._turn:
            if self.gave_up:
                return self._whole.take(components, safe_seq=safe_seq)
            return self._begin(components, safe_seq, sure)

    @contextlib.contextmanager
    def _while_moving(self, address: int) -> Iterator[None]:
        """Nothing is begun meanwhile, and what is under way comes first: it reads by addresses."""
        if os.getpid() != self._pid:
            yield
            return
        with self._turn:
            if self._copying is not None and self._copying.reads(address):
                self._copying.hold_back()
            yield

    def _begin(self, components: Sequence[Component], safe_seq: int | None, sure: bool) -> Captured | None:
        prepared = self._whole.prepare(components, safe_seq=safe_seq, peek=not sure)
        if prepared is None:
            return None
        use, reading = prepared.use, prepared.reading
        try:
            split = self._split_of(reading, prepared.targets)
            if split.on_device:
                self._pin(use.slot.arrays, reading.structure)
            for number in split.at_once:
                target = prepared.targets[number]
                if target is not None:
                    copy(target, reading.tensors[number])
            if self._verify:
                for image in prepared.images:
                    if isinstance(image.raw, Gathered):
                        image.raw.digests()
            copying = Copying(
                split, prepared, verify=self._verify, sure=sure, submit=self._copier.submit, clock=self._clock
            )
        except BaseException:
            self._whole.reader.forget()  # a tensor of another size than it was taken for ends here
            use.release()
            raise
        self._copying = copying

        def seal(label: Label, head: Head) -> None:
            copying.begin()
            self._copier.submit(lambda: use.seal(head, label) if copying.usable else None)

        def release() -> None:
            copying.give_up()
            use.release()

        return Captured(
            images=prepared.images,
            components=reading.components,
            release=release,
            seal=seal,
            outcome=copying.outcome,
            waited_s=copying.waited_s,
            copied_at_s=copying.copied_at_s,
            then=self._copier.submit,
        )

    def _pin(self, arrays: Sequence[Bytes], structure: Structure) -> None:
        """Pin a slot's memory once: a GPU copies into other memory more slowly, and not beside its own work."""
        if structure is not self._pinned_for:  # the slots may have been laid out anew
            self._unpin()
            self._pinned_for = structure
        for array in arrays:
            if id(array) not in self._pinned:
                self._pinned[id(array)] = (array, pin(array))

    def _unpin(self) -> None:
        for _, unpin in self._pinned.values():
            if unpin is not None:
                unpin()
        self._pinned.clear()

    def close(self, *, safe_seq: int | None = None) -> None:
        """Let go of the optimizers and of the slots."""
        self._handle.remove()
        self._copier.close()
        self._let_move()
        self._unpin()
        self._copying = self._split = None
        self._whole.close(safe_seq=safe_seq)

    def _split_of(self, reading: Reading, targets: Sequence[Bytes | None]) -> Split:
        """Made anew only when the structure is another one, or tensors of somebody else's have moved."""
        known = self._split
        if known is not None and known.structure is reading.structure and known.loose == reading.loose:
            return known
        steady = self._steady()
        beside: list[int] = []
        on_device: list[int] = []
        at_once: list[int] = []
        for number, (spot, tensor) in enumerate(zip(reading.spots, reading.tensors, strict=True)):
            if targets[number] is None:
                continue
            if _address(tensor) not in steady:
                at_once.append(number)
            elif spot.address:
                beside.append(number)
            else:
                (on_device if tensor.device.type == "cuda" else at_once).append(number)
        watched = Watched([reading.spots[number] for number in beside])
        split = Split(
            structure=reading.structure,
            loose=reading.loose,
            watched=watched,
            beside=tuple(beside),
            on_device=tuple(on_device),
            at_once=tuple(at_once),
        )
        self._split = split
        return split

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
        if os.getpid() != self._pid:  # a fork has no thread that copies
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


def _address(tensor: torch.Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), tensor.numel() * tensor.element_size())
