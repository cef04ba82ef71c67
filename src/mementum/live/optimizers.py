"""An optimizer: its state by parameter name, so that the order of construction does not matter.

torch numbers parameters by position, and loads whatever has the right number. And its load casts floating state to
the parameter's dtype, which loses bits of fp32 moments of bf16 parameters: such tensors are put back in place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

DERIVED = frozenset({"params", "param_names"})  # of a group; made again from the live optimizer


class OptimizerState:
    """A `torch.optim.Optimizer` (or what quacks like one) under a name; `names` maps id(parameter) to a name."""

    kind = "optimizer"
    weights = False

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        self.name = name
        self.optimizer = optimizer
        self._names = names

    @property
    def nameless(self) -> list[str]:
        """Parameters that belong to no registered model and are known by position only."""
        return [name for group in self._groups() for name, _ in group if name.startswith("#")]

    def _groups(self) -> list[list[tuple[str, torch.Tensor]]]:
        return [
            [
                (self._names.get(id(parameter), f"#{number}.{position}"), parameter)
                for position, parameter in enumerate(group["params"])
            ]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def read(self) -> object:
        packed = self.optimizer.state_dict()
        name_of: dict[object, str] = {}
        groups: list[dict[str, Any]] = []
        for packed_group, named in zip(packed["param_groups"], self._groups(), strict=True):
            for number, (name, _) in zip(packed_group["params"], named, strict=True):
                name_of[number] = name
            hyper = {key: value for key, value in packed_group.items() if key not in DERIVED}
            groups.append({**hyper, "params": sorted(name for name, _ in named)})  # a group is a set of names
        state, other = {}, {}
        for key, value in packed["state"].items():
            if key in name_of:
                state[name_of[key]] = value
            else:
                other[key] = value
        extra = {key: value for key, value in packed.items() if key not in ("state", "param_groups")}
        return {"state": state, "groups": groups, "other": other, "extra": extra}

    def check(self, tree: object) -> list[str]:
        if not (isinstance(tree, dict) and {"state", "groups", "other", "extra"} <= tree.keys()):
            return [f"{self.name} was not stored as an optimizer"]
        stored, live = tree["groups"], self._groups()
        if len(stored) != len(live):
            return [f"{self.name} was stored with {len(stored)} parameter groups and has {len(live)}"]
        differences: list[str] = []
        for number, (group, named) in enumerate(zip(stored, live, strict=True)):
            before, now = set(group["params"]), {name for name, _ in named}
            where = f"{self.name}, group {number}"
            differences += [f"{where}: {name} was stored and is not in it" for name in sorted(before - now)]
            differences += [f"{where}: {name} is in it and was not stored" for name in sorted(now - before)]
        return differences

    def apply(self, tree: object) -> None:
        assert isinstance(tree, dict)
        packed, live = self.optimizer.state_dict(), self._groups()
        number_of: dict[str, object] = {}
        groups: list[dict[str, Any]] = []
        for stored_group, packed_group, named in zip(tree["groups"], packed["param_groups"], live, strict=True):
            for number, (name, _) in zip(packed_group["params"], named, strict=True):
                number_of[name] = number
            derived = {key: packed_group[key] for key in DERIVED if key in packed_group}
            groups.append({**stored_group, **derived})
        state = {number_of[name]: value for name, value in tree["state"].items() if name in number_of}
        self.optimizer.load_state_dict({**tree["extra"], "state": {**state, **tree["other"]}, "param_groups": groups})
        parameters = {name: parameter for group in live for name, parameter in group}
        for name, value in tree["state"].items():
            if name in parameters and isinstance(value, dict):
                loaded = self.optimizer.state[parameters[name]]
                for key in value.keys() & loaded.keys():
                    loaded[key] = _uncast(loaded[key], value[key])


def _uncast(loaded: object, stored: object) -> object:
    """What an optimizer's load has made of a value, with what it took away put back: torch casts tensors to the
    parameter's dtype at any depth, and makes any iterable anew, which turns a word into the name of a generator."""
    if isinstance(stored, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == stored.dtype else stored.to(loaded.device)
    if isinstance(stored, dict) and isinstance(loaded, dict) and stored.keys() == loaded.keys():
        for key in stored:
            loaded[key] = _uncast(loaded[key], stored[key])
        return loaded
    if type(stored) is list or type(stored) is tuple:
        assert isinstance(stored, list | tuple)
        if type(loaded) is type(stored) and isinstance(loaded, list | tuple) and len(loaded) == len(stored):
            return type(stored)(_uncast(now, before) for now, before in zip(loaded, stored, strict=True))
    return stored if isinstance(stored, str | bytes) else loaded
