"""Spans: how long our own functions take inside a program that runs on, by wrapping them while it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch


class Spans:
    """Seconds by name and step. Of functions in one group that call each other only the outermost counts."""

    def __init__(self) -> None:
        self.wall_s: dict[str, list[float]] = {}
        self.cpu_s: dict[str, list[float]] = {}
        self._inside: set[str] = set()
        self._now: dict[str, list[float]] = {}

    def end_step(self) -> None:
        """What was measured since the last call belongs to one step."""
        for name, (wall_s, cpu_s) in self._now.items():
            self.wall_s.setdefault(name, []).append(wall_s)
            self.cpu_s.setdefault(name, []).append(cpu_s)
        self._now = {name: [0.0, 0.0] for name in self._now}

    def forget(self) -> None:
        """What was measured so far was warming up."""
        self.wall_s, self.cpu_s = {}, {}
        self._now = {name: [0.0, 0.0] for name in self._now}

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, measured."""
        self._now[name] = [0.0, 0.0]

        @wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if name in self._inside:
                return work(*args, **kwargs)
            self._inside.add(name)
            cpu_s, wall_s = time.thread_time(), time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                spent = self._now[name]
                spent[0] += time.perf_counter() - wall_s
                spent[1] += time.thread_time() - cpu_s
                self._inside.discard(name)

        return timed

    @contextmanager
    def over(self, groups: dict[str, tuple[tuple[object, str], ...]]) -> Iterator[None]:
        """Measure these methods of classes, or functions of modules; put them back afterwards."""
        with ExitStack() as stack:
            for name, methods in groups.items():
                for owner, method in methods:
                    stack.enter_context(patch.object(owner, method, self.timed(name, getattr(owner, method))))
            yield
