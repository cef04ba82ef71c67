"""Names: what a parameter is called, whatever its model is wrapped in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from mementum.errors import UsageError

COMPILED = "_orig_mod"  # torch.compile puts the module that it wraps under this name
WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of what torch.compile, DataParallel and DistributedDataParallel have made of it."""
    while True:
        if isinstance(module, WRAPPERS):
            module = module.module
        elif isinstance(getattr(module, COMPILED, None), torch.nn.Module):
            module = getattr(module, COMPILED)
        else:
            return module


def canonical(name: str) -> str:
    """The name without the parts that torch.compile adds, so that compiled and plain models are one."""
    if COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != COMPILED)


def by_canonical(names: Iterable[str], *, of: str) -> dict[str, str]:
    """Canonical names to the names as they are. UsageError if two fall together."""
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(canonical(name), name)
        if other != name:
            raise UsageError(f"{of}: {name!r} and {other!r} are one name but for what torch.compile adds")
    return found


def parameter_names(models: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """id(parameter) to its name, with the name of its model before it: `model.layers.0.weight`."""
    names: dict[int, str] = {}
    for model_name, model in models.items():
        for name, parameter in bare(model).named_parameters(remove_duplicate=True):
            names.setdefault(id(parameter), f"{model_name}.{canonical(name)}")
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise UsageError(
            f"two parameters would be called {twice[0]!r}: a model's name and a parameter's, joined, are ambiguous",
            next_command="give the models names without dots",
        )
    return names
