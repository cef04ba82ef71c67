"""Capture: copies the live state into host memory. This one stops the loop for as long as the copy takes.

The seam is `Capture`: what takes its place may return before the copy has ended, as long as no tensor can change
until it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
import torch

from mementum.errors import MementumError
from mementum.execute.gathered import Gathered
from mementum.execute.memory_slots import MemorySlots
from mementum.execute.plan import FileLayout
from mementum.execute.snapshot import Image, Label
from mementum.execute.structure import Bytes, Reader, Reading, Spot, Structure
from mementum.live.component import Component
from mementum.records import record

SLOT_PLANS_MAX = 4  # one for each slot; no run has more
SLOTS = 2  # one is being written while the other is filled; with fewer, a save would wait for the disk

# Makes what a slot says of its snapshot, so that a later process can use it; None if it could not.
Head = Callable[[], bytes | None]


class Slot(Protocol):
    """Host memory for one snapshot."""

    @property
    def arrays(self) -> Sequence[Bytes]: ...
    def validate(self, head: bytes, *, seq: int, attempt: int, id: str, step: int) -> None: ...
    def release(self) -> None: ...


class Slots(Protocol):
    """Where slots come from: None if none is free."""

    def acquire(self, sizes: Sequence[int], *, safe_seq: int | None = None) -> Slot | None: ...
    def warm(self, sizes: Sequence[int]) -> None: ...
    def close(self, *, safe_seq: int | None = None) -> None: ...


class OwnSlots(MemorySlots):
    """For a capture of its own: in the process, and nobody is told."""

    def __init__(self) -> None:
        super().__init__(count=SLOTS)

    def warm(self, sizes: Sequence[int]) -> None:
        """It saves once."""

    def close(self, *, safe_seq: int | None = None) -> None:
        super().close()


class Use:
    """One use of a slot, from its first byte until the snapshot is needed no more."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self._lock = threading.Lock()
        self._over = False

    def seal(self, head: Head, label: Label) -> None:
        """Mark the snapshot as whole. Nothing if it was given up meanwhile: the slot may be another's by then."""
        try:
            told = head()
        except MementumError:  # the save itself will come to it as well, and say so
            return
        with self._lock:
            if not self._over and told is not None:
                self.slot.validate(told, seq=label.seq, attempt=label.attempt, id=label.id, step=label.step)

    def release(self) -> None:
        with self._lock:
            if not self._over:
                self._over = True
                self.slot.release()


@record
class Captured:
    """The bytes, and what of the state is no tensor. The bytes may be read once `outcome` has returned None; it
    waits for a copy under way and says why it is of no use. `waited_s` is for how long that copy held up a step.

    `seal` is given what makes the slot's head, and has it written once the copy has ended. Where `holds_up`, the bytes
    are the live ones: the loop must stand still until they are written."""

    images: tuple[Image, ...]
    components: Mapping[str, Mapping[str, object]]
    release: Callable[[], None]
    seal: Callable[[Label, Head], None] = field(default=lambda label, head: None)
    outcome: Callable[[], str | None] = field(default=lambda: None)
    waited_s: Callable[[], float] = field(default=lambda: 0.0)
    copied_at_s: Callable[[], float] = field(default=lambda: 0.0)
    holds_up: bool = False
    then: Callable[[Callable[[], None]], None] = field(default=lambda work: work())  # once copied, and after `seal`


@record
class Prepared:
    """A capture whose bytes are still to be copied, each tensor of the reading to its target."""

    reading: Reading
    images: tuple[Image, ...]
    use: Use
    targets: tuple[Bytes | None, ...]  # of each of the reading's tensors; None for one that goes into no slot


@record
class SlotPlan:
    """Where everything goes in one slot."""

    arrays: Sequence[Bytes]
    spots: tuple[Spot, ...]
    raws: tuple[Bytes | None, ...]
    targets: tuple[Bytes | None, ...]


class Capture(Protocol):
    """Copies the state of components. None if there is no free memory for it: the caller then skips this save.
    Snapshots up to `safe_seq` are durable elsewhere, so that their memory may be had. `sure`: look at the structure in
    full before the copy begins, where otherwise one that has just changed costs the save."""

    def take(
        self, components: Sequence[Component], *, safe_seq: int | None = None, sure: bool = False
    ) -> Captured | None: ...

    def note(self, components: Sequence[Component]) -> None:
        """Look at the state without a copy, so that what stays as it is until the first save is known as frozen."""
        ...

    @property
    def size(self) -> int:
        """Bytes that a copy takes, as of the last look; 0 before it."""
        ...

    def warm(self, components: Sequence[Component]) -> None:
        """Make ready for the first save, as far as that can be done beside the training."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until no copy is under way, nor what follows one; False if that takes longer."""
        ...

    def unfreeze(self, names: Sequence[tuple[str, str]]) -> None:
        """Copy these tensors (component, name) at every save from now on: they were taken to be frozen."""
        ...

    def close(self, *, safe_seq: int | None = None) -> None:
        """Give the memory back; a snapshot that is newer than `safe_seq` stays for the next start."""
        ...


