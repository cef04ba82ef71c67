"""mementum keeps long PyTorch training runs alive: it saves without stopping them and resumes bit for bit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mementum.doors import open_run as open_run
    from mementum.errors import MementumError as MementumError
    from mementum.run import Run as Run

# Imported when first asked for: the command line starts without torch, numpy and SQLAlchemy.
_LATE = {"open_run": "mementum.doors", "Run": "mementum.run", "MementumError": "mementum.errors"}
_ROOMS = ("data", "errors", "events", "records")

__all__ = ["MementumError", "Run", "data", "errors", "events", "open_run", "records"]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"mementum.{name}")
    raise AttributeError(f"module 'mementum' has no attribute {name!r}")
