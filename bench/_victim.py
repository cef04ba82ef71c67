"""The victim: trains, takes a snapshot, writes down what is in it, and kills itself with SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from _model import Training
from _restore import digests
from _savers import WhenTold

import mementum

STEPS = 2


def main(root: str, told: str, sequence: int, size: str) -> None:
    training = Training(seed=7, sequence=sequence, size=size)
    run = mementum.open_run(
        root, task="bench", model=training.model, optimizer=training.optimizer, policy=WhenTold(), resume="never"
    )
    for _ in range(STEPS):
        run.record(loss=training.step())
    Path(told).write_text(json.dumps(digests(training)))
    run.save()
    run.record(loss=training.step())  # the copy has ended when this step's optimizer has changed something
    run.wait()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
