"""A model: its state dict, and which of its modules are in eval mode."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mementum.live.fitting import Fit, Fitted, whole
from mementum.live.names import bare, by_canonical, canonical

EXTRA_STATE = "_extra_state"  # torch's name for what `get_extra_state` of a module gives


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
            "eval": list(
                dict.fromkeys(canonical(name) for name, module in self.module.named_modules() if not module.training)
            ),
            "versions": _versions(state),
        }

    def _live(self) -> dict[str, object]:
        state = self.module.state_dict()
        return {key: state[name] for key, name in by_canonical(state, of=self.name).items()}

    def fit(self, tree: object, fit: Fit) -> Fitted:
        if not isinstance(tree, dict) or not isinstance(tree.get("state"), dict):
            return whole(tree, [f"{self.name} was not stored as a model"], fit)
        stored = {fit.key(self.name, key): value for key, value in tree["state"].items()}
        live = self._live()
        wrong = {key: f"{self.name}.{key} is in the model and was not stored" for key in live if key not in stored}
        for key in stored:
            told = self._misfit(key, stored[key], live)
            if told is not None:
                wrong[key] = told
        if not wrong:
            return Fitted(tree={**tree, "state": stored})
        if not fit.partial:
            return Fitted(tree=tree, problems=tuple(sorted(wrong.values())))
        if not any(key in stored and key not in wrong for key in live):
            return Fitted(tree=tree, problems=(f"{self.name}: nothing of what was stored fits the model",))
        state = {key: value if key in wrong else stored[key] for key, value in live.items()}
        return Fitted(
            tree={**tree, "state": state},
            left_out=tuple(sorted(wrong.values())),
            fresh=frozenset(f"{self.name}.{key}" for key in wrong),
        )

    def _misfit(self, key: str, stored: object, live: Mapping[str, object]) -> str | None:
        if key not in live:
            return f"{self.name}.{key} was stored and the model has no such entry"
        if key.rpartition(".")[2] == EXTRA_STATE:
            return None  # only the module knows what it takes, and in which shape
        return _mismatch(f"{self.name}.{key}", stored, live[key])

    def remember(self) -> Callable[[], None]:
        """Copies the model only where its own code takes part in a load and may refuse half-way."""
        modes = [(module, module.training) for module in self.module.modules()]
        state = copy.deepcopy(self.module.state_dict()) if self._has_code_of_its_own() else None

        def bring_back() -> None:
            if state is not None:
                self.module.load_state_dict(state)
            for module, training in modes:
                module.training = training

        return bring_back

    def _has_code_of_its_own(self) -> bool:
        keys = self.module.state_dict()
        return any(key.rpartition(".")[2] == EXTRA_STATE for key in keys) or any(
            module._load_state_dict_pre_hooks
            or module._load_state_dict_post_hooks
            or not type(module)._load_from_state_dict.__module__.startswith("torch.")
            for module in self.module.modules()
        )

    def apply(self, tree: object) -> None:
        assert isinstance(tree, dict)
        live = self.module.state_dict()
        names = by_canonical(live, of=self.name)
        # What the module's own code may keep must not be a view of a file.
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
