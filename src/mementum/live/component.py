"""A component: one named thing that training holds, with its state as a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from mementum.errors import UnsupportedState
from mementum.format import typed_json
from mementum.live import tree as trees
from mementum.live.fitting import Fit, Fitted


class Component(Protocol):
    """`read` gives the live state, `fit` makes of a stored tree one that can be applied, `apply` puts it back."""

    name: str
    kind: str  # module, optimizer, stateful, container, generator, value
    weights: bool  # whether its tensors go into a safetensors file of their own (level 0)

    def read(self) -> object:
        """A tree of the live state. Tensors are not copied."""
        ...

    def fit(self, tree: object, fit: Fit) -> Fitted:
        """The tree to apply, and what of `tree` does not fit, in words. Changes nothing."""
        ...

    def remember(self) -> Callable[[], None] | None:
        """A function that brings the present state back, should a load fail half-way. None where a load of what fits
        cannot fail: such components are loaded last, and no copy of them is made."""
        ...

    def apply(self, tree: object) -> None:
        """Put `tree` back. Called only after every component's fit found no problem."""
        ...


def compare(component: str, expected: object, found: object) -> tuple[list[str], list[str]]:
    """How the state after a load differs from what was to be loaded (with proofs for tensors), in words: what is
    wrong, and what is only there besides, such as a setting that a newer version of a library has added."""
    left, right = dict(trees.leaves(expected, component)), dict(trees.leaves(found, component))
    wrong = [f"{path} is missing after the load" for path in left.keys() - right.keys()]
    besides: list[str] = []
    for path in right.keys() - left.keys():
        # A tensor that was not stored is state that a fresh object would not have; an empty container is nothing.
        told = f"{path} is there after the load and was not stored"
        (wrong if isinstance(right[path], torch.Tensor) else besides).append(told)
    held = {
        path: leaf
        for path, leaf in right.items()
        if path in left and isinstance(leaf, torch.Tensor) and not isinstance(left[path], trees.Given)
    }
    proofs = dict(zip(held, trees.prove_all(list(held.values())), strict=True))
    for path in left.keys() & right.keys():
        before, after = left[path], right[path]
        if _is_number_of(before, after):
            besides.append(f"{path} was stored as a number and is a tensor")
            continue
        if isinstance(after, torch.Tensor):
            equal = before.is_still(after) if isinstance(before, trees.Given) else proofs[path] == before
        else:
            was_tensor = isinstance(before, trees.Proof | trees.Given)
            equal = not was_tensor and _encoded(before, path) == _encoded(after, path)
        if not equal:
            wrong.append(f"{path} came back different")
    return sorted(wrong), sorted(besides)


def _is_number_of(before: object, after: object) -> bool:
    """Whether a number has become a tensor of one element: so did an optimizer's `step` between versions of torch."""
    return (
        type(before) in (int, float)
        and isinstance(after, torch.Tensor)
        and after.dim() == 0
        and bool(after.item() == before)
    )


def _encoded(value: object, path: str) -> object:
    try:
        return typed_json.dumps(value)
    except UnsupportedState:
        return (path, type(value))  # no typed form: it was never stored, so the types are all there is to compare
