"""Training in a child process that is killed at drawn instants, and started again each time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from losslog import Lines, read_log

from mementum.records import record

TRAINER = Path(__file__).resolve().parent / "train.py"
POLL_S = 0.004  # much shorter than a step, so that a kill lands where it was drawn
SPARED_SHARE = 0.1  # of the steps, at the end: the child must not be done before a kill that is a little late
STEP_S = 0.05  # taken for the length of a step until two are seen
SHOWN_LINES = 15  # of what a child that failed wrote last
START_S_MAX = 300.0  # to the first step: imports from a cold, slow disk take tens of seconds; more is a hang

Progress = Callable[[int], None]


class TrainerFailed(Exception):
    """The child ended otherwise than it should have; the message ends with what it wrote last."""


@record
class Kill:
    """An instant: after `step` is done, when `fraction` of the next one has passed. `aimed` kills fall on a save."""

    step: int
    fraction: float
    aimed: bool = False


@record
class Attempt:
    """One process start: what it logged, and how it ended. `torn` names the checkpoint that the kill cut short."""

    lines: Lines
    first_step_s: float | None
    kill: Kill | None = None
    torn: str | None = None


def draw_kills(seed: int, *, kills: int, steps: int, every: int) -> tuple[Kill, ...]:
    """One instant in each of `kills` equal stretches of the run, in order; the last is aimed at a save."""
    end = int(steps * (1 - SPARED_SHARE))
    if kills < 1 or end < kills:
        raise ValueError(f"{kills} kills do not fit into {steps} steps")
    draw = random.Random(seed)
    edges = [1 + end * number // kills for number in range(kills + 1)]
    drawn = []
    for low, high in pairwise(edges):
        step, fraction = draw.randrange(low, high), draw.random()
        saves = range(-(-low // every) * every, high, every)
        aimed = high == edges[-1] and len(saves) > 0
        drawn.append(Kill(step=draw.choice(saves) if aimed else step, fraction=fraction, aimed=aimed))
    return tuple(drawn)


class Trainer:
    """A child process that runs the trainer, and its log. Leaving the `with` block ends the process."""

    def __init__(self, root: Path, *, log: Path, options: Sequence[str]) -> None:
        self._log, self._errors = log, log.with_suffix(".err")
        self._began_s = time.monotonic()
        self._lines: Lines | None = None
        self._size = 0
        self._step_at_s = 0.0
        self.first_step_s: float | None = None
        self.step_s = STEP_S
        # Nothing is downloaded, and the library is told so: it does not even ask.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, str(TRAINER), str(root), "--log", str(log), *options]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, env=environment, stdout=errors, stderr=errors)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, which no process can catch; afterwards it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def look(self) -> Lines | None:
        """What the log says now."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size > self._size:  # read again only when it has grown: looking must not slow the training down
            self._size = size
            self._take(read_log(self._log))
        if self.first_step_s is None and time.monotonic() - self._began_s > START_S_MAX:
            raise TrainerFailed(f"no step within {START_S_MAX:.0f} s\n{self.words()}")
        return self._lines

    def _take(self, lines: Lines | None) -> None:
        before, self._lines = self._lines, lines
        if lines is None or not lines.losses:
            return
        now_s = time.monotonic() - self._began_s
        if self.first_step_s is None:
            self.first_step_s = now_s
        elif before is not None and lines.last_step > before.last_step:
            self.step_s = (now_s - self._step_at_s) / (lines.last_step - before.last_step)
        self._step_at_s = now_s

    def words(self) -> str:
        """What the child wrote last."""
        return "\n".join(self._errors.read_text(errors="replace").splitlines()[-SHOWN_LINES:])


def train_through(
    kills: Sequence[Kill], root: Path, *, logs: Path, options: Sequence[str], progress: Progress
) -> tuple[Attempt, ...]:
    """Kill and start again until no kill is left, then let the trainer finish."""
    attempts = []
    for number, kill in enumerate(kills, start=1):
        with Trainer(root, log=logs / f"attempt-{number}.jsonl", options=options) as trainer:
            attempts.append(end_by(kill, trainer, root, progress=progress))
    with Trainer(root, log=logs / f"attempt-{len(kills) + 1}.jsonl", options=options) as trainer:
        return (*attempts, finish(trainer, progress=progress))


def end_by(kill: Kill, trainer: Trainer, root: Path, *, progress: Progress) -> Attempt:
    """Kill the trainer at the given instant. TrainerFailed if it ends by itself before."""
    while (lines := trainer.look()) is None or not lines.losses or lines.last_step < kill.step:
        progress(lines.last_step if lines else 0)
        if trainer.process.poll() is not None:
            break
        time.sleep(POLL_S)
    time.sleep(kill.fraction * trainer.step_s)
    trainer.kill()
    lines = trainer.look()
    if trainer.process.returncode != -signal.SIGKILL or lines is None:
        raise TrainerFailed(f"the trainer ended before it was killed at step {kill.step}\n{trainer.words()}")
    return Attempt(lines=lines, first_step_s=trainer.first_step_s, kill=kill, torn=torn_checkpoint(root))


def finish(trainer: Trainer, *, progress: Progress) -> Attempt:
    """Let the trainer come to its end. TrainerFailed if it fails."""
    while trainer.process.poll() is None:
        lines = trainer.look()
        progress(lines.last_step if lines else 0)
        time.sleep(POLL_S)
    lines = trainer.look()
    if trainer.process.returncode != 0 or lines is None:
        raise TrainerFailed(f"the trainer ended with status {trainer.process.returncode}\n{trainer.words()}")
    progress(lines.last_step)
    return Attempt(lines=lines, first_step_s=trainer.first_step_s)


def torn_checkpoint(root: Path) -> str | None:
    """The folder of a checkpoint that was being written and has no manifest, so that it does not exist."""
    folders = (folder for folder in sorted(root.glob("*/*/step_*")) if not (folder / "meta.json").exists())
    return next((folder.name for folder in folders), None)


def step_of(folder: str) -> int:
    """The step in the name of a checkpoint's folder: 180 of `step_0000000180` or `step_0000000180-2`."""
    return int(folder.removeprefix("step_").partition("-")[0])
