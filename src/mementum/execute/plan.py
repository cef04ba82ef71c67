"""The plan of a save: which tensor goes to which byte of which file. It needs sizes only, no tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mementum.format.blocks import Stretch
from mementum.format.weights import Laid, header, lay
from mementum.records import StoredTensor, record

BLOCKS_NAME = "optimizer.blocks"
FROZEN = ".frozen.safetensors"  # how the names of files end that hold what nothing is expected to change
RAW = "raw"
ALIGNMENT = 64  # bytes: as torch places its own tensors, so that what was read can be used where it is
NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})

# (name, dtype, shape, bytes an element, bytes in all)
Facts = tuple[str, str, tuple[int, ...], int, int]


@record
class Placed:
    """A tensor of a component, and where its bytes begin in the file's raw stream."""

    component: str
    laid: Laid


@record
class FileLayout:
    """A data file before it is written: its raw stream is `header`, then the tensors without gaps."""

    name: str
    header: bytes
    placed: tuple[Placed, ...]
    stretches: tuple[Stretch, ...]
    codec: str
    raw_size: int
    frozen: bool = False  # whether it holds what nothing is expected to change

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """The entries of the index."""
        return tuple(
            StoredTensor(
                component=placed.component,
                name=placed.laid.name,
                dtype=placed.laid.dtype,
                shape=placed.laid.shape,
                file=self.name,
                offset=placed.laid.offset,
                size=placed.laid.size,
            )
            for placed in self.placed
        )


def weights_name(component: str) -> str:
    return f"{component}.safetensors"


def frozen_name(component: str) -> str:
    return f"{component}{FROZEN}"


def plan(
    weights: Mapping[str, Iterable[Facts]],
    others: Mapping[str, Iterable[Facts]],
    *,
    codec: str,
    frozen: Mapping[str, frozenset[str]] = NOTHING,
) -> tuple[FileLayout, ...]:
    """One safetensors file for each component of weights, and one for those of its tensors that are frozen; one file of
    blocks for all other tensors."""
    layouts: list[FileLayout] = []
    for component, facts in weights.items():
        still, kept = frozen.get(component, frozenset()), tuple(facts)
        if still:
            held = (fact for fact in kept if fact[0] in still)
            layouts.append(_safetensors(component, held, name=frozen_name(component), frozen=True))
        if len(still) < len(kept) or not kept:
            rest = (fact for fact in kept if fact[0] not in still)
            layouts.append(_safetensors(component, rest, name=weights_name(component)))
    loose = [(component, fact) for component, facts in others.items() for fact in facts]
    if loose:
        layouts.append(_blocks(loose, codec))
    return tuple(layouts)


def _safetensors(component: str, facts: Iterable[Facts], *, name: str, frozen: bool = False) -> FileLayout:
    laid = lay(facts)
    head = header(laid)
    placed = tuple(Placed(component=component, laid=_moved(tensor, len(head))) for tensor in laid)
    raw_size = len(head) + sum(tensor.size for tensor in laid)
    whole = Stretch(offset=0, size=raw_size, width=1)
    return FileLayout(
        name=name, header=head, placed=placed, stretches=(whole,), codec=RAW, raw_size=raw_size, frozen=frozen
    )


def _blocks(loose: list[tuple[str, Facts]], codec: str) -> FileLayout:
    # The sort is stable and by width only, so all numbers of one width form one stretch, in the order of the state.
    ordered = sorted(loose, key=lambda item: -item[1][3])
    laid = lay((fact for _, fact in ordered), alignment=ALIGNMENT)
    placed = tuple(Placed(component=item[0], laid=tensor) for item, tensor in zip(ordered, laid, strict=True))
    ends: dict[int, int] = {}  # of the stretch of each width: it goes on to where the next one begins
    for tensor in laid:
        ends[tensor.itemsize] = tensor.offset + -(-tensor.size // ALIGNMENT) * ALIGNMENT
    stretches: list[Stretch] = []
    offset = 0
    for width, end in ends.items():
        stretches.append(Stretch(offset=offset, size=end - offset, width=width))
        offset = end
    return FileLayout(
        name=BLOCKS_NAME, header=b"", placed=placed, stretches=tuple(stretches), codec=codec, raw_size=offset
    )


def _moved(tensor: Laid, by: int) -> Laid:
    return Laid(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        itemsize=tensor.itemsize,
        offset=tensor.offset + by,
        size=tensor.size,
    )
