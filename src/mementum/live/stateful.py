"""Everything else that can be saved: objects with a state dict, plain containers, and generators."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from mementum.errors import UnsupportedState
from mementum.live.component import Component, compare
from mementum.live.fitting import Fit, Fitted, whole
from mementum.live.keeping import copied, keep
from mementum.live.modules import ModuleState
from mementum.live.names import parameter_names
from mementum.live.optimizers import OptimizerState
from mementum.live.tree import proved

# Of a scheduler: what the program was given, not where it stands.
RATES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs", "eta_min")


class StatefulState:
    """An object with `state_dict()` and `load_state_dict()`: a scheduler, a GradScaler, an EMA, early stopping."""

    kind = "stateful"
    weights = False

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def read(self) -> object:
        return self.thing.state_dict()

    def fit(self, tree: object, fit: Fit) -> Fitted:
        # Only the object itself knows what it takes; the comparison after the load finds what it did not.
        return Fitted(tree=_with_rates(tree, self.thing) if fit.lr_wins == "new" else tree)

    def remember(self) -> Callable[[], None]:
        state = copied(self.thing.state_dict())
        expected = proved(state)
        refill = keep(getattr(self.thing, "__dict__", {}))

        def bring_back() -> None:
            refill()
            if any(compare(self.name, expected, self.thing.state_dict())):  # it is in objects of its own, or in slots
                self.thing.load_state_dict(state)

        return bring_back

    def apply(self, tree: object) -> None:
        self.thing.load_state_dict(tree)


class ContainerState:
    """A dict, list, set, deque or tensor of the user's, restored in place so that every reference to it sees it."""

    kind = "container"
    weights = False

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def read(self) -> object:
        return self.thing

    def fit(self, tree: object, fit: Fit) -> Fitted:
        return whole(tree, self._check(tree), fit)

    def remember(self) -> Callable[[], None]:
        before = self.thing.clone() if isinstance(self.thing, torch.Tensor) else copy.copy(self.thing)
        return lambda: self.apply(before)

    def _check(self, tree: object) -> list[str]:
        thing = self.thing
        if isinstance(tree, torch.Tensor) and isinstance(thing, torch.Tensor):
            if (tree.shape, tree.dtype) != (thing.shape, thing.dtype):
                return [f"{self.name} was stored as {tree.dtype} {tuple(tree.shape)}, it has another dtype or shape"]
        elif type(tree) is not type(thing):
            return [f"{self.name} was stored as {type(tree).__name__} and is {type(self.thing).__name__}"]
        elif isinstance(tree, deque) and isinstance(thing, deque) and tree.maxlen != thing.maxlen:
            return [f"{self.name} was stored with maxlen {tree.maxlen} and has maxlen {thing.maxlen}"]
        return []

    def apply(self, tree: Any) -> None:
        if isinstance(tree, torch.Tensor):
            with torch.no_grad():
                self.thing.copy_(tree)
            return
        self.thing.clear()
        (self.thing.extend if isinstance(tree, list | deque) else self.thing.update)(tree)


class GeneratorState:
    """A random generator that the user made: `random.Random`, `np.random.Generator` or `torch.Generator`."""

    kind = "generator"
    weights = False

    def __init__(self, name: str, thing: random.Random | np.random.Generator | torch.Generator) -> None:
        self.name = name
        self.thing = thing

    def read(self) -> object:
        if isinstance(self.thing, random.Random):
            return {"random": self.thing.getstate()}
        if isinstance(self.thing, np.random.Generator):
            return {"numpy": self.thing.bit_generator.state}
        return {"torch": self.thing.get_state().numpy().tobytes()}

    def fit(self, tree: object, fit: Fit) -> Fitted:
        return whole(tree, self._check(tree), fit)

    def remember(self) -> Callable[[], None]:
        before = copy.deepcopy(self.read())
        return lambda: self.apply(before)

    def _check(self, tree: object) -> list[str]:
        stored, live = _kind(tree), _kind(self.read())
        if stored == live:
            return []
        return [f"{self.name} was stored as a generator of kind {stored} and is of kind {live}"]

    def apply(self, tree: Any) -> None:
        if isinstance(self.thing, random.Random):
            self.thing.setstate(tree["random"])
        elif isinstance(self.thing, np.random.Generator):
            self.thing.bit_generator.state = tree["numpy"]
        else:
            self.thing.set_state(torch.frombuffer(bytearray(tree["torch"]), dtype=torch.uint8))


