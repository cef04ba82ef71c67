"""How often the product saves by its own decision, and what a failure then costs, beside a fixed interval.

The run is a real one of a small model, under a clock of the benchmark: steps and saves take as long as bench/save.py
measured them for 1.2 GB, and one step stands for 25. What a failure loses is counted at every step from what was
durable, or in memory, by then."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _storage_arms import Ours, Paced
from _storage_trainings import Characters, Sizes

from mementum import events
from mementum.perceive.hazards import SHARES
from mementum.records import Reach, record

STEP_S = 1.2  # of training, beside which 0.72 s were lost to a save (bench/save.py, 1.2 GB)
COPY_S, WRITE_S = 0.06, 0.66  # of them to the copy, which is all that a snapshot in memory takes, and to the rest
STRIDE = 25  # steps that one of the bench stands for, or it would last for hours
RECORD_EVERY = 2  # of the bench's, so that every other one is without: twice as rare as the product's default
FIXED_STEPS = 2000  # the documents' interval
TINY = Sizes(width=32, layers=1, rows=1, length=8)
# An interval of 3000 steps: a third of the failures that a disk outlives are of the process alone, after which memory
# gives back all but some steps. The rest then loses on average what all failures lose at an interval of 2000.
LOST_MOST = "60m"


@record
class Decided:
    """Saves in 1000 steps, and steps that are lost on average: if the process ends, if its machine starts anew, and
    over both, as often as others saw them."""

    saves: int
    steps: int
    in_memory: int
    lost_process: float
    lost_reboot: float

    @property
    def per_1000(self) -> float:
        return 1000 * self.saves / self.steps

    @property
    def lost(self) -> float:
        process, reboot = SHARES[Reach.PROCESS], SHARES[Reach.REBOOT]
        return (process * self.lost_process + reboot * self.lost_reboot) / (process + reboot)


def fixed(steps: int) -> Decided:
    """`torch.save` at the documents' interval: nothing of it is in memory. `steps`: of the training."""
    saved = range(FIXED_STEPS, steps + 1, FIXED_STEPS)
    lost = lost_on_average(saved, steps)
    return Decided(saves=len(saved), steps=steps, in_memory=0, lost_process=lost, lost_reboot=lost)


def decide(folder: Path, *, steps: int, tolerance: str | None, advance: Callable[[], None]) -> Decided:
    """A run with nothing set but how much work a failure may cost, if that. `steps`: of the training."""
    clock, training = Paced(), Characters(TINY)

    def hear(event: events.Event) -> None:
        match event:
            case events.PhaseBegan(phase="capture"):
                clock.advance(COPY_S)
            case events.PhaseBegan(phase="write"):
                clock.advance(WRITE_S)

    config: dict[str, Any] = {"recorder": {"every": RECORD_EVERY}}
    if tolerance is not None:
        config["tolerance"] = {"max_lost": tolerance}
    run = Ours(training, folder, config, decides=True, clock=clock, on_event=hear)
    try:
        for _ in range(steps // STRIDE):
            loss = training.step()
            clock.advance(STRIDE * STEP_S)
            run.run.record(loss=loss)
            run.run.wait()
            advance()
        durable = [STRIDE * one.step for one in run.committed]  # without the save at the end of the run
    finally:
        run.close()
    kept = [STRIDE * step for step in run.kept_in_memory]
    return Decided(
        saves=len(durable),
        steps=steps,
        in_memory=len(kept),
        lost_process=lost_on_average(sorted({*durable, *kept}), steps),
        lost_reboot=lost_on_average(durable, steps),
    )


def lost_on_average(saved: Sequence[int], steps: int) -> float:
    """Steps since the newest save, averaged over the ends of all steps."""
    before = [0, *saved]
    return statistics.fmean(step - before[bisect_right(before, step) - 1] for step in range(1, steps + 1))
