"""The footprint: resident memory that one saver needs beside the training, measured in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from _measure import forget_peak, peak_mb
from _model import Training
from _savers import make, wait_until_idle

STEPS = 2
SAVES = 3  # the second and third may find memory of the one before still in use
WAIT_S = 300.0  # on a machine that is busy


def footprint_mb(name: str, folder: Path, *, sequence: int, size: str) -> float:
    """Highest resident memory with saves, less the highest without, in MB."""
    below = folder / "footprint"
    command = [sys.executable, __file__, name, str(below), str(sequence), size]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    shutil.rmtree(below, ignore_errors=True)
    if ended.returncode != 0:
        raise RuntimeError(f"measuring the footprint of {name} failed: {ended.stderr[-2000:]}")
    return float(ended.stdout.split()[-1])


def main(name: str, folder: str, sequence: int, size: str) -> None:
    training = Training(seed=7, sequence=sequence, size=size)
    training.step()
    forget_peak()
    for _ in range(STEPS):
        training.step()
    without_mb = peak_mb()
    forget_peak()
    saver = make(name, training, Path(folder))
    for _ in range(SAVES):
        saver.after_step(training.step())
        saver.save()
        for _ in range(STEPS):
            saver.after_step(training.step())
        wait_until_idle(saver)
        saver.saved()  # raises if it failed
        saver.tidy()
    print(peak_mb() - without_mb)
    saver.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
