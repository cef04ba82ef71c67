"""Every fate of a simulated disk, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mementum.testing.simdisk import PowerCut, SimDisk

T = TypeVar("T")
SURVIVORS_MAX = 20_000  # of one cut: a right protocol leaves a handful, so this many means that too much is pending


class EveryChoice:
    """A `choose` that, over as many rounds as it takes, makes every possible sequence of choices once.

        choose = EveryChoice()
        while True:
            look_at(disk.after_power_cut(choose))
            if not choose.advance():
                break

    It is an odometer: each choice of a round is a digit, and what follows a digit may depend on it.
    """

    def __init__(self) -> None:
        self._digits: list[tuple[int, int]] = []  # which option, of how many
        self._at = 0

    def __call__(self, options: Sequence[T], /) -> T:
        if self._at == len(self._digits):
            self._digits.append((0, len(options)))
        value, bound = self._digits[self._at]
        assert bound == len(options), "the same choices led to another question: what chooses is not deterministic"
        self._at += 1
        return options[value]

    def advance(self) -> bool:
        """Go on to the next sequence; False when every one was made."""
        self._at = 0
        while self._digits:
            value, bound = self._digits.pop()
            if value + 1 < bound:
                self._digits.append((value + 1, bound))
                return True
        return False


def power_cuts(
    workload: Callable[[SimDisk, set[str]], None], *, journaled: bool = False, at_most: int = SURVIVORS_MAX
) -> Iterator[tuple[int, frozenset[str], SimDisk]]:
    """Cut the power before every operation of `workload`, and after its last one; for each cut, every disk that could
    be found: (the operation's number, what was acknowledged by then, the disk).

    The workload starts on an empty disk and adds to its set what it was told is durable. It must do the same each time.
    An AssertionError says that one cut leaves more than `at_most` disks.
    """
    for cut in itertools.count():
        disk, acknowledged = SimDisk(cut_at=cut), set[str]()
        try:
            workload(disk, acknowledged)
            finished = True
        except PowerCut:
            finished = False
        choose = EveryChoice()
        for number in itertools.count(1):
            assert number <= at_most, f"over {at_most} survivors of the cut before operation {cut}: sync sooner"
            yield cut, frozenset(acknowledged), disk.after_power_cut(choose, journaled=journaled)
            if not choose.advance():
                break
        if finished:
            return
