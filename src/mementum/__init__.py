"""mementum keeps long PyTorch training runs alive: it saves without stopping them and resumes bit for bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mementum.branching import cancel_rollback as cancel_rollback
    from mementum.branching import rollback as rollback
    from mementum.doors import open_run as open_run
    from mementum.errors import MementumError as MementumError
    from mementum.functional import async_save as async_save
    from mementum.functional import load as load
    from mementum.functional import save as save
    from mementum.live.rng import GlobalGenerators as GlobalGenerators
    from mementum.live.stateful import per_rank as per_rank
    from mementum.run import Run as Run

# Imported when first asked for: the command line starts without torch, numpy and SQLAlchemy.
_LATE = {
    "GlobalGenerators": "mementum.live.rng",
    "MementumError": "mementum.errors",
    "Run": "mementum.run",
    "async_save": "mementum.functional",
    "cancel_rollback": "mementum.branching",
    "load": "mementum.functional",
    "open_run": "mementum.doors",
    "per_rank": "mementum.live.stateful",
    "rollback": "mementum.branching",
    "save": "mementum.functional",
}
_ROOMS = ("data", "errors", "events", "records")

__all__ = [
    "GlobalGenerators",
    "MementumError",
    "Run",
    "async_save",
    "cancel_rollback",
    "data",
    "errors",
    "events",
    "load",
    "open_run",
    "per_rank",
    "records",
    "rollback",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"mementum.{name}")
    raise AttributeError(f"module 'mementum' has no attribute {name!r}")
