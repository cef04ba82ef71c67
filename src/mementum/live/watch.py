"""Watches: made after a full look at a component, they say in a few microseconds a layer that it still holds.

Everything is compared by lists that one call in C makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch

from mementum.live.component import Component
from mementum.live.glance import OPTIMIZER_HOOKS, READ_HOOKS, Glance, has_own_reading, is_plain
from mementum.live.modules import ModuleState
from mementum.live.optimizers import DERIVED, OptimizerState

_address = torch.Tensor.data_ptr


class Watch:
    """The tensors as they lay, and how to find them again: None where something is not as it was."""

    def __init__(self, seen: Glance, kind: _Modules | _Optimizer) -> None:
        self._shape, self._kind = seen.shape, kind
        self._facts = _facts(seen.tensors)
        self._seen = seen.tensors

    def look(self) -> Glance | None:
        """The component as it is now, if its structure is what it was."""
        found = self._kind.again()
        if found is None or _facts(found[0]) != self._facts:
            return None
        tensors = self._seen if _same(found[0], self._seen) else tuple(found[0])
        return Glance(tensors=tensors, shape=self._shape, plain=found[1])

    def stays(self) -> bool:
        """Whether what was peeked at is still all that there is, of what a copy depends on. The loop has gone on: modes
        and what gradients reach may be others by now. What gradients reach is looked at again at the next peek."""
        found = self._kind.again(late=True)
        return found is not None and _facts(found[0]) == self._facts

    def peek(self) -> Glance | None:
        """The same in a third of the time, by what is no part of the structure (numbers, modes), and by which tensors
        it has and where they lie. The rest must be looked at before their memory is read; None: only `look` tells."""
        found = self._kind.peek()
        if found is None or list(map(_address, self._seen)) != self._facts[0]:
            return None
        return Glance(tensors=self._seen, shape=self._shape, plain=found[0])


def watch(component: Component, seen: Glance) -> Watch | None:
    """A watch over a component that was glanced at just now."""
    if isinstance(component, ModuleState):
        modules = list(component.module.modules())
        # What torch.compile makes of a module keeps its mode elsewhere.
        simple = all("training" in module.__dict__ for module in modules)
        return Watch(seen, _Modules(component.module)) if simple else None
    if isinstance(component, OptimizerState):
        return Watch(seen, _Optimizer(component))
    return None


class _Modules:
    """The tree of modules, by the dicts in which they keep their things."""

    def __init__(self, root: torch.nn.Module) -> None:
        waiting, self._held = [root], []
        while waiting:  # in the order of a glance
            held = waiting.pop().__dict__
            self._held.append(held)
            waiting.extend(child for child in held["_modules"].values() if child is not None)
        self._parameters, self._buffers, self._children = map(self._all, ("_parameters", "_buffers", "_modules"))
        self._passing = [held["_non_persistent_buffers_set"] for held in self._held]
        self._passed = [set(names) for names in self._passing]
        self._hooks = [held[hooks] for hooks in READ_HOOKS for held in self._held if hooks in held]
        self._kids = list(chain.from_iterable(map(dict.values, self._children)))
        self._seen = self._now()
        # A glance gives each module's parameters and then its buffers, without those that no state dict has.
        self._picks = [
            (self._parameters[number], self._buffers[number], frozenset(self._passed[number]))
            for number in range(len(self._held))
        ]
        self._full = [
            held for parameters, buffers, none in self._picks for held in (parameters, {} if none else buffers)
        ]
        self._full = [held for held in self._full if held]
        self._partial = [(buffers, passing) for _, buffers, passing in self._picks if passing]
        self._values = self._held_now()

    def peek(self) -> tuple[None] | None:
        """Whether it has the same tensors in the same places of the same dicts, and each module its mode."""
        modes = list(map(itemgetter("training"), self._held))
        return (None,) if modes == self._seen[0] and _same(self._held_now(), self._values) else None

    def _held_now(self) -> list[torch.Tensor | None]:
        values = list(chain.from_iterable(map(dict.values, self._full)))
        for buffers, passing in self._partial:
            values += [tensor for name, tensor in buffers.items() if name not in passing]
        return values

    def again(self, *, late: bool = False) -> tuple[list[torch.Tensor], Any] | None:
        if any(self._hooks) or self._passing != self._passed or any(map(has_own_reading, self._held)):
            return None
        same = (
            _same(self._all("_parameters"), self._parameters)
            and _same(self._all("_buffers"), self._buffers)
            and _same(self._all("_modules"), self._children)
            and _same(list(chain.from_iterable(map(dict.values, self._children))), self._kids)
        )
        now = self._now()
        if not same or now[1:] != self._seen[1:] or (now[0] != self._seen[0] and not late):
            return None
        tensors: list[torch.Tensor] = []
        for parameters, buffers, passing in self._picks:
            tensors += parameters.values()
            if buffers:
                tensors += [tensor for name, tensor in buffers.items() if name not in passing]
        return [tensor for tensor in tensors if tensor is not None], None

    def _all(self, name: str) -> list[dict[str, Any]]:
        return list(map(itemgetter(name), self._held))

    def _now(self) -> tuple[list[bool], list[str], list[bool]]:
        modes = list(map(itemgetter("training"), self._held))
        empty = [one is None for one in chain.from_iterable(map(dict.values, chain(self._parameters, self._buffers)))]
        return modes, list(chain.from_iterable(chain(self._parameters, self._buffers, self._children))), empty


class _Optimizer:
    """Groups and state, by the lists and dicts in which they stand."""

    def __init__(self, component: OptimizerState) -> None:
        self._component = component
        self._optimizer: Any = component.optimizer
        self._state = self._optimizer.state
        self._owners = list(self._state)
        self._entries = list(self._state.values())
        self._keys = list(map(tuple, self._entries))
        self._of = {id(owner): entry for owner, entry in zip(self._owners, self._entries, strict=True)}
        self._groups = self._now()
        self._hyper = [tuple(group) for group in self._optimizer.param_groups]
        # A glance goes by the groups' order, the state by the order of first steps.
        self._ordered: list[tuple[str, dict[str, Any]]] = [
            (component.name_of(parameter, number, position), self._of[id(parameter)])
            for number, group in enumerate(self._optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
            if id(parameter) in self._of
        ]
        values = chain.from_iterable(entry.values() for _, entry in self._ordered)
        self._values = list(values)
        self._all_tensors = all(isinstance(value, torch.Tensor) for value in self._values)
        self._ordered_entries = [entry for _, entry in self._ordered]
        self._toggled = False  # whether gradients reach others of its parameters than they did

    def peek(self) -> tuple[Any] | None:
        """Its hyper-parameters, if it has the same state in the same dicts. Where that has numbers in it, which change
        at every step, a look is needed."""
        if (
            self._toggled
            or not self._all_tensors
            or self._optimizer.state is not self._state
            or len(self._state) != len(self._owners)
        ):
            return None
        if list(map(tuple, self._optimizer.param_groups)) != self._hyper:
            return None
        hyper = self._hyper_now()
        held = list(chain.from_iterable(map(dict.values, self._ordered_entries)))
        return ((hyper, {}),) if hyper is not None and _same(held, self._values) else None

    def _hyper_now(self) -> list[dict[str, Any]] | None:
        """Of every group; None where a value can change where it stands."""
        hyper = [
            {key: value for key, value in group.items() if key not in DERIVED} for group in self._optimizer.param_groups
        ]
        return hyper if all(map(is_plain, chain.from_iterable(map(dict.values, hyper)))) else None

    def again(self, *, late: bool = False) -> tuple[list[torch.Tensor], Any] | None:
        optimizer = self._optimizer
        if optimizer.state is not self._state or any(getattr(optimizer, hooks, None) for hooks in OPTIMIZER_HOOKS):
            return None
        if not (_same(list(self._state), self._owners) and _same(list(self._state.values()), self._entries)):
            return None
        groups = optimizer.param_groups
        if [tuple(group) for group in groups] != self._hyper:
            return None
        now = self._now()
        self._toggled = now != self._groups
        if self._toggled and not (late and [ids for ids, _ in now] == [ids for ids, _ in self._groups]):
            return None
        if list(map(tuple, self._entries)) != self._keys:
            return None
        hyper = self._hyper_now()
        if hyper is None:
            return None
        held = chain.from_iterable(entry.values() for _, entry in self._ordered)
        if self._all_tensors:
            tensors = list(held)
            return (tensors, (hyper, {})) if all(isinstance(one, torch.Tensor) for one in tensors) else None
        return self._mixed(hyper)

    def _mixed(self, hyper: list[dict[str, Any]]) -> tuple[list[torch.Tensor], Any] | None:
        """Where plain numbers stand among the tensors, as the count of steps in many optimizers."""
        tensors: list[torch.Tensor] = []
        plain: dict[str, dict[str, Any]] = {}
        for name, entry in self._ordered:
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    tensors.append(value)
                elif is_plain(value):
                    plain.setdefault(name, {})[key] = value
                else:
                    return None
        return tensors, (hyper, plain)

    def _now(self) -> list[tuple[list[int], list[bool]]]:
        return [
            ([id(one) for one in group["params"]], [one.requires_grad for one in group["params"]])
            for group in self._optimizer.param_groups
        ]


def _same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _facts(
    tensors: Iterable[torch.Tensor],
) -> tuple[list[int], list[torch.Size], list[tuple[int, ...]], list[torch.dtype]]:
    """Where each lies, and how."""
    held = tuple(tensors)
    return (
        list(map(_address, held)),
        [one.shape for one in held],
        [one.stride() for one in held],
        [one.dtype for one in held],
    )
