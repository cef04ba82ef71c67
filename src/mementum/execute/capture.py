"""Capture: copies the live state into host memory. This one stops the loop for as long as the copy takes.

The seam is `Capture`: what takes its place may return before the copy has ended, as long as no tensor can change
until it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np
import torch

from mementum.execute.plan import Facts, FileLayout, plan
from mementum.execute.snapshot import Image
from mementum.live.component import Component
from mementum.live.tree import split
from mementum.records import record

SLOTS = 2  # one is being written while the other is filled; with fewer, a save would wait for the disk


@record
class Captured:
    """The bytes, and what of the state is no tensor. The bytes may be read once `outcome` has returned None; it
    waits for a copy under way and says why it is of no use. `waited_s` is for how long that copy held up a step."""

    images: tuple[Image, ...]
    components: Mapping[str, Mapping[str, object]]
    release: Callable[[], None]
    outcome: Callable[[], str | None] = field(default=lambda: None)
    waited_s: Callable[[], float] = field(default=lambda: 0.0)


@record
class Placement:
    """A live tensor, and the bytes in the slot where its copy goes."""

    name: str
    source: torch.Tensor
    target: np.ndarray[Any, np.dtype[np.uint8]]


@record
class Prepared:
    """A capture whose bytes are still to be copied."""

    captured: Captured
    placements: tuple[Placement, ...]


class Capture(Protocol):
    """Copies the state of components. None if there is no free memory for it: the caller then skips this save."""

    def take(self, components: Sequence[Component]) -> Captured | None: ...

    def close(self) -> None: ...


class Slot:
    """Host memory for one snapshot, kept and reused: a first touch costs eight times a reuse."""

    def __init__(self) -> None:
        self.busy = False
        self._arrays: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}

    def array(self, layout: FileLayout) -> np.ndarray[Any, np.dtype[np.uint8]]:
        kept = self._arrays.get(layout.name)
        if kept is None or kept.size != layout.raw_size:
            kept = np.empty(layout.raw_size, np.uint8)
            self._arrays[layout.name] = kept
        return kept

    def free(self) -> None:
        self.busy = False


class BlockingCapture:
    """Copies everything before it returns."""

    def __init__(self, *, codec: str) -> None:
        self._codec = codec
        self._slots = tuple(Slot() for _ in range(SLOTS))
        self._shape: object = None
        self._layouts: tuple[FileLayout, ...] = ()

    def take(self, components: Sequence[Component]) -> Captured | None:
        prepared = self.prepare(components)
        if prepared is None:
            return None
        try:
            for placement in prepared.placements:
                copy(placement)
        except BaseException:
            prepared.captured.release()
            raise
        return prepared.captured

    def prepare(self, components: Sequence[Component]) -> Prepared | None:
        """Read the state, and give every tensor its place in a slot; None if no slot is free."""
        slot = next((slot for slot in self._slots if not slot.busy), None)
        if slot is None:
            return None
        skeletons, tensors = read(components)
        images: list[Image] = []
        placements: list[Placement] = []
        for layout in self._plan(components, tensors):
            array = slot.array(layout)
            array[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            images.append(Image(layout=layout, raw=array.data))
            for placed in layout.placed:
                laid = placed.laid
                if laid.size:
                    name, source = f"{placed.component}.{laid.name}", tensors[placed.component][laid.name]
                    target = array[laid.offset : laid.offset + laid.size]
                    placements.append(Placement(name=name, source=source, target=target))
        slot.busy = True
        captured = Captured(images=tuple(images), components=skeletons, release=slot.free)
        return Prepared(captured=captured, placements=tuple(placements))

    def close(self) -> None:
        """Nothing is held but memory."""

    def check(self, components: Sequence[Component]) -> Mapping[str, Mapping[str, object]]:
        """Plan for the state as it is, without a copy; gives what of it is no tensor. UnsupportedState or UsageError
        name what cannot be captured."""
        skeletons, tensors = read(components)
        self._plan(components, tensors)
        return skeletons

    def _plan(
        self, components: Sequence[Component], tensors: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> tuple[FileLayout, ...]:
        facts = {name: tuple(_facts(key, tensor) for key, tensor in held.items()) for name, held in tensors.items()}
        if facts != self._shape:  # a layout stays as long as names, dtypes and shapes do
            weights = {component.name for component in components if component.weights}
            self._layouts = plan(
                {name: held for name, held in facts.items() if name in weights},
                {name: held for name, held in facts.items() if name not in weights},
                codec=self._codec,
            )
            self._shape = facts
        return self._layouts


def read(
    components: Sequence[Component],
) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, torch.Tensor]]]:
    """Every component's kind and tree without tensors, and its tensors by name."""
    skeletons: dict[str, dict[str, object]] = {}
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for component in components:
        skeleton, held = split(
            component.read(), component=component.name, named_by="state" if component.weights else ""
        )
        skeletons[component.name] = {"kind": component.kind, "state": skeleton}
        tensors[component.name] = held
    return skeletons, tensors


def _facts(name: str, tensor: torch.Tensor) -> Facts:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (name, dtype, tuple(tensor.shape), tensor.element_size(), tensor.numel() * tensor.element_size())


def copy(placement: Placement) -> None:
    """Copy one tensor, from whatever device and layout, as bytes in C order."""
    source = placement.source
    torch.from_numpy(placement.target).view(source.dtype).view(source.shape).copy_(source)
