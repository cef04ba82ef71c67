"""A component: one named thing that training holds, with its state as a tree."""

from __future__ import annotations

from typing import Protocol

import torch

from mementum.errors import UnsupportedState
from mementum.format import typed_json
from mementum.live import tree as trees


class Component(Protocol):
    """`read` gives the live state, `check` compares a stored tree with it, `apply` puts a stored tree back."""

    name: str
    kind: str  # module, optimizer, stateful, container, generator
    weights: bool  # whether its tensors go into a safetensors file of their own (level 0)

    def read(self) -> object:
        """A tree of the live state. Tensors are not copied."""
        ...

    def check(self, tree: object) -> list[str]:
        """What of `tree` does not fit, in words; empty if it can be applied. Changes nothing."""
        ...

    def apply(self, tree: object) -> None:
        """Put `tree` back. Called only after every component's check found nothing."""
        ...


def compare(component: str, expected: object, found: object) -> list[str]:
    """How the state after a load differs from what was stored, in words; bit for bit on tensors."""
    left, right = dict(trees.leaves(expected, component)), dict(trees.leaves(found, component))
    differences = [f"{path} is missing after the load" for path in left.keys() - right.keys()]
    differences += [f"{path} is there after the load and was not stored" for path in right.keys() - left.keys()]
    for path in left.keys() & right.keys():
        a, b = left[path], right[path]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            equal = trees.same(a, b)
        elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            equal = False
        else:
            equal = _encoded(a, path) == _encoded(b, path)
        if not equal:
            differences.append(f"{path} came back different")
    return sorted(differences)


def _encoded(value: object, path: str) -> object:
    try:
        return typed_json.dumps(value)
    except UnsupportedState:
        return (path, type(value))  # no typed form: it was never stored, so the types are all there is to compare
