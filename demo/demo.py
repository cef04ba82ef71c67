"""The demo: trains, kills the training at random instants, lets it resume, and compares it with a run never killed."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from compare import Comparison, checkpoints, compare_runs, last_checkpoint
from kills import Attempt, Kill, TrainerFailed, draw_kills, train_through, train_to_end
from losslog import Lines
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from mementum.errors import MementumError, UsageError
from mementum.records import Entry, record

TASK = "byte-llama"  # the trainer's
MARKER = ".mementum-demo"  # a folder that has it was made by this demo, and may be emptied by it
SEED_BITS = 31
SHOWN_DIFFERENCES = 20
MINUTES_MAX = 60.0  # for the straight run beside the killed one; a demo that takes longer hangs


@record
class Outcome:
    """Both runs, done."""

    straight: Attempt
    attempts: tuple[Attempt, ...]
    saved: tuple[Entry, ...]
    comparison: Comparison


def clean(folder: Path) -> None:
    """Make `folder` an empty one of ours. UsageError, and nothing is touched, if what is there is not ours."""
    marker = folder / MARKER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder", next_command="choose another one with --out")
    if folder.exists() and any(folder.iterdir()) and not marker.is_file():
        raise UsageError(
            f"{folder} has files that this demo did not make",
            kept="all of them",
            next_command="choose another folder with --out",
        )
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()  # first, so that an interrupted demo can be cleaned up by the next one
    for item in folder.iterdir():
        if item == marker:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def train_both(out: Path, kills: Sequence[Kill], options: Sequence[str], *, steps: int, console: Console) -> Outcome:
    """The straight run and the killed one, beside each other; then what they left, compared."""
    roots, logs = (out / "straight", out / "killed"), out / "logs"
    logs.mkdir()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done: list[Attempt | TrainerFailed] = []
    with Progress(*columns, console=console) as progress:
        bars = [progress.add_task(name, total=steps) for name in ("never killed", f"killed {len(kills)} times")]

        def straight_run() -> None:
            log = logs / "straight.jsonl"
            try:
                done.append(
                    train_to_end(roots[0], log=log, options=options, progress=_Bar(progress, bars[0]).move)
                )
            except TrainerFailed as error:
                done.append(error)

        beside = threading.Thread(target=straight_run, name="straight", daemon=True)
        beside.start()
        attempts = train_through(
            kills, roots[1], logs=logs, options=options, progress=_Bar(progress, bars[1]).move
        )
        beside.join(MINUTES_MAX * 60)
    straight = done[0] if done else TrainerFailed(f"the straight run took more than {MINUTES_MAX:.0f} minutes")
    if isinstance(straight, TrainerFailed):
        raise straight
    comparison = compare_runs(
        last_checkpoint(roots[0], TASK),
        last_checkpoint(roots[1], TASK),
        (straight.lines, [attempt.lines for attempt in attempts]),
    )
    return Outcome(straight=straight, attempts=attempts, saved=checkpoints(roots[1], TASK), comparison=comparison)
