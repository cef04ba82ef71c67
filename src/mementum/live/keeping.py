"""Keeping: what objects hold is kept aside, and put back in place should a load fail half-way."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from mementum.live import tree as trees


def keep(*roots: object, tensors: bool = True) -> Callable[[], None]:
    """A function that gives every container and tensor that `roots` reach its present content again, in place.

    Every object stays the same one, and tensors that did not change are not written. The way goes through containers
    only, not through objects. Without `tensors` only the references to them are kept, which costs no memory."""
    seen: set[int] = set()
    undo: list[Callable[[], None]] = []
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, torch.Tensor):
            if tensors:
                undo.append(_refill(node, node.detach().clone()))
        elif isinstance(node, dict):
            undo.append(_replace(node, node.update, dict(node)))
            waiting += node.values()
        elif isinstance(node, list | deque):
            undo.append(_replace(node, node.extend, list(node)))
            waiting += node
        elif isinstance(node, set):
            undo.append(_replace(node, node.update, set(node)))
        elif isinstance(node, tuple):
            waiting += node

    def bring_back() -> None:
        for step in undo:
            step()

    return bring_back


def copied(tree: object) -> Any:
    """A deep copy, also of tensors that are part of a graph, which torch does not let `deepcopy` copy."""
    memo: dict[int, Any] = {
        id(leaf): leaf.detach().clone() for _, leaf in trees.leaves(tree, "") if isinstance(leaf, torch.Tensor)
    }
    return copy.deepcopy(tree, memo)


def _replace(thing: Any, fill: Callable[[Any], None], content: Iterable[Any]) -> Callable[[], None]:
    def replace() -> None:
        thing.clear()
        fill(content)

    return replace


def _refill(tensor: torch.Tensor, before: torch.Tensor) -> Callable[[], None]:
    def refill() -> None:
        if not trees.same(tensor, before):
            with torch.no_grad():
                tensor.copy_(before)

    return refill
