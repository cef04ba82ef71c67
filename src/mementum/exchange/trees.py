"""Trees of state between formats: the plain state dicts of torch to what a checkpoint holds, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from mementum.errors import UnsupportedState
from mementum.format import typed_json
from mementum.live.fitting import Fit, Fitted
from mementum.live.modules import EXTRA_STATE
from mementum.live.names import canonical
from mementum.live.optimizers import DERIVED
from mementum.live.tree import leaves, split
from mementum.records import record

UNKNOWN = "unknown"  # the class of an optimizer that its state dict does not tell

# What tells an optimizer by the settings of its groups: those that it has had in every version of torch 2.
SETTINGS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"lr", "betas", "eps", "weight_decay", "amsgrad"}), "Adam"),
    (frozenset({"lr", "momentum", "dampening", "weight_decay", "nesterov"}), "SGD"),
    (frozenset({"lr", "alpha", "eps", "weight_decay", "momentum", "centered"}), "RMSprop"),
    (frozenset({"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"}), "Adagrad"),
)
DECOUPLED = "decoupled_weight_decay"  # newer versions of torch tell AdamW from Adam by it
# Settings that came with some version, or that a scheduler adds.
BESIDES = frozenset({DECOUPLED, "maximize", "foreach", "capturable", "differentiable", "fused"})
BESIDES |= frozenset({"initial_lr", "max_lr", "min_lr", "swa_lr", "max_momentum", "base_momentum"})


class TreeState:
    """A component that is a tree already. It can only be read: nothing live stands behind it."""

    def __init__(self, name: str, kind: str, tree: object) -> None:
        self.name = name
        self.kind = kind
        self.weights = kind == "module"
        self._tree = tree

    def read(self) -> object:
        return self._tree

    def fit(self, tree: object, fit: Fit) -> Fitted:
        raise AssertionError(f"{self.name} is read only")

    def remember(self) -> Callable[[], None]:
        raise AssertionError(f"{self.name} is read only")

    def apply(self, tree: object) -> None:
        raise AssertionError(f"{self.name} is read only")


def is_module_state(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether it is what `nn.Module.state_dict()` gives: names to tensors, and extra state by its own name."""
    return (
        isinstance(value, dict)
        and any(isinstance(one, torch.Tensor) for one in value.values())
        and all(
            isinstance(key, str) and (isinstance(one, torch.Tensor) or key.rpartition(".")[2] == EXTRA_STATE)
            for key, one in value.items()
        )
    )


def is_optimizer_state(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether it is what `Optimizer.state_dict()` gives."""
    if not (isinstance(value, dict) and isinstance(value.get("state"), dict)):
        return False
    groups = value.get("param_groups")
    return isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    )


@record
class Prefixed:
    """A state dict without the part that all of its names began with."""

    state: dict[str, Any]
    prefix: str


def without_prefix(state: dict[str, Any], prefixes: Sequence[str]) -> Prefixed:
    """The first of `prefixes` that every name begins with is what a wrapper has put there, and is taken away."""
    for prefix in prefixes:
        if all(key.startswith(prefix) and key != prefix for key in state):
            return Prefixed(state={key.removeprefix(prefix): value for key, value in state.items()}, prefix=prefix)
    return Prefixed(state=state, prefix="")


def module_tree(state: Mapping[str, Any], *, versions: Mapping[str, int] | None = None) -> dict[str, Any]:
    """As a model's component reads it, without what the foreign format does not tell: which modules are in eval mode,
    and, where `versions` is None, the versions of their states."""
    named = OrderedDict((canonical(key), value) for key, value in state.items())
    return {"state": named} if versions is None else {"state": named, "versions": dict(versions)}


def versions_in(state: object) -> dict[str, int] | None:
    """The versions of modules that torch keeps beside a state dict, those other than the usual 1. None without any."""
    metadata = getattr(state, "_metadata", None)
    if not isinstance(metadata, dict):
        return None
    found: dict[str, int] = {}
    for prefix, facts in metadata.items():
        version = facts.get("version") if isinstance(facts, dict) else None
        if isinstance(prefix, str) and type(version) is int and version != 1:
            found[canonical(prefix)] = version
    return found


def module_state(tree: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """The state dict that torch would give, with the versions where torch keeps them."""
    state = OrderedDict(tree["state"])
    if tree.get("versions"):
        metadata = {prefix: {"version": version} for prefix, version in tree["versions"].items()}
        state._metadata = metadata  # type: ignore[attr-defined]
    return state


def optimizer_tree(packed: Mapping[str, Any], *, kind: str | None, model: str | None) -> dict[str, Any]:
    """As an optimizer's component reads it. Parameters are named where the state dict names them (`param_names`, and
    `model` is whose they are); else they are called by their places, `#group.index`."""
    name_of: dict[object, str] = {}
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(packed["param_groups"]):
        named = group.get("param_names") if model is not None else None
        known = isinstance(named, list) and len(named) == len(group["params"])
        names = [f"{model}.{name}" if known else "" for name in named or ()] if known else []
        names = names or [f"#{number}.{position}" for position in range(len(group["params"]))]
        name_of.update(zip(group["params"], names, strict=True))
        settings = {key: value for key, value in group.items() if key not in DERIVED}
        groups.append({**settings, "params": sorted(names)})
    state = {name_of[key]: value for key, value in packed["state"].items() if key in name_of}
    other = {key: value for key, value in packed["state"].items() if key not in name_of}
    extra = {key: value for key, value in packed.items() if key not in ("state", "param_groups")}
    return {"class": kind or optimizer_class(groups), "state": state, "groups": groups, "other": other, "extra": extra}


def optimizer_class(groups: Sequence[Mapping[str, Any]]) -> str:
    """The class whose settings the groups have, or UNKNOWN: a state dict does not say whose it is."""
    if not groups:
        return UNKNOWN
    settings = frozenset(groups[0]) - {"params"}
    for own, name in SETTINGS:
        if settings - BESIDES == own:
            if name != "Adam":
                return name
            decoupled = groups[0].get(DECOUPLED)
            return UNKNOWN if decoupled is None else "AdamW" if decoupled else "Adam"
    return UNKNOWN


@record
class Positional:
    """An optimizer's state dict as torch numbers it: `order` has the names of each group by position. `doubt` says
    why the program's own order may be another."""

    packed: dict[str, Any]
    order: tuple[tuple[str, ...], ...]
    doubt: str | None


