"""What a file of torch.save holds, sorted into the parts of a checkpoint: state dicts, and where training stood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mementum.assemble import NAME
from mementum.errors import UsageError
from mementum.exchange.trees import (
    UNKNOWN,
    TreeState,
    is_module_state,
    is_optimizer_state,
    module_tree,
    optimizer_tree,
    versions_in,
    why_not_stored,
    without_prefix,
)
from mementum.format.fields import INTEGER_MAX
from mementum.records import record

MODEL = ("model", "state_dict", "model_state_dict", "module", "model_state")  # what programs call the only model
SUFFIX = "_state_dict"
STEP = ("step", "global_step", "steps", "iteration", "iter")
EPOCH = ("epoch",)
WRAPPED = ("_orig_mod.", "module.")  # what torch.compile and DistributedDataParallel put before every name
LIGHTNING = "pytorch-lightning_version"
LIGHTNING_PARTS = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step", LIGHTNING)


@record
class Taken:
    """What a foreign checkpoint gives. `left_out` and `notes` are words for people."""

    what: str
    components: tuple[TreeState, ...]
    step: int | None = None
    epoch: int | None = None
    user: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Sorting:
    """The parts of one foreign checkpoint while they are collected."""

    def __init__(self, what: str, *, optimizer: str | None) -> None:
        self._what = what
        self._optimizer = optimizer
        self._components: dict[str, TreeState] = {}
        self.left_out: list[str] = []
        self.notes: list[str] = []

    def model(self, state: dict[str, Any], *, name: str = "model", prefixes: tuple[str, ...] = WRAPPED) -> None:
        versions = versions_in(state)
        bare = without_prefix(state, prefixes)
        if bare.prefix:
            self.notes.append(f"{name}: every name began with {bare.prefix!r}, which was taken away")
            versions = versions and {key.removeprefix(bare.prefix): version for key, version in versions.items()}
        self._add(TreeState(name, "module", module_tree(bare.state, versions=versions)))

    def optimizer(self, packed: Mapping[str, Any], *, name: str = "optimizer", model: str | None = "model") -> None:
        tree = optimizer_tree(packed, kind=self._optimizer, model=model)
        if tree["class"] == UNKNOWN:
            self.notes.append(
                f"{name}: the file does not tell its class, and nothing loads it so; say it with --optimizer CLASS"
            )
        if any(own.startswith("#") for group in tree["groups"] for own in group["params"]):
            self.notes.append(f"{name}: its parameters have no names in the file and are known by their places")
        self._add(TreeState(name, "optimizer", tree))

    def other(self, name: str, value: object, *, kind: str | None = None) -> None:
        if kind is None:
            kind = "stateful" if isinstance(value, dict) else "container" if _is_container(value) else "value"
        self._add(TreeState(name, kind, value))

    def _add(self, component: TreeState) -> None:
        name = component.name
        if not NAME.fullmatch(name):
            self.left_out.append(f"{name!r}: it can be no component's name")
            return
        if name in self._components:
            self.left_out.append(f"{name}: there are two parts of this name")
            return
        why = why_not_stored(component)
        if why is not None:
            self.left_out.append(f"{name}: {why}")
            return
        self._components[name] = component

    def taken(self, *, step: object = None, epoch: object = None, user: Mapping[str, Any] | None = None) -> Taken:
        """UsageError if there is no model among the parts."""
        if not any(component.kind == "module" for component in self._components.values()):
            why = "".join(f"\n  {line}" for line in self.left_out)
            raise UsageError(
                f"{self._what} has no model: nothing in it maps names to tensors{why}",
                next_command="give a file that has a state dict",
            )
        return Taken(
            what=self._what,
            components=tuple(self._components.values()),
            step=whole_number(step),
            epoch=whole_number(epoch),
            user=dict(user or {}),
            left_out=tuple(self.left_out),
            notes=tuple(self.notes),
        )


def whole_number(value: object) -> int | None:
    """A step or an epoch, if it can be one. Epochs that are under way (1.5) count down."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "numel", lambda: 0)() == 1:
        value = item()
    if isinstance(value, float) and 0 <= value < INTEGER_MAX:
        return int(value)
    return value if type(value) is int and 0 <= value < INTEGER_MAX else None


def sort_torch(content: object, *, optimizer: str | None) -> Taken:
    """The parts of a file's content. UsageError if there is no model in it."""
    if is_module_state(content):
        sorting = Sorting("a state dict of torch", optimizer=optimizer)
        sorting.model(content)
        return sorting.taken()
    if not isinstance(content, Mapping):
        raise UsageError(
            f"the file holds a {type(content).__name__}, no state dict",
            next_command="give a file that has a state dict",
        )
    if LIGHTNING in content:
        return _lightning(content, optimizer=optimizer)
    return _parts(content, optimizer=optimizer)


def _lightning(content: Mapping[Any, Any], *, optimizer: str | None) -> Taken:
    sorting = Sorting("a checkpoint of Lightning", optimizer=optimizer)
    state = content.get("state_dict")
    if is_module_state(state):
        sorting.model(state, prefixes=("model._orig_mod.", "model.", *WRAPPED))
    for role, states in (("optimizer", content.get("optimizer_states")), ("scheduler", content.get("lr_schedulers"))):
        several = states if isinstance(states, list) else []
        for number, one in enumerate(several):
            name = role if len(several) == 1 else f"{role}{number}"
            if role == "scheduler":
                sorting.other(name, one, kind="stateful")
            elif is_optimizer_state(one):
                sorting.optimizer(one, name=name)
            else:
                sorting.left_out.append(f"{name}: it is no state of an optimizer")
    sorting.left_out += [f"{key}: it is Lightning's own" for key in content if key not in LIGHTNING_PARTS]
    return sorting.taken(
        step=content.get("global_step"), epoch=content.get("epoch"), user={"lightning": str(content[LIGHTNING])[:100]}
    )


def _parts(content: Mapping[Any, Any], *, optimizer: str | None) -> Taken:
    sorting = Sorting("a file of torch.save", optimizer=optimizer)
    models = [key for key, value in content.items() if isinstance(key, str) and is_module_state(value)]
    names = {key: "model" if models == [key] and key in MODEL else key.removesuffix(SUFFIX) for key in models}
    owner = names[models[0]] if len(models) == 1 else None  # whose parameters an optimizer's named ones are
    step = next((key for key in STEP if whole_number(content.get(key)) is not None), None)
    epoch = next((key for key in EPOCH if whole_number(content.get(key)) is not None), None)
    for key, value in content.items():
        if not isinstance(key, str):
            sorting.left_out.append(f"{key!r}: its name is no text")
            continue
        name = key.removesuffix(SUFFIX) or key
        if key in models:
            sorting.model(value, name=names[key])
        elif is_optimizer_state(value):
            sorting.optimizer(value, name=name, model=owner)
        elif key not in (step, epoch):
            sorting.other(name, value)
    return sorting.taken(step=content.get(step), epoch=content.get(epoch))


def _is_container(value: object) -> bool:
    return isinstance(value, list | set) or hasattr(value, "untyped_storage")
