"""What compressing a checkpoint later takes from the training: steps with it and without it in turn, within one run.

A whole compression lasts for minutes on busy cores, where it gets only what the training leaves idle. Over so long a
time the machine itself drifts by more than what is looked for, so the work is let go on and held back every few steps,
and neighbours are compared; after enough of them the rest is reckoned by the part of the blocks that were done.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from _measure import Processor
from _model import Training
from _savers import Ours, wait_until_idle

from mementum.records import record

TURN = 3  # steps with or without it
STEPS_MAX = 240  # beside which one compression is watched: about three minutes


@record
class Settling:
    """One save under compression. `lost_s` is what its steps took above the median of those beside it, and `share` the
    part of its blocks that were done in them."""

    lost_s: float
    cpu_s: float
    share: float
    beside_s: float  # seconds of training beside which it worked
    step_s: float
    with_it: tuple[float, ...]
    without: tuple[float, ...]


class Gate:
    """Stands where the compression asks between blocks whether to stop, and holds it there while it is closed."""

    def __init__(self, saver: Ours) -> None:
        self._settler = saver.run._background._compressing._settler
        self._ask = self._settler._pause
        self.opened = threading.Event()
        self.opened.set()
        self.asked = 0  # once for every block
        self._settler._pause = self._asked  # type: ignore[method-assign]

    def _asked(self) -> str | None:
        self.asked += 1
        self.opened.wait()
        return self._ask()

    def idle(self) -> bool:
        """Whether nothing is being compressed, or waits to be."""
        return self._settler.drain(0)

    def remove(self) -> None:
        self.opened.set()
        self._settler._pause = self._ask  # type: ignore[method-assign]


def settle_in_turns(
    training: Training, saver: Ours, *, rounds: int, processor: Processor, advance: Callable[[], None]
) -> list[Settling]:
    """One save a round, compressed in turns, after one that is compressed while the training waits."""
    gate = Gate(saver)
    try:
        saver.save()
        wait_until_idle(saver)
        if not saver.settles():
            return []
        blocks = gate.asked
        done: list[Settling] = []
        for _ in range(rounds):
            gate.opened.clear()
            saver.save()
            wait_until_idle(saver)
            done.append(_one(training, saver, gate, processor, blocks=blocks))
            gate.opened.set()
            if not saver.settles():
                raise TimeoutError("a compression did not end when the training waited for it")
            advance()
        return done
    finally:
        gate.remove()


def _one(training: Training, saver: Ours, gate: Gate, processor: Processor, *, blocks: int) -> Settling:
    steps: dict[bool, list[float]] = {True: [], False: []}
    lost_s = cpu_s = 0.0
    before: list[float] = []
    counted = 0
    asked = gate.asked
    while not gate.idle() and len(steps[True]) < STEPS_MAX:
        for kind in (False, True, True, False):
            gate.opened.set() if kind else gate.opened.clear()
            used = processor.read()
            turn: list[float] = []
            while len(turn) < TURN and not (kind and gate.idle()):
                began_s = time.perf_counter()
                saver.after_step(training.step())
                turn.append(time.perf_counter() - began_s)
            steps[kind] += turn
            if kind:
                spent = processor.read().since(used)
                cpu_s += max(0.0, spent.all_s - spent.trainers_s)
        neighbours = [*before, *steps[False][-2 * TURN :]]
        before = steps[False][-TURN:]
        fresh = steps[True][counted:]
        counted = len(steps[True])
        lost_s += sum(fresh) - len(fresh) * statistics.median(neighbours)
    return Settling(
        lost_s=lost_s,
        cpu_s=cpu_s,
        share=(gate.asked - asked) / blocks,
        beside_s=sum(steps[True]),
        step_s=statistics.median(steps[False]),
        with_it=tuple(steps[True]),
        without=tuple(steps[False]),
    )
