"""The picture of the demo: the loss over the steps, and below it the attempts with their checkpoints and kills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from kills import Attempt
from losslog import Lines
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mementum.records import Entry

INK, PALE, RED, GREEN, BLUE = "#24292f", "#c9d1d9", "#cf222e", "#1a7f37", "#0969da"
SIZE_INCHES = (9.0, 4.8)
DOTS_PER_INCH = 120  # 1080 pixels wide: sharp in a page, and under 150 kB


def draw(file: Path, *, straight: Lines, attempts: Sequence[Attempt], saved: Sequence[Entry], title: str) -> None:
    """Write the picture as PNG. The two curves lie on one another where the runs are the same."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.edgecolor": INK, "text.color": INK, "xtick.color": INK})
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, 1.0 + 0.12 * len(attempts)))
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.012, ha="left")
    _draw_losses(above, straight, attempts)
    _draw_attempts(below, attempts, saved)
    for axes in (above, below):
        for kill_step in _kill_steps(attempts):
            axes.axvline(kill_step, color=RED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    above.set_xlim(0, straight.last_step * 1.01)
    figure.savefig(file)


def _kill_steps(attempts: Sequence[Attempt]) -> list[int]:
    return [attempt.lines.last_step for attempt in attempts if attempt.kill is not None]


def _draw_losses(axes: Axes, straight: Lines, attempts: Sequence[Attempt]) -> None:
    axes.plot(*zip(*straight.losses, strict=True), color=PALE, linewidth=5, solid_capstyle="round")
    for attempt in attempts:
        axes.plot(*zip(*attempt.lines.losses, strict=True), color=BLUE, linewidth=1.2)
    losses = dict(straight.losses)
    steps = _kill_steps(attempts)
    axes.scatter(steps, [losses[step] for step in steps], marker="X", s=60, color=RED, edgecolor="white", zorder=5)
    axes.set_ylabel("loss (nats a byte)")
    axes.legend(
        handles=[
            Line2D([], [], color=PALE, linewidth=5, label="never killed"),
            Line2D([], [], color=BLUE, linewidth=1.2, label="killed and resumed"),
            Line2D([], [], color=RED, marker="X", linestyle="none", markersize=7, label="kill -9"),
            Line2D([], [], color=GREEN, marker="v", linestyle="none", markersize=6, label="checkpoint"),
        ],
        frameon=False,
        loc="upper right",
    )


def _draw_attempts(axes: Axes, attempts: Sequence[Attempt], saved: Sequence[Entry]) -> None:
    """A bar for each attempt; what was done and then lost with a kill is hatched."""
    for place, attempt in enumerate(attempts):
        began, last = attempt.lines.began_step, attempt.lines.last_step
        kept = attempts[place + 1].lines.began_step if attempt.kill is not None else last
        axes.barh(place, kept - began, left=began, height=0.5, color=BLUE, alpha=0.35)
        if last > kept:
            lost = last - kept
            axes.barh(place, lost, left=kept, height=0.5, color="none", edgecolor=RED, hatch="////", linewidth=0.6)
        marks = [entry.manifest.step for entry in saved if entry.manifest.attempt == place + 1]
        axes.scatter(marks, [place - 0.44] * len(marks), marker="v", s=26, color=GREEN, zorder=4)
        if attempt.kill is not None:
            axes.scatter([last], [place], marker="X", s=60, color=RED, edgecolor="white", zorder=5)
    axes.set_yticks(range(len(attempts)), [f"attempt {place + 1}" for place in range(len(attempts))])
    axes.set_ylim(len(attempts) - 0.5, -0.8)
    axes.set_xlabel("step (hatched: done, lost with the kill, done again)")
