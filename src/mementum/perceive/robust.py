"""Running statistics that a few wild values cannot move: median, spread, trend."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from itertools import combinations
from math import fsum
from typing import Any

SIGMA_PER_MAD = 1.4826  # of a normal distribution: 1 / (its third quartile)
SIGMA_PER_MEAN_DEVIATION = 1.2533  # of a normal distribution: sqrt(pi / 2)
ROUNDING = 1e-7  # of a value's size: what lies closer together than float32 can tell is the same
BLOCKS = 16  # of a trend's window: enough for slopes between their medians, few enough to compare every pair
BLOCKS_MIN = 3  # before that a line through block medians is a guess


class RunningMedian:
    """Median and spread of the last `window` finite values. O(log n) to ask, one move of memory to add."""

    def __init__(self, window: int) -> None:
        assert window >= 1
        self._window = window
        self._ring = array("d")  # once full, the oldest is at `_oldest`: a state is two slices of it
        self._oldest = 0
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, value: float) -> None:
        """Add a finite value; the oldest goes where the window is full."""
        if len(self._ring) < self._window:
            self._ring.append(value)
        else:
            del self._sorted[bisect_left(self._sorted, self._ring[self._oldest])]
            self._ring[self._oldest] = value
            self._oldest = (self._oldest + 1) % self._window
        insort(self._sorted, value)

    def newest(self, count: int) -> list[float]:
        """The last `count` values, or as many as there are, oldest first."""
        start = self._oldest - count
        if start >= 0:
            return self._ring[start : self._oldest].tolist()
        values = self._ring[: self._oldest]
        earlier = self._ring[max(self._oldest, start + len(self._ring)) :]
        return [*earlier, *values]

    def median(self) -> float:
        """The middle value, or the mean of the two in the middle. 0 where nothing was added."""
        values, half = self._sorted, len(self._sorted) // 2
        if not values:
            return 0.0
        return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2

    def mad(self) -> float:
        """The median of the absolute deviations from the median."""
        count = len(self._sorted)
        if not count:
            return 0.0
        middle, half = self.median(), count // 2
        upper = self._nearest(middle, half + 1)
        return upper if count % 2 else (self._nearest(middle, half) + upper) / 2

    def spread(self, size: float = 0.0) -> float:
        """A standard deviation, by the MAD; by the mean absolute deviation where more than half of the values are
        equal (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993). 0 where all are equal as far as float32
        can tell of values of this size."""
        least = ROUNDING * abs(size)
        spread = SIGMA_PER_MAD * self.mad()
        if spread > least:
            return spread
        middle, count = self.median(), max(1, len(self._sorted))
        spread = SIGMA_PER_MEAN_DEVIATION * sum(abs(value - middle) for value in self._sorted) / count
        return spread if spread > least else 0.0

    def state(self) -> dict[str, Any]:
        return {"values": (self._ring[self._oldest :] + self._ring[: self._oldest]).tobytes()}

    def apply(self, state: Mapping[str, Any]) -> None:
        values = array("d")
        values.frombytes(state["values"])
        self._ring = values[-self._window :]  # the window may have been made smaller since
        self._oldest = 0
        self._sorted = sorted(self._ring)

    def _nearest(self, middle: float, rank: int) -> float:
        """The `rank`-th smallest distance from `middle`. The nearest values lie side by side: their first is sought."""
        values = self._sorted
        low, high = 0, len(values) - rank
        while low < high:
            first = (low + high) // 2
            if middle - values[first] > values[first + rank] - middle:
                low = first + 1
            else:
                high = first
        return max(middle - values[low], values[low + rank - 1] - middle)


class Trend:
    """A line through the last `window` values: medians of blocks, and the median of the slopes between them (Theil and
    Sen). A quarter of the blocks may be wild. Places are counted in values, so that gaps in steps bend nothing."""

    def __init__(self, window: int) -> None:
        self._size = max(1, window // BLOCKS)
        self._block: list[float] = []
        self._medians: deque[tuple[float, float]] = deque(maxlen=BLOCKS)
        self._count = 0
        self._line: tuple[float, float] | None = None

    def add(self, value: float) -> None:
        """Add a finite value. The line is drawn anew where a block is full."""
        self._block.append(value)
        self._count += 1
        if len(self._block) == self._size:
            self._medians.append((self._count - (self._size + 1) / 2, _median(self._block)))
            self._block.clear()
            self._draw()

    @property
    def slope(self) -> float | None:
        """Change from one value to the next; None before there are enough values."""
        return None if self._line is None else self._line[1]

    def predict(self) -> float | None:
        """Where the line lies at the next value; None before there are enough values."""
        return None if self._line is None else self._line[0] + self._line[1] * self._count

    def state(self) -> dict[str, Any]:
        return {
            "count": self._count,
            "block": array("d", self._block).tobytes(),
            "places": array("d", [place for place, _ in self._medians]).tobytes(),
            "medians": array("d", [median for _, median in self._medians]).tobytes(),
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        block, places, medians = array("d"), array("d"), array("d")
        block.frombytes(state["block"])
        places.frombytes(state["places"])
        medians.frombytes(state["medians"])
        self._count = int(state["count"])
        self._block = block.tolist()[: self._size - 1]  # the window may have been made smaller since
        self._medians = deque(zip(places, medians, strict=True), maxlen=BLOCKS)
        self._draw()

    def _draw(self) -> None:
        points = self._medians
        if len(points) < BLOCKS_MIN:
            self._line = None
            return
        slope = _median([(after[1] - point[1]) / (after[0] - point[0]) for point, after in combinations(points, 2)])
        self._line = (_median([value - slope * place for place, value in points]), slope)


def deviation(values: list[float]) -> float | None:
    """The standard deviation of all of `values`, as numpy.std gives it; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = fsum(values) / len(values)
    return float((fsum((value - mean) ** 2 for value in values) / len(values)) ** 0.5)


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
