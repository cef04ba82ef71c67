"""A model: its state dict, and which of its modules are in eval mode."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mementum.live.fitting import Fit, Fitted, whole
from mementum.live.keeping import keep
from mementum.live.names import bare, by_canonical, canonical
from mementum.live.tree import same

EXTRA_STATE = "_extra_state"  # torch's name for what `get_extra_state` of a module gives

# What of a module takes part in a load: where these are torch's own, a load of what fits cannot fail.
METHODS = ("load_state_dict", "_load_from_state_dict", "state_dict", "_save_to_state_dict", "set_extra_state")
HOOKS = (
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
)


class ModuleState:
    """An `nn.Module` under a name. Level 0: its tensors become a standard safetensors file."""

    kind = "module"
    weights = True

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self.module = bare(module)

    def read(self) -> object:
        state = self.module.state_dict()
        return {
            "state": OrderedDict((key, state[name]) for key, name in by_canonical(state, of=self.name).items()),
            "eval": _evaluating(self.module),
            "versions": _versions(state),
        }

    def _live(self) -> dict[str, object]:
        state = self.module.state_dict()
        return {key: state[name] for key, name in by_canonical(state, of=self.name).items()}

    def fit(self, tree: object, fit: Fit) -> Fitted:
        if not isinstance(tree, dict) or not isinstance(tree.get("state"), dict):
            return whole(tree, [f"{self.name} was not stored as a model"], fit)
        # Imports leave out what foreign formats do not tell, the modes of modules for one: it stays as it is.
        tree = {"eval": _evaluating(self.module), "versions": _versions(self.module.state_dict()), **tree}
        stored = OrderedDict((fit.key(self.name, key), value) for key, value in tree["state"].items())
        if len(stored) < len(tree["state"]):
            return Fitted(tree=tree, problems=(f"{self.name}: rename makes one name of two that were stored",))
        live = self._live()
        stored |= _written_once(stored, live)
        wrong = self._misfits(stored, live)
        evaluating, gone = self._modes(tree["eval"], fit)
        left_out = (*sorted(wrong.values()), *(f"{self.name}.{name} was stored and is not in it" for name in gone))
        tree = {**tree, "state": stored, "eval": evaluating, "versions": self._renamed(tree["versions"], fit)}
        if not left_out:
            return Fitted(tree=tree)
        if not fit.partial:
            return Fitted(tree=tree, problems=left_out)
        if not any(key in stored and key not in wrong for key in live):
            return Fitted(tree=tree, problems=(f"{self.name}: nothing of what was stored fits the model",))
        state = OrderedDict((key, value if key in wrong else stored[key]) for key, value in live.items())
        versions = {
            name: tree["versions"].get(name, version) for name, version in _versions(self.module.state_dict()).items()
        }
        return Fitted(
            tree={**tree, "state": state, "versions": versions},
            left_out=left_out,
            fresh=frozenset(f"{self.name}.{key}" for key in wrong),
        )

    def _misfits(self, stored: Mapping[str, object], live: Mapping[str, object]) -> dict[str, str]:
        wrong = {key: f"{self.name}.{key} is in the model and was not stored" for key in live if key not in stored}
        for key in stored:
            told = self._misfit(key, stored[key], live)
            if told is not None:
                wrong[key] = told
        for first, other in _twins(live):
            one, two = stored.get(first), stored.get(other)
            if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)) or one is two:
                continue
            if {first, other} & wrong.keys() or not same(one, two):
                told = f"{self.name}.{first} and {other} are one tensor and were stored with different values"
                wrong[first] = wrong[other] = told
        return wrong

    def _modes(self, stored: list[str], fit: Fit) -> tuple[list[str], list[str]]:
        """The modules to put into eval mode, in the model's own order, and those that are gone."""
        names = [canonical(name) for name, _ in self.module.named_modules()]
        wanted = self._renamed(dict.fromkeys(stored, 1), fit)
        return [name for name in dict.fromkeys(names) if name in wanted], sorted(wanted.keys() - set(names))

    def _renamed(self, by_module: Mapping[str, int], fit: Fit) -> dict[str, int]:
        """By the names of modules: a dot makes prefixes of them, so that rules for prefixes hold for them too."""
        return {fit.key(self.name, f"{name}.")[:-1] if name else "": value for name, value in by_module.items()}

    def _misfit(self, key: str, stored: object, live: Mapping[str, object]) -> str | None:
        if key not in live:
            return f"{self.name}.{key} was stored and the model has no such entry"
        if key.rpartition(".")[2] == EXTRA_STATE:
            return None  # only the module knows what it takes, and in which shape
        return _mismatch(f"{self.name}.{key}", stored, live[key])

    def remember(self) -> Callable[[], None] | None:
        """Copies the model only where code of its own takes part in a load, or where its tensors share memory."""
        if self._has_code_of_its_own() or _share_memory(self._live()):
            return keep(*(vars(module) for module in self.module.modules()))
        return None

    def _has_code_of_its_own(self) -> bool:
        return any(
            any(getattr(module, hooks, None) for hooks in HOOKS)
            or any(
                not str(getattr(getattr(type(module), name), "__module__", "")).startswith("torch.nn.")
                for name in METHODS
            )
            for module in self.module.modules()
        )

    def apply(self, tree: object) -> None:
        assert isinstance(tree, dict)
        live = self.module.state_dict()
        names = by_canonical(live, of=self.name)
        # What the module's own code may keep gets memory of its own: it would hold that of all weights.
        state = OrderedDict(
            (names[key], copy.deepcopy(value) if key.rpartition(".")[2] == EXTRA_STATE else value)
            for key, value in tree["state"].items()
        )
        versions = tree["versions"]
        prefixes = getattr(live, "_metadata", {})
        state._metadata = {  # type: ignore[attr-defined]  # where torch keeps a module's version of its own state
            prefix: {"version": versions.get(canonical(prefix), 1)} for prefix in prefixes
        }
        self.module.load_state_dict(state, strict=True)
        evaluating = set(tree["eval"])
        for name, module in self.module.named_modules():
            module.training = canonical(name) not in evaluating