class ValueState:
    """A plain value of the functional door. It cannot change in place; `value` is what was loaded."""

    kind = "value"
    weights = False

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def read(self) -> object:
        return self.value

    def fit(self, tree: object, fit: Fit) -> Fitted:
        return Fitted(tree=tree)

    def remember(self) -> Callable[[], None]:
        before = self.value
        return lambda: self.apply(before)

    def apply(self, tree: object) -> None:
        self.value = tree


def _with_rates(tree: object, scheduler: object) -> object:
    """A scheduler's stored state with its present learning rates, also within schedulers that are made of others."""
    if not (isinstance(scheduler, LRScheduler) and isinstance(tree, dict)):
        return tree
    tree = {**tree, **{key: getattr(scheduler, key) for key in RATES if key in tree}}
    stored, live = tree.get("_schedulers"), getattr(scheduler, "_schedulers", ())
    if isinstance(stored, list | tuple) and len(stored) == len(live):
        tree["_schedulers"] = type(stored)(_with_rates(one, part) for one, part in zip(stored, live, strict=True))
    return tree


def _kind(tree: object) -> str:
    """Of a generator by its state: the library, and what it calls the algorithm or how many bytes it has."""
    match tree:
        case {"numpy": {"bit_generator": str(name)}}:
            return f"numpy {name}"
        case {"torch": bytes(state)}:
            return f"torch with {len(state)} bytes"
        case {"random": _}:
            return "random"
    return "unknown"


class PerRank:
    """A thing of which every rank has its own: what `mementum.per_rank` makes."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def per_rank(thing: Any) -> PerRank:
    """Mark a thing as each rank's own, so that ranks do not share, or mix up, one copy of it."""
    return PerRank(thing)


def components_in(given: Mapping[str, Any], *, values: bool = False) -> tuple[Component, ...]:
    """The component of each thing; with `values` plain values, which cannot change in place, have one too."""
    things = {name: thing.thing if isinstance(thing, PerRank) else thing for name, thing in given.items()}
    models = {name: thing for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
    cache: dict[int, str] = {}

    def names() -> dict[int, str]:
        if not cache:
            cache.update(parameter_names(models))
        return cache

    return tuple(component_for(name, thing, names, values=values) for name, thing in things.items())


def component_for(name: str, thing: object, names: Callable[[], dict[int, str]], *, values: bool = False) -> Component:
    """The component that fits `thing`. UnsupportedState, with the way out, if nothing does."""
    if isinstance(thing, type):
        raise UnsupportedState(name, thing, why="is a class: give an object of it")
    if isinstance(thing, torch.nn.Module):
        return ModuleState(name, thing)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerState(name, thing, names())
    if isinstance(thing, random.SystemRandom):
        raise UnsupportedState(name, thing, why="has no state: its numbers come from the system")
    if isinstance(thing, random.Random | np.random.Generator | torch.Generator):
        return GeneratorState(name, thing)
    if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
        return StatefulState(name, thing)
    if type(thing) in (dict, list, set, deque, torch.Tensor, torch.nn.Parameter):
        return ContainerState(name, thing)
    if values:
        return ValueState(name, thing)
    raise UnsupportedState(
        name,
        thing,
        why="cannot be restored in place: keep it in `run.values`, or give it state_dict() and load_state_dict()",
    )
