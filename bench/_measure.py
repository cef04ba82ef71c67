"""Measuring: medians with intervals, what a process has used, and whether the machine is quiet."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from mementum.records import record

SEED = 4  # of every bootstrap; it is printed, so that an interval can be had again
DRAWS = 2000  # more do not move a bound by a hundredth of its width
QUIET_WINDOW_S = 0.15  # /proc/stat counts in 10 ms
QUIET_SHARE = 0.15  # of one core that others may use while a block begins
QUIET_WAIT_S = 3.0  # at a time; then it is measured on the machine as it is, and the sample says so
MIB = 1 << 20


@record
class Estimate:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    count: int


def estimate(samples: Sequence[float], *, seed: int = SEED) -> Estimate:
    """The median of `samples`, and between which bounds 95 % of the medians of resampled ones lie."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(DRAWS))
    low, high = medians[int(DRAWS * 0.025)], medians[int(DRAWS * 0.975)]
    return Estimate(median=statistics.median(samples), low=low, high=high, count=len(samples))


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of the samples do not exceed."""
    ordered = sorted(samples)
    rank = -(-len(ordered) * round(share * 1000) // 1000)  # rounded up, in whole numbers
    return ordered[max(0, rank - 1)]


class Report:
    """Figures by name, the samples they came from, and a note for each figure that there is none of."""

    def __init__(self) -> None:
        self.figures: dict[str, float | None] = {}
        self.samples: dict[str, object] = {}
        self.notes: dict[str, str] = {}

    def document(self) -> dict[str, object]:
        """What goes into the JSON: figure names to numbers, then what explains them."""
        return {**self.figures, "notes": self.notes, "samples": self.samples}


class Processor:
    """Processor seconds of this process, apart from those of the threads that train."""

    def __init__(self, *, beside: Collection[int | None] = ()) -> None:
        """Made after some steps without a save: the threads that are there now are the training's, but for those whose
        kernel's numbers are in `beside`."""
        self._trainers = [path for path in Path("/proc/self/task").iterdir() if int(path.name) not in beside]

    def read(self) -> Used:
        # Threads that have ended count in the process, and no training thread ends.
        trainers_s = sum(int((path / "schedstat").read_text().split()[0]) for path in self._trainers) / 1e9
        return Used(all_s=time.process_time(), trainers_s=trainers_s, machine_s=_busy_s())


@record
class Used:
    """Processor seconds so far: of the process, of its training threads, of the whole machine."""

    all_s: float
    trainers_s: float
    machine_s: float

    def since(self, earlier: Used) -> Used:
        return Used(
            all_s=self.all_s - earlier.all_s,
            trainers_s=self.trainers_s - earlier.trainers_s,
            machine_s=self.machine_s - earlier.machine_s,
        )


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


class Quiet:
    """Waits before a measurement until nobody else computes, as long as its patience lasts."""

    def __init__(self, patience_s: float) -> None:
        self._left_s = patience_s

    def wait(self) -> bool:
        """False if others, or the kernel for an earlier save, computed to the end of the wait."""
        until = time.monotonic() + min(QUIET_WAIT_S, self._left_s)
        while True:
            machine_s, own_s, began_s = _busy_s(), time.process_time(), time.monotonic()
            time.sleep(QUIET_WINDOW_S)
            passed_s = time.monotonic() - began_s
            if (_busy_s() - machine_s) - (time.process_time() - own_s) <= QUIET_SHARE * passed_s:
                return True
            self._left_s -= passed_s
            if time.monotonic() > until:
                return False


def forget_peak() -> None:
    """Begin anew to watch for the highest resident memory of this process."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Highest resident memory since `forget_peak`, shared memory included, in MB."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def sync_file(path: Path) -> None:
    """fsync of a file or of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shares(parts: Mapping[str, float | None], whole: float | None) -> dict[str, float | None]:
    """Each part divided by the whole; None where one of both is missing."""
    return {name: part / whole if part is not None and whole else None for name, part in parts.items()}