def _twins(live: Mapping[str, object]) -> list[tuple[str, str]]:
    """Pairs of names of one and the same tensor: the first name, and another."""
    first: dict[tuple[object, ...], str] = {}
    pairs: list[tuple[str, str]] = []
    for key, tensor in live.items():
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            name = first.setdefault(place, key)
            if name != key:
                pairs.append((name, key))
    return pairs


def _share_memory(live: Mapping[str, object]) -> bool:
    """Whether a tensor that is written changes another one, or itself elsewhere. Tied ones are one tensor."""
    twins = {other for _, other in _twins(live)}
    used: set[int] = set()
    for key, tensor in live.items():
        if not isinstance(tensor, torch.Tensor) or key in twins or not tensor.numel():
            continue
        if tensor.layout is not torch.strided:
            return True
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            return True
        storage = tensor.untyped_storage().data_ptr()
        if storage in used:
            return True
        used.add(storage)
    return False


def _written_once(stored: Mapping[str, object], live: Mapping[str, object]) -> dict[str, object]:
    """What was stored, for live names that were not but are tied to one that was: others write such a tensor once."""
    names: dict[str, list[str]] = {}
    for first, other in _twins(live):
        names.setdefault(first, [first]).append(other)
    found: dict[str, object] = {}
    for several in names.values():
        held = [name for name in several if name in stored]
        found |= {name: stored[held[0]] for name in several if held and name not in stored}
    return found


def _evaluating(module: torch.nn.Module) -> list[str]:
    """The modules that are in eval mode."""
    return list(dict.fromkeys(canonical(name) for name, one in module.named_modules() if not one.training))


def _versions(state: Any) -> dict[str, int]:
    """The modules whose state has a version other than torch's usual 1."""
    metadata: dict[str, dict[str, int]] = getattr(state, "_metadata", {})
    return {canonical(prefix): facts["version"] for prefix, facts in metadata.items() if facts.get("version", 1) != 1}


def _mismatch(path: str, stored: object, live: object) -> str | None:
    if isinstance(stored, torch.Tensor) != isinstance(live, torch.Tensor):
        return f"{path} was stored as {type(stored).__name__} and is {type(live).__name__}"
    if not (isinstance(stored, torch.Tensor) and isinstance(live, torch.Tensor)):
        return None
    if stored.shape != live.shape:
        return f"{path} was stored with shape {tuple(stored.shape)} and has shape {tuple(live.shape)}"
    if stored.dtype != live.dtype:
        return f"{path} was stored as {stored.dtype} and is {live.dtype}"
    return None
