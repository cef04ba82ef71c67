"""The structure of the state: what is to be copied, from where, and to which byte of which file.

It is read once. As long as a glance shows the same tensors in the same places, a save needs no names and no plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch

from mementum.execute.plan import Facts, FileLayout, plan
from mementum.format import typed_json
from mementum.live.component import Component
from mementum.live.glance import Glance, glance, retold
from mementum.live.modules import ModuleState
from mementum.live.optimizers import OptimizerState
from mementum.live.tree import split
from mementum.live.watch import Watch, watch
from mementum.records import record

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
SAMPLE = 128  # bytes at the head of every tensor that are looked at before and after: two lines of a cache
FROZEN_MIN = 8 << 20  # bytes: less is written again at every save, sooner than looked at in a file of its own


@record
class Spot:
    """A tensor's place: in file number `file`, bytes `start` to `stop` of its raw stream. `address` is where its bytes
    lie in memory as they go into the file; 0 where they must be fetched from a device or another layout."""

    component: str
    key: str
    file: int
    start: int
    stop: int
    address: int

    @property
    def name(self) -> str:
        return f"{self.component}.{self.key}"

    def source(self) -> Bytes:
        """Its bytes. They belong to whoever holds the tensor, which must be held as long as this is used."""
        memory = (ctypes.c_uint8 * (self.stop - self.start)).from_address(self.address)
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8)


@record
class Known:
    """A component as it was read: `spots` say where those tensors of a glance go whose numbers are in `picks`. The
    others go nowhere, or where another one goes."""

    shape: tuple[object, ...]
    tree: Any
    picks: tuple[int, ...]
    spots: tuple[Spot, ...]
    watch: Watch | None


@record
class Structure:
    """The state at one reading. `known` has the components for which a glance is enough."""

    layouts: tuple[FileLayout, ...]
    facts: Mapping[str, tuple[Facts, ...]]
    known: Mapping[str, Known]
    places: Mapping[str, Mapping[str, tuple[int, int, int]]]  # component, tensor: file, start, stop


@record
class Reading:
    """The state now: `spots` and `tensors` belong together, one by one. `loose` are the spots of components that were
    read anew, and may lie elsewhere the next time. At what is `peeked`, a look must follow: see `changed`."""

    structure: Structure
    components: Mapping[str, Mapping[str, object]]
    spots: tuple[Spot, ...]
    tensors: tuple[torch.Tensor, ...]
    loose: tuple[Spot, ...]
    peeked: tuple[Watch, ...] = ()

    def changed(self) -> bool:
        """Whether the structure is not what it was taken for. Before that is known, no address may be read from."""
        try:
            return not all(watch.stays() for watch in self.peeked)
        except (RuntimeError, KeyError):  # it changes right now, in another thread
            return True


@record
class Joined:
    """Spots and tensors of all components, as they were put together from these glances."""

    structure: Structure
    parts: tuple[tuple[torch.Tensor, ...], ...]
    spots: tuple[Spot, ...]
    tensors: tuple[torch.Tensor, ...]


class Reader:
    """Reads the state of components, each time as little of it as is needed."""

    def __init__(self, *, codec: str, frozen: bool = False) -> None:
        self._codec, self._frozen = codec, frozen
        self._structure: Structure | None = None
        self._moving: set[tuple[str, str]] = set()  # what was taken to be frozen, and has changed
        self._seen: dict[tuple[str, str], object] = {}  # of the parameters without gradient: place, version, sample
        self._doubtful = False  # whether one of them was seen for the first time: the next reading says if it is frozen
        self._joined: Joined | None = None

    def read(self, components: Sequence[Component], *, peek: bool = False) -> Reading:
        """The state now. With `peek`, whoever reads from addresses looks first whether the structure is `changed`."""
        structure = None if self._doubtful else self._structure
        peeked: list[Watch] = []
        glances = {component.name: _look(component, structure, peeked if peek else None) for component in components}
        if structure is not None:
            for component in components:
                seen, known = glances[component.name], structure.known.get(component.name)
                if (seen is None) != (known is None) or (known and seen and seen.shape != known.shape):
                    structure = None
                    break
        read: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {}
        for component in components:
            if structure is None or component.name not in structure.known:
                read[component.name] = _full(component)
        if structure is None or any(_all_facts(held) != structure.facts[name] for name, (_, held) in read.items()):
            if structure is not None:
                read |= {name: _full(one) for one in components if (name := one.name) not in read}
            structure = self._structure = self._made(components, read, glances)
        return self._put_together(components, structure, glances, read, peeked)

    def _put_together(
        self,
        components: Sequence[Component],
        structure: Structure,
        glances: Mapping[str, Glance | None],
        read: Mapping[str, tuple[Any, dict[str, torch.Tensor]]],
        peeked: Sequence[Watch],
    ) -> Reading:
        trees: dict[str, Mapping[str, object]] = {}
        parts: list[tuple[Known, Glance]] = []
        loose: list[Spot] = []
        moving: list[torch.Tensor] = []
        for component in components:
            name, seen, known = component.name, glances[component.name], structure.known.get(component.name)
            if seen is not None and known is not None:
                trees[name] = {"kind": component.kind, "state": retold(component, known.tree, seen)}
                parts.append((known, seen))
                continue
            tree, held = read[name]
            # A tree of somebody else's may hold what changes later, so it is encoded now.
            encoded = typed_json.encode(tree, path=f"$.components.{name}.state")
            trees[name] = {"kind": component.kind, "state": typed_json.Encoded(data=encoded)}
            for key, tensor in held.items():
                if tensor.numel():
                    loose.append(_spot(name, key, tensor, structure.places[name][key]))
                    moving.append(tensor)
        joined = self._joined_of(structure, parts)
        return Reading(
            structure=structure,
            components=trees,
            spots=(*joined.spots, *loose) if loose else joined.spots,
            tensors=(*joined.tensors, *moving) if loose else joined.tensors,
            loose=tuple(loose),
            peeked=tuple(peeked),
        )

    def _joined_of(self, structure: Structure, parts: Sequence[tuple[Known, Glance]]) -> Joined:
        """What was put together the last time, where nothing is another since."""
        last = self._joined
        held = tuple(seen.tensors for _, seen in parts)
        if last is None or last.structure is not structure or len(held) != len(last.parts):
            same = False
        else:
            same = all(map(is_, held, last.parts))
        if last is None or not same:
            last = self._joined = Joined(
                structure=structure,
                parts=held,
                spots=tuple(chain.from_iterable(known.spots for known, _ in parts)),
                tensors=tuple(seen.tensors[number] for known, seen in parts for number in known.picks),
            )
        return last

    def forget(self) -> None:
        """Read everything anew the next time."""
        self._structure = self._joined = None

    def unfreeze(self, names: Iterable[tuple[str, str]]) -> None:
        """What was taken to be frozen has changed: from now on it is copied like everything else."""
        self._moving |= set(names)
        self.forget()

    def _made(
        self,
        components: Sequence[Component],
        read: Mapping[str, tuple[Any, dict[str, torch.Tensor]]],
        glances: Mapping[str, Glance | None],
    ) -> Structure:
        facts = {name: _all_facts(held) for name, (_, held) in read.items()}
        weights = {component.name for component in components if component.weights}
        frozen = self._frozen_in(components, read) if self._frozen else {}
        layouts = plan(
            {name: held for name, held in facts.items() if name in weights},
            {name: held for name, held in facts.items() if name not in weights},
            codec=self._codec,
            frozen=frozen,
        )
        places: dict[str, dict[str, tuple[int, int, int]]] = {}
        for number, layout in enumerate(layouts):
            for placed in layout.placed:
                laid = placed.laid
                places.setdefault(placed.component, {})[laid.name] = (number, laid.offset, laid.offset + laid.size)
        known: dict[str, Known] = {}
        for component in components:
            seen = glances[component.name]
            if seen is not None:
                tree, held = read[component.name]
                known_here = _known(component, seen, tree, held, places.get(component.name, {}))
                if known_here is not None:
                    known[component.name] = known_here
        return Structure(
            layouts=layouts,
            facts=facts,
            known=known,
            places=places,
        )

    def _frozen_in(
        self, components: Sequence[Component], read: Mapping[str, tuple[Any, dict[str, torch.Tensor]]]
    ) -> dict[str, frozenset[str]]:
        """Names of the tensors of models that no gradient reaches, no optimizer has, and nothing has changed since the
        last reading (an average of weights has been), if they are worth it."""
        optimizers = [one.optimizer for one in components if isinstance(one, OptimizerState)]
        trained = {id(each) for one in optimizers for group in one.param_groups for each in group["params"]}
        names = {component.name for component in components}
        frozen: dict[str, frozenset[str]] = {}
        before, self._seen, self._doubtful = self._seen, {}, False
        for component in components:
            if not isinstance(component, ModuleState) or f"{component.name}.frozen" in names:
                continue
            addresses = {
                parameter.data_ptr()
                for parameter in component.module.parameters()
                if not parameter.requires_grad and id(parameter) not in trained and is_plain(parameter)
            }
            held: dict[str, torch.Tensor] = {}
            for name, tensor in read[component.name][1].items():
                key = (component.name, name)
                if tensor.numel() and tensor.data_ptr() in addresses and key not in self._moving:
                    self._seen[key] = (tensor.data_ptr(), tensor._version, _head(tensor))
                    self._doubtful = self._doubtful or key not in before
                    if before.get(key) == self._seen[key]:
                        held[name] = tensor
            if sum(tensor.numel() * tensor.element_size() for tensor in held.values()) >= FROZEN_MIN:
                frozen[component.name] = frozenset(held)
        return frozen


def _look(component: Component, structure: Structure | None, peeked: list[Watch] | None) -> Glance | None:
    """The component now. Where `peeked` is given, a peek may do, which is then entered there."""
    known = None if structure is None else structure.known.get(component.name)
    watch = None if known is None else known.watch
    if watch is not None and peeked is not None and (seen := watch.peek()) is not None:
        peeked.append(watch)
        return seen
    return (watch.look() if watch is not None else None) or glance(component)


def _full(component: Component) -> tuple[Any, dict[str, torch.Tensor]]:
    return split(component.read(), component=component.name, named_by="state" if component.weights else "")


def _all_facts(held: Mapping[str, torch.Tensor]) -> tuple[Facts, ...]:
    return tuple(_facts(name, tensor) for name, tensor in held.items())


def _facts(name: str, tensor: torch.Tensor) -> Facts:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (name, dtype, tuple(tensor.shape), tensor.element_size(), tensor.numel() * tensor.element_size())


def _known(
    component: Component,
    seen: Glance,
    tree: Any,
    held: Mapping[str, torch.Tensor],
    places: Mapping[str, tuple[int, int, int]],
) -> Known | None:
    """None if the reading has a tensor that the glance has not."""
    named = {_identity(tensor): name for name, tensor in held.items() if tensor.numel()}
    spots: dict[int, Spot] = {}
    for number, tensor in enumerate(seen.tensors):
        name = named.pop(_identity(tensor), None)
        if name is not None:
            spots[number] = _spot(component.name, name, tensor, places[name])
    if named:
        return None
    return Known(
        shape=seen.shape, tree=tree, picks=tuple(spots), spots=tuple(spots.values()), watch=watch(component, seen)
    )


def _spot(component: str, name: str, tensor: torch.Tensor, place: tuple[int, int, int]) -> Spot:
    file, start, stop = place
    address = tensor.data_ptr() if is_plain(tensor) else 0
    return Spot(component=component, key=name, file=file, start=start, stop=stop, address=address)


def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)


def _head(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1)[:SAMPLE].view(torch.uint8)[:SAMPLE].numpy().tobytes()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory holds its bytes as they go into the file."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
