"""Capture: copies the live state into host memory. This one stops the loop for as long as the copy takes.

The seam is `Capture`: what takes its place may return before the copy has ended, as long as no tensor can change
until it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """The copied bytes, and what of the state is no tensor."""

    images: tuple[Image, ...]
    components: Mapping[str, Mapping[str, object]]
    release: Callable[[], None]


class Capture(Protocol):
    """Copies the state of components. None if there is no free memory for it: the caller then skips this save."""

    def take(self, components: Sequence[Component]) -> Captured | None: ...


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
        slot = next((slot for slot in self._slots if not slot.busy), None)
        if slot is None:
            return None
        skeletons, tensors = read(components)
        layouts = self._plan(components, tensors)
        slot.busy = True
        try:
            images = tuple(_copy(layout, tensors, slot.array(layout)) for layout in layouts)
        except BaseException:
            slot.free()
            raise
        return Captured(images=images, components=skeletons, release=slot.free)

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


def _copy(
    layout: FileLayout,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    array: np.ndarray[Any, np.dtype[np.uint8]],
) -> Image:
    array[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
    for placed in layout.placed:
        laid = placed.laid
        if laid.size == 0:
            continue
        source = tensors[placed.component][laid.name]
        target = torch.from_numpy(array[laid.offset : laid.offset + laid.size])
        target.view(source.dtype).view(source.shape).copy_(source)
    return Image(layout=layout, raw=array.data)