def optimizer_state(tree: Mapping[str, Any], names: Sequence[str]) -> Positional:
    """The state dict that torch would give. A group is stored as a set: its order is that of `names` (all parameters,
    as models give them), which is what programs hand to an optimizer."""
    place = {name: number for number, name in enumerate(names)}
    order = tuple(_ordered(group["params"], place) for group in tree["groups"])
    numbers = {name: number for number, name in enumerate(name for group in order for name in group)}
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": [numbers[name] for name in own]}
        for group, own in zip(tree["groups"], order, strict=True)
    ]
    stated = [numbers[name] for name in tree["state"] if name in numbers]
    doubt = None
    if stated != sorted(stated):
        doubt = "its state came in another order than its model's parameters have: compare `order` in context.json"
    state = {numbers[name]: value for name, value in tree["state"].items() if name in numbers}
    packed = {**tree["extra"], "state": dict(sorted(state.items())) | tree["other"], "param_groups": groups}
    return Positional(packed=packed, order=order, doubt=doubt)


def named_state(tree: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any]:
    """The state dict by names, as torch.distributed.checkpoint has it: those of one model stand without its name."""
    prefix = f"{models[0]}." if len(models) == 1 else ""
    groups = [{**group, "params": [name.removeprefix(prefix) for name in group["params"]]} for group in tree["groups"]]
    state = {name.removeprefix(prefix): value for name, value in tree["state"].items()}
    return {**tree["extra"], "state": {**state, **tree["other"]}, "param_groups": groups}


def _ordered(names: Sequence[str], place: Mapping[str, int]) -> tuple[str, ...]:
    """Nameless parameters (`#group.index`) keep their index; the others fill the gaps in their models' order."""
    fixed = {int(name.rpartition(".")[2]): name for name in names if name.startswith("#")}
    known = iter(
        sorted(
            (name for name in names if not name.startswith("#")), key=lambda name: (place.get(name, len(place)), name)
        )
    )
    return tuple(fixed[number] if number in fixed else next(known) for number in range(len(names)))


def why_not_stored(component: TreeState) -> str | None:
    """Why a checkpoint cannot hold a component, or None if it can."""
    try:
        skeleton, _ = split(component.read(), component=component.name)
        typed_json.dumps(skeleton)
    except UnsupportedState as error:
        return error.message
    return None


PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def why_not_plain(name: str, tree: object) -> str | None:
    """Why other programs could not read a tree of state: a leaf that is neither a dense tensor nor a plain value."""
    for path, leaf in leaves(tree, name):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.is_quantized:
                return f"{path} is not a dense tensor"
        elif type(leaf) not in PLAIN and not (type(leaf) in (dict, OrderedDict, list, tuple) and not leaf):
            return f"{path} is a {type(leaf).__module__}.{type(leaf).__qualname__}"
    return None
