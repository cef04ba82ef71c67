"""Finite: whether all numbers of a state that have to be finite are, read from the very bytes that are written.

A parameter whose own square is infinite is as bad as one that is not finite: no training gets there, a flipped bit
does, and a loss shows it only when that weight is used. What an optimizer remembers may be as large: squares of
gradients are. A floating-point number is not finite if all bits of its exponent are
set; it is infinite if no other bit is, else NaN.
Bit patterns sort like the numbers that they are of, so the largest pattern of a stretch tells it for all of them: once
as signed integers, for those above zero, and once as unsigned ones, for those below. That is exact in one pass, no sum
can overflow in it, and it needs no memory.

Infinities may be meant, NaN never is: a tensor that holds infinities when a task begins may hold them later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from mementum.execute.plan import FileLayout
from mementum.execute.snapshot import Image
from mementum.format.blocks import Raw
from mementum.live.component import Component
from mementum.live.modules import ModuleState
from mementum.live.names import canonical
from mementum.live.optimizers import OptimizerState
from mementum.live.tree import as_bytes, split
from mementum.records import record

PIECE = 1 << 20  # bytes looked at at once: the second look finds them in the processor's cache
EMPTY: frozenset[str] = frozenset()

SQUARE_OF = "the square of "  # how the name of what is not finite begins where its numbers themselves are


class Want(IntEnum):
    """What is asked of the numbers of a tensor."""

    NOTHING = 0
    FINITE = 1
    SQUARES = 2  # that their squares are finite too


Must = Callable[[str, str], Want]  # what is asked of a tensor, by component and name


@record
class Pattern:
    """The bits of a kind of number of `width` bytes. `first`: the lowest pattern above zero that is not finite; with
    the sign's bit on it is the first one below zero. `infinite`: whether it is an infinity, not NaN as those after it.
    `large`: the lowest of a number whose square is not finite, where trained numbers stay far below that. `only`: the
    single pattern that is not finite, of kinds that have no other."""

    width: int
    first: int = 0
    large: int | None = None
    infinite: bool = True
    only: int | None = None


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "float64": Pattern(width=8, first=0x7FF << 52, large=(0x3FF + 512) << 52),
        "float32": Pattern(width=4, first=0xFF << 23, large=(0x7F + 64) << 23),
        "bfloat16": Pattern(width=2, first=0xFF << 7, large=(0x7F + 64) << 7),
        "float16": Pattern(width=2, first=0x1F << 10),
        "complex128": Pattern(width=8, first=0x7FF << 52, large=(0x3FF + 512) << 52),
        "complex64": Pattern(width=4, first=0xFF << 23, large=(0x7F + 64) << 23),
        "complex32": Pattern(width=2, first=0x1F << 10),
        "float8_e5m2": Pattern(width=1, first=0x1F << 2),
        "float8_e4m3fn": Pattern(width=1, first=0x7F, infinite=False),  # one NaN of each sign
        "float8_e4m3fnuz": Pattern(width=1, only=0x80),  # what would be minus zero
        "float8_e5m2fnuz": Pattern(width=1, only=0x80),
        "float8_e8m0fnu": Pattern(width=1, only=0xFF),  # powers of two without a sign: what would be the largest
    }
)


def is_sound(raw: Raw, start: int, stop: int, dtype: str, *, squares: bool = False, infinities: bool = False) -> bool:
    """Whether the numbers of `dtype` in bytes `start` to `stop` of a stream are finite, with `squares` their squares
    too; or, with `infinities`, whether none is NaN. Whole numbers always are."""
    pattern = PATTERNS.get(dtype)
    if pattern is None:
        return True
    pieces = (raw[begin : min(begin + PIECE, stop)] for begin in range(start, stop, PIECE))
    return all(_are_sound(piece, pattern, squares, infinities) for piece in pieces)


def _are_sound(piece: memoryview, pattern: Pattern, squares: bool, infinities: bool) -> bool:
    signed = np.frombuffer(piece, np.dtype(f"<i{pattern.width}"))
    unsigned = signed.view(np.dtype(f"<u{pattern.width}"))
    if pattern.only is not None:
        return not bool((unsigned == pattern.only).any())
    least = pattern.first if pattern.large is None or not squares else pattern.large
    limit = pattern.first + pattern.infinite if infinities else least
    return int(signed.max()) < limit and int(unsigned.max()) < limit + (1 << (8 * pattern.width - 1))


def first_bad(
    layouts: Iterable[FileLayout], streams: Mapping[str, Raw], must: Must, *, meant: frozenset[str] = EMPTY
) -> str | None:
    """The full name of the first tensor that has to be finite and is not, or, in words, whose square is not; None if
    there is none. `streams` are raw, by file name; a file that has none is passed over. `meant`: full names of tensors
    that may hold infinities."""
    for layout in layouts:
        raw = streams.get(layout.name)
        if raw is None:
            continue
        for placed in layout.placed:
            laid, name = placed.laid, f"{placed.component}.{placed.laid.name}"
            want = must(placed.component, laid.name)
            if laid.dtype not in PATTERNS or not want:
                continue
            where = (raw, laid.offset, laid.offset + laid.size, laid.dtype)
            if not is_sound(*where, squares=want is Want.SQUARES, infinities=name in meant):
                return f"{SQUARE_OF}{name}" if is_sound(*where) else name
    return None


def must_by_context(components: Mapping[str, Mapping[str, Any]]) -> Must:
    """What of a stored state has to be finite, by the trees of its context: what optimizers train, and what they
    remember. What else a model holds may be a mask."""
    kinds = {name: held["kind"] for name, held in components.items()}
    optimizers = {name for name, kind in kinds.items() if kind == OptimizerState.kind}
    trained = {each for name in optimizers for group in components[name]["state"]["groups"] for each in group["params"]}

    def must(component: str, name: str) -> Want:
        if component in optimizers:
            return Want.FINITE
        return Want.SQUARES if _is_of(f"{component}.{name}", trained) else Want.NOTHING

    return must


def _is_of(name: str, names: frozenset[str] | set[str]) -> bool:
    """Whether it is one of them, or a part of one that is made of parts."""
    return name in names or name.rpartition(".")[0] in names


class Finite:
    """Looks at what one run writes: parameters of models and the state of optimizers, never at buffers, in which masks
    may lie. `meant`: full names of tensors that held infinities when the task began."""

    def __init__(self, components: Sequence[Component], *, meant: frozenset[str] = EMPTY) -> None:
        self._components, self._meant = components, meant
        self._layouts: tuple[FileLayout, ...] = ()
        self._parameters: frozenset[str] = EMPTY
        self._optimizers = frozenset(one.name for one in components if isinstance(one, OptimizerState))

    def first_bad(self, images: Sequence[Image]) -> str | None:
        """The full name of the first tensor of a snapshot that has to be finite and is not. What is frozen and durable
        already is not read again."""
        layouts = tuple(image.layout for image in images)
        if layouts != self._layouts:  # the state has another structure than at the last look
            self._learn(layouts)
        streams = {image.layout.name: image.raw for image in images if not image.steady}
        return first_bad(layouts, streams, self._must, meant=self._meant)

    def _learn(self, layouts: tuple[FileLayout, ...]) -> None:
        try:
            self._parameters, self._layouts = parameters_of(self._components), layouts
        except RuntimeError:  # the program changes a model right now: what it was before holds, and the next look asks
            return

    def _must(self, component: str, name: str) -> Want:
        if component in self._optimizers:
            return Want.FINITE
        return Want.SQUARES if _is_of(f"{component}.{name}", self._parameters) else Want.NOTHING


def parameters_of(components: Sequence[Component]) -> frozenset[str]:
    """Full names of the parameters of all models, tied ones under each of their names."""
    return frozenset(
        f"{one.name}.{canonical(name)}"
        for one in components
        if isinstance(one, ModuleState)
        for name, _ in one.module.named_parameters(remove_duplicate=False)
    )


def infinite(components: Sequence[Component]) -> frozenset[str]:
    """Full names of those parameters and tensors of optimizers that hold infinities, or, for parameters, numbers whose
    squares are, and no NaN. Reads all of them, each where it lies: on a device by the device."""
    parameters = parameters_of(components)
    found: set[str] = set()
    for one in components:
        if not isinstance(one, ModuleState | OptimizerState):
            continue
        _, held = split(one.read(), component=one.name, named_by="state" if one.weights else "")
        for key, tensor in held.items():
            name = f"{one.name}.{key}"
            is_parameter = not isinstance(one, OptimizerState)
            if is_parameter and not _is_of(name, parameters):
                continue
            if _holds_infinities(tensor, squares=is_parameter):
                found.add(name)
    return frozenset(found)


def _holds_infinities(tensor: torch.Tensor, *, squares: bool) -> bool:
    """Or, with `squares`, numbers whose squares are infinite; and no NaN."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in PATTERNS or not PATTERNS[dtype].infinite or not tensor.numel():
        return False
    if tensor.device.type == "cpu" or dtype.startswith("float8"):  # whose bounds torch does not know
        stream = as_bytes(tensor).numpy().data
        size = len(stream)
        whole = is_sound(stream, 0, size, dtype, squares=squares)
        return not whole and is_sound(stream, 0, size, dtype, infinities=True)
    numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    bounds = torch.stack(torch.aminmax(numbers))  # both are NaN if a number is
    return bool(torch.isinf(bounds.square() if squares and PATTERNS[dtype].large else bounds).any())
