"""Moves: memory that torch is about to give up, or to move, waits until nobody reads it by its address.

A storage moves when it is shared with another process for the first time, or resized. torch then frees the memory that
it had, whoever else knows of it: a copy under way would end the process. So these few methods of storages ask first,
for as long as somebody copies. What only replaces a tensor's storage is harmless: whoever copies holds the old one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

# `share_memory_` and whatever sends a tensor to another process end in one of the first two.
METHODS = ("_share_fd_cpu_", "_share_filename_cpu_", "resize_")
Guard = Callable[[int], AbstractContextManager[object]]  # of the memory at an address, while it is moved

_lock = threading.Lock()  # of the methods themselves, which all copies of the process share


class Asking:
    """What stands in for a method: it enters all guards, and then does what the method did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.original = getattr(torch.UntypedStorage, name)
        self.own = name in vars(torch.UntypedStorage)  # or inherited from torch's C part
        self.guards: tuple[Guard, ...] = ()

    def stand_in(self) -> Callable[..., Any]:
        @functools.wraps(self.original)
        def method(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            if storage.device.type != "cpu" or storage.is_shared():
                return self.original(storage, *args, **kwargs)
            with ExitStack() as guarded:
                for guard in self.guards:
                    guarded.enter_context(guard(storage.data_ptr()))
                return self.original(storage, *args, **kwargs)

        method.__dict__["asking"] = self
        return method


def guard(entered: Guard) -> Callable[[], None]:
    """Have `entered` asked before memory moves; what is returned ends that, and leaves torch as it was."""
    with _lock:
        for name in METHODS:
            asking = _asking(name) or Asking(name)
            if not asking.guards:
                setattr(torch.UntypedStorage, name, asking.stand_in())
            asking.guards = (*asking.guards, entered)
    return lambda: _let_go(entered)


def _asking(name: str) -> Asking | None:
    found: Asking | None = getattr(getattr(torch.UntypedStorage, name), "asking", None)
    return found


def _let_go(entered: Guard) -> None:
    with _lock:
        for name in METHODS:
            asking = _asking(name)
            if asking is None:  # somebody has put a method of their own over it, which may call ours for ever
                continue
            asking.guards = tuple(guard for guard in asking.guards if guard is not entered)
            if asking.guards:
                continue
            if asking.own:
                setattr(torch.UntypedStorage, name, asking.original)
            else:
                delattr(torch.UntypedStorage, name)
