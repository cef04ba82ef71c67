"""An optimizer: its state by parameter name, so that the order of construction does not matter.

torch numbers parameters by position, and loads whatever has the right number. And its load casts floating state to
the parameter's dtype, which loses bits of fp32 moments of bf16 parameters: such tensors are put back in place here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mementum.live.fitting import Fit, Fitted, whole
from mementum.live.keeping import keep

LR = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # what `lr_wins` is about
METHODS = ("load_state_dict", "__setstate__", "state_dict", "add_param_group")  # what takes part in a load
HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
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
                (self.name_of(parameter, number, position), parameter)
                for position, parameter in enumerate(group["params"])
            ]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def name_of(self, parameter: torch.Tensor, group: int, position: int) -> str:
        """What a parameter is called; by its place in the optimizer where no registered model has it."""
        return self._names.get(id(parameter), f"#{group}.{position}")

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
        return {"class": self._class(), "state": state, "groups": groups, "other": other, "extra": extra}

    def fit(self, tree: object, fit: Fit) -> Fitted:
        if not (isinstance(tree, dict) and {"class", "state", "groups", "other", "extra"} <= tree.keys()):
            return whole(tree, [f"{self.name} was not stored as an optimizer"], fit)
        now = self._class()
        if tree["class"] != now:
            return whole(tree, [f"{self.name} was stored as {tree['class']} and is {now}"], fit)
        state = {fit.renamed(name): value for name, value in tree["state"].items()}
        if len(state) < len(tree["state"]):
            return whole(tree, [f"{self.name}: rename makes one name of two that were stored"], fit)
        stored = [{**group, "params": sorted(map(fit.renamed, group["params"]))} for group in tree["groups"]]
        live = self._live_groups()
        groups, problems = regroup(self.name, stored, live)
        left_out: list[str] = []
        if fit.partial:
            left_out, problems = problems, []
        if fit.lr_wins == "new":
            groups = [
                {**group, **{key: ours[key] for key in LR if key in ours}}
                for group, ours in zip(groups, live, strict=True)
            ]
        if fit.partial:
            known = {name for group in live for name in group["params"]} - fit.fresh
            left_out += [f"{self.name}: the state of {name} is not loaded" for name in sorted(state.keys() - known)]
            state = {name: value for name, value in state.items() if name in known}
        fitted = {**tree, "state": state, "groups": groups}
        return Fitted(tree=fitted, problems=tuple(problems), left_out=tuple(left_out))

    def _class(self) -> str:
        return type(self.optimizer).__qualname__

    def _live_groups(self) -> list[dict[str, Any]]:
        read = self.read()
        assert isinstance(read, dict)
        groups: list[dict[str, Any]] = read["groups"]
        return groups

    def remember(self) -> Callable[[], None]:
        """torch's own load changes no tensor, it makes new ones: keeping the old ones costs no memory."""
        return keep(vars(self.optimizer), tensors=self._has_code_of_its_own())

    @property
    def takes_as_given(self) -> bool:
        """Whether a load makes the tensors that it is given the live ones, and writes none: torch's own does."""
        return not self._has_code_of_its_own()

    def _has_code_of_its_own(self) -> bool:
        optimizer = self.optimizer
        return any(getattr(optimizer, hooks, None) for hooks in HOOKS) or any(
            not str(getattr(getattr(type(optimizer), name), "__module__", "")).startswith("torch.optim.")
            for name in METHODS
        )

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


def regroup(
    optimizer: str, stored: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The live groups with their stored settings, and what of the grouping does not fit.

    Parameters may have moved between groups, as long as those that are together now had the same settings before.
    A group for which that does not hold, or of which nothing was stored, has its own settings."""
    group_of = {name: number for number, group in enumerate(stored) for name in group["params"]}
    names = {name for group in live for name in group["params"]}
    problems = [f"{optimizer}: {name} was stored and is not in it" for name in sorted(group_of.keys() - names)]
    problems += [f"{optimizer}: {name} is in it and was not stored" for name in sorted(names - group_of.keys())]
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(live):
        origins = sorted({group_of[name] for name in group["params"] if name in group_of})
        if not group["params"] and number < len(stored):
            origins = [number]  # an empty group is known by its number only
        settings = [{key: value for key, value in stored[origin].items() if key != "params"} for origin in origins]
        fitting = settings[0] if settings else group
        for origin, other in zip(origins[1:], settings[1:], strict=True):
            differing = sorted(key for key in other if repr(other[key]) != repr(settings[0].get(key)))
            if differing:
                fitting = group
                problems.append(
                    f"{optimizer}, group {number}: its parameters were in the groups {origins[0]} and {origin}, whose "
                    f"{', '.join(differing)} differ"
                )
        groups.append({**fitting, "params": list(group["params"])})
    return groups, problems
