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
from mementum.execute.capture import BlockingCapture, Captured, Head, Prepared, Slots, copy
from mementum.execute.copier import Copier
from mementum.execute.device import DeviceCopy, pin
from mementum.execute.gathered import Gathered
from mementum.execute.snapshot import Label
from mementum.execute.structure import Bytes, Reading, Spot, Structure
from mementum.execute.witness import Watched, Witness, hold, what_happened, witness
from mementum.live.component import Component
from mementum.live.optimizers import OptimizerState
from mementum.records import record

CHUNK = 4 << 20  # bytes that are copied at once: in between, the interpreter may be had by the training
REPLACED = "what the state consists of has changed since it was last saved"


@record
class Split:
    """Which tensors of a reading are copied beside the training, by their numbers, and which at once."""

    structure: Structure
    loose: tuple[Spot, ...]
    watched: Watched
    beside: tuple[int, ...]
    on_device: tuple[int, ...]
    at_once: tuple[int, ...]


class Copying:
    """A copy on its way. It holds the memory that it reads, whatever becomes of the tensors meanwhile."""

    def __init__(self, split: Split, prepared: Prepared, *, verify: bool, sure: bool, clock: Clock) -> None:
        tensors, targets = prepared.reading.tensors, prepared.targets
        self._split, self._clock = split, clock
        self._tensors = [tensors[number] for number in split.beside]
        self._targets = [target for number in split.beside if (target := targets[number]) is not None]
        self._witness: Witness | None = witness(split.watched, self._tensors, verify=verify)
        self._changed: Callable[[], bool] | None = prepared.reading.changed
        # Whoever wants to be sure holds the memory from here on; otherwise that is the copying thread's to do.
        self._held = hold(self._tensors) if sure else None
        self._device = (
            DeviceCopy(
                [(tensors[number], target) for number in split.on_device if (target := targets[number]) is not None]
            )
            if split.on_device
            else None
        )
        self._left = threading.Event()  # nothing of the source is needed any more, but by a device's stream
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._held_back_s: float | None = None  # when the first step came that had to wait
        self._ended_s = self._whole_s = 0.0
        self._places: frozenset[int] | None = None  # of the memory that it reads, once it knows
        self.torn: str | None = None
        self.moved = False  # whether it was given up because the structure is not what it was

    def reads(self, address: int) -> bool:
        """Whether it still reads the memory that begins at this address."""
        return not self._left.is_set() and (self._places is None or address in self._places)

    def hold_back(self) -> None:
        """Wait until nothing of the source is needed any more. On a device its stream waits, not this thread."""
        if self._device is not None:
            self._device.hold_back()
        if not self._left.is_set():
            if self._held_back_s is None:
                self._held_back_s = self._clock.monotonic()
            self._left.wait()

    def wait(self) -> None:
        """Wait until the copy is whole, on a device too."""
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

    @property
    def usable(self) -> bool:
        """Whether the copy has ended well."""
        return self._ended.is_set() and self._error is None and self.torn is None

    def waited_s(self) -> float:
        """Seconds for which a step was held back, once the copy has ended."""
        return 0.0 if self._held_back_s is None else max(0.0, self._ended_s - self._held_back_s)

    def copied_at_s(self) -> float:
        """When the copy was whole, by the clock."""
        return self._whole_s

    def run(self) -> None:
        """Do it, on the copying thread."""
        try:
            assert self._witness is not None
            assert self._changed is not None
            watched, held = self._split.watched, self._held or hold(self._tensors)
            self._places = frozenset(held.places)
            # An address may be read from only if what lies there is held: a tensor may have been given other memory.
            if self._held is None and not watched.lie_there(self._tensors):
                self.moved, self.torn = True, REPLACED
                return
            if self._changed():
                self.moved, self.torn = True, REPLACED
                return
            if self._device is not None:
                self._device.issue()
            for spot, source, target in zip(watched.spots, watched.sources, self._targets, strict=True):
                copy_in_chunks(spot.name, source, target)
            self.torn = what_happened(self._witness, held, watched, self._targets)
            self._leave()
            if self._device is not None:
                self._device.finish()
        except Exception as error:  # a thread's end: kept, and raised in the save
            self._error = error
        finally:
            self._leave()
            self._whole_s = self._clock.monotonic()
            self._ended.set()

    def _leave(self) -> None:
        if not self._left.is_set():
            self._tensors, self._witness, self._changed, self._held = [], None, None, None
            self._ended_s = self._clock.monotonic()
            self._left.set()


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
            copying = Copying(split, prepared, verify=self._verify, sure=sure, clock=self._clock)
            self._copier.submit(copying.run)
        except BaseException:  # also where no thread can be started
            self._whole.reader.forget()  # a tensor of another size than it was taken for ends here
            use.release()
            raise
        self._copying = copying

        def seal(label: Label, head: Head) -> None:
            self._copier.submit(lambda: use.seal(head, label) if copying.usable else None)

        return Captured(
            images=prepared.images,
            components=reading.components,
            release=use.release,
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


def copy_in_chunks(name: str, source: Bytes, target: Bytes) -> None:
    """With numpy, not torch: torch would take the training's threads for it."""
    for start in range(0, source.size, CHUNK):
        target[start : start + CHUNK] = source[start : start + CHUNK]
