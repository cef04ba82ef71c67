"""The demo: trains, kills the training at random instants, lets it resume, and compares it with a run never killed."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from compare import Comparison, checkpoints, compare_runs, last_checkpoint
from kills import Attempt, Kill, Trainer, TrainerFailed, draw_kills, finish, step_of, train_through
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mementum.errors import MementumError, UsageError
from mementum.records import Entry, record

TASK = "byte-llama"  # the trainer's
MARKER = ".mementum-demo"  # a folder that has it was made by this demo, and may be emptied by it
SEED_BITS = 31  # of a drawn seed: torch and the sampler take more, a person types it
SHOWN_DIFFERENCES = 20  # of perhaps hundreds; where one tensor differs, most do


@record
class Outcome:
    """Both runs, done and compared."""

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
    marker.touch()  # first, so that the next demo can clean up what an interrupted one leaves
    for item in folder.iterdir():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        elif item != marker:
            item.unlink()
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def train_both(out: Path, kills: Sequence[Kill], options: Sequence[str], *, steps: int, console: Console) -> Outcome:
    """The straight run and the killed one beside it; then the two are compared."""
    logs = out / "logs"
    logs.mkdir()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console) as bars,
        Trainer(out / "straight", log=logs / "straight.jsonl", options=options) as trainer,
    ):
        straight_bar = bars.add_task("never killed", total=steps)
        killed_bar = bars.add_task("killed and resumed", total=steps)

        def moved(step: int) -> None:
            bars.update(killed_bar, completed=step)
            lines = trainer.look()
            bars.update(straight_bar, completed=lines.last_step if lines else 0)

        attempts = train_through(kills, out / "killed", logs=logs, options=options, progress=moved)
        straight = finish(trainer, progress=lambda step: bars.update(straight_bar, completed=step))
    comparison = compare_runs(
        last_checkpoint(out / "straight", TASK),
        last_checkpoint(out / "killed", TASK),
        (straight.lines, [attempt.lines for attempt in attempts]),
    )
    saved = checkpoints(out / "killed", TASK)
    return Outcome(straight=straight, attempts=attempts, saved=saved, comparison=comparison)


def saves_table(saved: Sequence[Entry]) -> Table:
    """What the killed run saved and why, from its manifests."""
    table = Table("attempt", "step", "epoch", "why", "size", "loop stood still", title="Saved", title_justify="left")
    for manifest in (entry.manifest for entry in saved):
        blocked_s = manifest.decision.get("blocked_s")  # None of one whose process was killed before it could tell
        stood = "–" if blocked_s is None else f"{1000 * float(blocked_s):.1f} ms"
        size = f"{manifest.size / 1e6:.1f} MB"
        numbers = (str(manifest.attempt), str(manifest.step), str(manifest.epoch))
        table.add_row(*numbers, manifest.reason, size, stood)
    return table


def struck(attempt: Attempt, resumed: int, *, every: int) -> str:
    """What the kill struck: training, or a save that had been decided and was not committed."""
    if attempt.torn is not None:
        return f"save of {step_of(attempt.torn)}, half written"
    due = attempt.lines.last_step // every * every
    return f"save of {due}, not begun to write" if due > resumed else "training"


def kills_table(attempts: Sequence[Attempt], *, every: int) -> Table:
    """Each kill, and how the attempt after it came back."""
    table = Table(
        "kill -9", "struck", "resumed from", "steps lost", "state back in", "first step after", title="Killed"
    )
    table.title_justify = "left"
    for attempt, following in pairwise(attempts):
        done, resumed = attempt.lines.last_step, following.lines.began_step
        back = following.lines.resume_s
        table.add_row(
            f"after step {done}",
            struck(attempt, resumed, every=every),
            f"step {resumed}" if resumed else "the beginning",
            str(done - resumed),
            f"{1000 * back:.0f} ms" if back is not None else "-",
            f"{following.first_step_s:.1f} s" if following.first_step_s is not None else "-",
        )
    return table


def report(outcome: Outcome, console: Console, *, every: int) -> None:
    """The tables, what was compared, and the verdict in one line."""
    console.print(saves_table(outcome.saved))
    console.print(kills_table(outcome.attempts, every=every))
    found = outcome.comparison
    console.print(
        f"Compared with the run that was never killed: {found.tensors} tensors (weights and optimizer), "
        f"{found.values} other values (random generators, data position, schedule, counters) and "
        f"{found.losses} losses, steps that were done twice included."
    )
    for difference in found.differences[:SHOWN_DIFFERENCES]:
        console.print(f"  {difference}", markup=False)
    if len(found.differences) > SHOWN_DIFFERENCES:
        console.print(f"  … and {len(found.differences) - SHOWN_DIFFERENCES} more")
    verdict, style = ("no", "bold red") if found.differences else ("yes", "bold green")
    console.print(f"bit-identical: {verdict}", style=style, highlight=False)


def draw_picture(file: Path, outcome: Outcome, console: Console) -> None:
    """The picture, where matplotlib is installed."""
    try:
        from picture import draw
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        console.print("no picture: pip install 'mementum[plot]'", markup=False)
        return
    same = "bit for bit the same" if not outcome.comparison.differences else "not the same"
    title = f"Killed {len(outcome.attempts) - 1} times, resumed: {same} as never killed"
    draw(file, straight=outcome.straight.lines, attempts=outcome.attempts, saved=outcome.saved, title=title)
    console.print(f"picture: {file}", highlight=False, soft_wrap=True)


def demo(
    kills: Annotated[int, typer.Option(min=1, help="How often the training is killed.")] = 4,
    steps: Annotated[int, typer.Option(min=10, help="Steps of training.")] = 240,
    every: Annotated[int, typer.Option(min=1, help="Save every so many steps.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Of all chance; drawn and printed if not given.")] = None,
    text: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Train on this file.")] = None,
    out: Annotated[Path, typer.Option(help="Where checkpoints, logs and the picture go.")] = Path("demo-run"),
    trainer: Annotated[str, typer.Option(help="More options of demo/train.py, such as '--layers 2'.")] = "",
) -> None:
    """Kill a training run at random instants, let it resume, and compare it with a run that was never killed."""
    console = Console()
    began_s = time.monotonic()
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    options = ["--steps", str(steps), "--every", str(every), "--seed", str(drawn)]
    if text is not None:
        options += ["--text", str(text.resolve())]
    try:
        planned = draw_kills(drawn, kills=kills, steps=steps, every=every)
        clean(out)
        more = ["--kills", str(kills), *options, *(["--trainer", trainer] if trainer else [])]
        again = f"make demo ARGS={shlex.quote(shlex.join(more))}"
        console.print(f"seed {drawn}; the same again: {again}", highlight=False, soft_wrap=True)
        for kill in planned:
            aim = " (aimed at the save there)" if kill.aimed else ""
            console.print(
                f"  a kill is drawn for {kill.fraction:.0%} of a step after step {kill.step}{aim}", highlight=False
            )
        outcome = train_both(out, planned, [*options, *trainer.split()], steps=steps, console=console)
    except (MementumError, TrainerFailed, ValueError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    report(outcome, console, every=every)
    draw_picture(out / "loss.png", outcome, console)
    console.print(f"{time.monotonic() - began_s:.0f} s; checkpoints and logs are in {out}", highlight=False)
    sys.exit(1 if outcome.comparison.differences else 0)


if __name__ == "__main__":
    typer.run(demo)
