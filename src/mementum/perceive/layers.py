"""The norms of layers, each compared with its own median."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

HISTORY = 64  # readings that the medians are of: some batches long, and soon past a change of the learning rate
REFRESH = 16  # readings from one look for the medians to the next: they move slowly, and sorting takes its time
WARM = 16  # readings before there is a median


class Layers:
    """Finds the layer whose norm has grown most. A layer that was not read is NaN; one that was zero has no ratio."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._history: deque[array[float]] = deque(maxlen=HISTORY)
        self._medians = [nan] * len(self.names)
        self._until = WARM  # readings until the medians are looked for

    def largest_ratio(self, norms: Sequence[float]) -> tuple[float, str] | None:
        """The largest ratio of a norm to its layer's median, and the layer's name; None before there are medians.
        The norms, which must not be infinite, are remembered afterwards."""
        ratio, found = -1.0, ""
        for norm, median, name in zip(norms, self._medians, self.names, strict=True):
            if median > 0 and norm > ratio * median:  # nothing is true of a NaN
                ratio, found = norm / median, name
        self._remember(norms)
        return (ratio, found) if ratio >= 0 else None

    def state(self) -> dict[str, Any]:
        """The medians alone: the readings that they are of are many times larger."""
        return {name: median for name, median in zip(self.names, self._medians, strict=True) if median == median}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Take the medians over, until there are enough readings for new ones."""
        self._medians = [float(state.get(name, nan)) for name in self.names]

    def _remember(self, norms: Sequence[float]) -> None:
        self._history.append(array("d", norms))
        self._until -= 1
        if self._until > 0:
            return
        self._until = REFRESH
        for number, column in enumerate(zip(*self._history, strict=True)):
            read = sorted(norm for norm in column if norm == norm)
            if len(read) >= WARM // 2:
                self._medians[number] = read[len(read) // 2]
