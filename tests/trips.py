"""A save and a resume in fresh objects, and what happened meanwhile, for tests of state that comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import mementum
from mementum.live import tree as trees


class Box:
    """An object whose state dict is what it holds, and nothing else."""

    def __init__(self, **held: Any) -> None:
        self.held: dict[str, Any] = held

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


class Told(list[Any]):
    """A listener that keeps the events."""

    def __call__(self, event: Any) -> None:
        self.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]


def save_now(root: Path, things: Mapping[str, Any], **wishes: Any) -> None:
    with mementum.open_run(root, task="trip", on_error="raise", **things, **wishes) as run:
        run.record()


def resume(root: Path, things: Mapping[str, Any], **wishes: Any) -> None:
    with mementum.open_run(root, task="trip", resume="must", **things, **wishes):
        pass


def there_and_back(
    root: Path, make: Callable[[], dict[str, Any]], change: Callable[[dict[str, Any]], object] = lambda _: None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was saved after `change`, and fresh objects after the resume. `make` gives arguments of open_run."""
    saved = make()
    change(saved)
    save_now(root, saved)
    fresh = make()
    resume(root, fresh)
    return saved, fresh


def bits(tree: object) -> dict[str, object]:
    """Every leaf of a tree by its path; a tensor as dtype, shape and bytes."""
    return {
        path: (str(leaf.dtype), tuple(leaf.shape), trees.as_bytes(leaf).numpy().tobytes())
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for path, leaf in trees.leaves(tree, "")
    }


def files(root: Path) -> list[str]:
    """Names of all files under a root, relative to it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
