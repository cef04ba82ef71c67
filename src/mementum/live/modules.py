"""A model: its state dict, and which of its modules are in eval mode."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

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

    def check(self, tree: object) -> list[str]:
        if not isinstance(tree, dict) or not isinstance(tree.get("state"), dict):
            return [f"{self.name} was not stored as a model"]
        stored: dict[str, object] = tree["state"]
        live = self._live()
        differences = [
            f"{self.name}.{key} was stored and the model has no such entry" for key in stored if key not in live
        ]
        differences += [f"{self.name}.{key} is in the model and was not stored" for key in live if key not in stored]
        for key in stored.keys() & live.keys():
            if key.rpartition(".")[2] == EXTRA_STATE:
                continue  # only the module knows what it takes, and in which shape
            differences += _mismatch(f"{self.name}.{key}", stored[key], live[key])
        return differences

    def apply(self, tree: object) -> None:
        assert isinstance(tree, dict)
        live = self.module.state_dict()
        names = by_canonical(live, of=self.name)
        state = OrderedDict((names[key], value) for key, value in tree["state"].items())
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


def _mismatch(path: str, stored: object, live: object) -> list[str]:
    if isinstance(stored, torch.Tensor) != isinstance(live, torch.Tensor):
        return [f"{path} was stored as {type(stored).__name__} and is {type(live).__name__}"]
    if not (isinstance(stored, torch.Tensor) and isinstance(live, torch.Tensor)):
        return []
    if stored.shape != live.shape:
        return [f"{path} was stored with shape {tuple(stored.shape)} and has shape {tuple(live.shape)}"]
    if stored.dtype != live.dtype:
        return [f"{path} was stored as {stored.dtype} and is {live.dtype}"]
    return []
