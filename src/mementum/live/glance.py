"""A glance: sees in a fraction of a millisecond whether a component still has the tensors that it had, and where.

Reading a model and its optimizer anew takes 20 ms at 1,000 parameters, and names, shapes and places change almost
never. So they are read once, and a glance says whether that reading still holds.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from mementum.live.component import Component
from mementum.live.modules import HOOKS, METHODS, ModuleState
from mementum.live.optimizers import DERIVED, OptimizerState
from mementum.records import record

PLAIN = (type(None), bool, int, float, str)  # values that cannot change where they stand
TENSORS = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
READS = tuple(name for name in METHODS if "load" not in name)
OWN_READS = frozenset((*READS, "get_extra_state"))
CLASSES_MAX = 4096  # a class is looked at once: more kinds of modules than this no model has
READ_HOOKS = tuple(name for name in HOOKS if "load" not in name)
OPTIMIZER_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")


@record
class Glance:
    """The live tensors, in an order that holds as long as `shape` stays equal; `plain` is what else can change."""

    tensors: tuple[torch.Tensor, ...]
    shape: tuple[object, ...]
    plain: Any


def glance(component: Component) -> Glance | None:
    """None where only a full reading tells: code of somebody else's takes part in it, or it is of another kind."""
    if isinstance(component, ModuleState):
        return _of_module(component.module)
    if isinstance(component, OptimizerState):
        return _of_optimizer(component)
    return None


def retold(component: Component, tree: Any, seen: Glance) -> Any:
    """The tree of an earlier reading, with the plain values of now. `tree` itself is not changed."""
    if not isinstance(component, OptimizerState):
        return tree
    groups, state = seen.plain
    told = [{**group, "params": before["params"]} for group, before in zip(groups, tree["groups"], strict=True)]
    if not state:
        return {**tree, "groups": told}
    changed = {name: {**tree["state"][name], **values} for name, values in state.items()}
    return {**tree, "groups": told, "state": {**tree["state"], **changed}}


def _of_module(root: torch.nn.Module) -> Glance | None:
    tensors: list[torch.Tensor] = []
    shape: list[object] = []
    waiting = [root]
    while waiting:
        module = waiting.pop()
        held = module.__dict__
        kind: Any = type(module)
        if not _is_read_by_torch(kind) or has_own_reading(held) or any(map(held.get, READ_HOOKS)):
            return None
        parameters, buffers, children = held["_parameters"], held["_buffers"], held["_modules"]
        passing = held["_non_persistent_buffers_set"]
        shape.append((id(module), module.training, *parameters, None, *buffers, None, *children, None, *passing))
        shape.append([one is None for one in (*parameters.values(), *buffers.values())])
        tensors.extend(tensor for tensor in parameters.values() if tensor is not None)
        tensors.extend(tensor for name, tensor in buffers.items() if tensor is not None and name not in passing)
        waiting.extend(child for child in children.values() if child is not None)
    facts = _facts(tensors)
    return None if facts is None else Glance(tensors=tuple(tensors), shape=(*shape, *facts), plain=None)


def has_own_reading(held: Mapping[str, Any]) -> bool:
    """Whether an instance has methods of its own, in its `__dict__`, that say what its state is."""
    return not OWN_READS.isdisjoint(held)


@functools.lru_cache(maxsize=CLASSES_MAX)
def _is_read_by_torch(kind: Any) -> bool:
    """Whether a module's state is what torch itself makes of its parameters and buffers."""
    return (
        all(str(getattr(getattr(kind, name), "__module__", "")).startswith("torch.nn.") for name in READS)
        and kind.get_extra_state is torch.nn.Module.get_extra_state
    )


def _of_optimizer(component: OptimizerState) -> Glance | None:
    optimizer: Any = component.optimizer
    if getattr(type(optimizer), "state_dict", None) is not torch.optim.Optimizer.state_dict:
        return None
    if any(getattr(optimizer, hooks, None) for hooks in OPTIMIZER_HOOKS):
        return None
    tensors: list[torch.Tensor] = []
    shape: list[object] = []
    groups: list[dict[str, Any]] = []
    plain: dict[str, dict[str, Any]] = {}
    seen = 0
    for number, group in enumerate(optimizer.param_groups):
        hyper = {key: value for key, value in group.items() if key not in DERIVED}
        if not all(is_plain(value) for value in hyper.values()):
            return None
        groups.append(hyper)
        shape.append((*hyper, *map(id, group["params"])))
        shape.append([parameter.requires_grad for parameter in group["params"]])
        for position, parameter in enumerate(group["params"]):
            held = optimizer.state.get(parameter)
            if held is None:
                shape.append(None)
                continue
            values: dict[str, Any] = {}
            for key, value in held.items():
                if isinstance(value, torch.Tensor):
                    tensors.append(value)
                elif is_plain(value):
                    values[key] = value
                else:
                    return None
            shape.append((*held, None, *values))
            if values:
                plain[component.name_of(parameter, number, position)] = values
            seen += 1
    if seen != len(optimizer.state):  # state of no parameter
        return None
    facts = _facts(tensors)
    return None if facts is None else Glance(tensors=tuple(tensors), shape=(*shape, *facts), plain=(groups, plain))


def is_plain(value: object) -> bool:
    """Whether a value, and all that is in it, cannot change where it stands."""
    return isinstance(value, PLAIN) or (type(value) is tuple and all(isinstance(item, PLAIN) for item in value))


def _facts(tensors: list[torch.Tensor]) -> list[object] | None:
    """Where each lies and how: with these equal, the same bytes are at the same addresses. None for tensors that are
    more than their bytes."""
    if not set(map(type, tensors)) <= TENSORS:
        return None
    try:
        facts: list[object] = [(one.data_ptr(), one.dtype, one.shape, one.stride()) for one in tensors]
    except RuntimeError:  # sparse and nested ones have no place, or no strides
        return None
    dtypes = {one.dtype for one in tensors}
    return None if any(one.is_complex or one in QUANTISED for one in dtypes) else facts