class BlockingCapture:
    """Copies everything before it returns."""

    def __init__(self, *, codec: str, slots: Slots | None = None, reuse_frozen: bool = False) -> None:
        self._slots: Slots = slots or OwnSlots()
        self.reader = Reader(codec=codec, frozen=reuse_frozen)
        self._structure: Structure | None = None
        self._slot_plans: list[SlotPlan] = []
        self.size = 0

    def take(
        self, components: Sequence[Component], *, safe_seq: int | None = None, sure: bool = False
    ) -> Captured | None:
        prepared = self.prepare(components, safe_seq=safe_seq)
        if prepared is None:
            return None
        use = prepared.use
        try:
            for tensor, target in zip(prepared.reading.tensors, prepared.targets, strict=True):
                if target is not None:
                    copy(target, tensor)
        except BaseException:
            use.release()
            raise
        return Captured(
            images=prepared.images,
            components=prepared.reading.components,
            release=use.release,
            seal=lambda label, head: use.seal(head, label),
        )

    def prepare(
        self, components: Sequence[Component], *, safe_seq: int | None = None, peek: bool = False
    ) -> Prepared | None:
        """Read the state, and give every tensor its place in a slot; None if no slot is free. `peek`: see `Reader`."""
        reading = self.reader.read(components, peek=peek)
        layouts = reading.structure.layouts
        slot = self._slots.acquire([layout.raw_size for layout in layouts if not layout.frozen], safe_seq=safe_seq)
        if slot is None:
            self._slot_plans = []  # they would keep the memory of slots that were let go of
            return None
        use = Use(slot)
        try:
            raws, targets = self._laid_out(reading, slot)
            images = tuple(
                Image(layout=layout, raw=Gathered(layout, reading, number), steady=True)
                if raw is None
                else Image(layout=layout, raw=raw.data)
                for number, (layout, raw) in enumerate(zip(layouts, raws, strict=True))
            )
        except BaseException:
            use.release()
            raise
        return Prepared(reading=reading, images=images, use=use, targets=targets)

    def _laid_out(self, reading: Reading, slot: Slot) -> tuple[tuple[Bytes | None, ...], tuple[Bytes | None, ...]]:
        """The raw stream of every file, with its header, and the target of every tensor: made once for a slot, as long
        as the structure stays."""
        if reading.structure is not self._structure:
            self._structure, self._slot_plans = reading.structure, []
        for plan in self._slot_plans:
            if plan.arrays is slot.arrays and plan.spots == reading.spots:
                return plan.raws, plan.targets
        arrays = iter(slot.arrays)
        raws = tuple(None if layout.frozen else next(arrays) for layout in reading.structure.layouts)
        for layout, raw in zip(reading.structure.layouts, raws, strict=True):
            if raw is not None:
                raw[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
                _clear_gaps(raw, layout)
        targets = tuple(
            None if (raw := raws[spot.file]) is None else raw[spot.start : spot.stop] for spot in reading.spots
        )
        plan = SlotPlan(arrays=slot.arrays, spots=reading.spots, raws=raws, targets=targets)
        self._slot_plans = [plan, *(one for one in self._slot_plans if one.arrays is not slot.arrays)][:SLOT_PLANS_MAX]
        return raws, targets

    def note(self, components: Sequence[Component]) -> None:
        layouts = self.reader.read(components).structure.layouts
        self.size = sum(layout.raw_size for layout in layouts if not layout.frozen)

    def warm(self, components: Sequence[Component]) -> None:
        self.warming(components)()

    def warming(self, components: Sequence[Component]) -> Callable[[], None]:
        """Read the state, and give what makes its slots."""
        layouts = self.reader.read(components).structure.layouts
        sizes = [layout.raw_size for layout in layouts if not layout.frozen]
        return lambda: self._slots.warm(sizes)

    def wait(self, timeout_s: float) -> bool:
        return True

    def unfreeze(self, names: Sequence[tuple[str, str]]) -> None:
        self.reader.unfreeze(names)

    def close(self, *, safe_seq: int | None = None) -> None:
        self._slot_plans = []
        self.reader.forget()
        self._slots.close(safe_seq=safe_seq)


def _clear_gaps(raw: Bytes, layout: FileLayout) -> None:
    """What lies between tensors may be of an earlier state."""
    end = len(layout.header)
    for placed in layout.placed:
        raw[end : placed.laid.offset] = 0
        end = placed.laid.offset + placed.laid.size
    raw[end:] = 0


def copy(target: Bytes, tensor: torch.Tensor) -> None:
    """Copy one tensor, from whatever device and layout, as bytes in C order."""
    source = tensor.detach()
    torch.from_numpy(target).view(source.dtype).view(source.shape).copy_(source)
