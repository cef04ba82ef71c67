"""Drawing: the picture of `mementum trace --plot`. Matplotlib is imported here only; no file is overwritten."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mementum.errors import UsageError
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mementum.cli.tracing import Mark, Trace

PANELS = (("loss", "loss"), ("grad_norm", "gradient norm"), ("memory_used", "memory used"), ("step_s", "step, s"))
SIZE_INCHES = (11.0, 9.0)
COLOURS = {
    "saved": "tab:green",
    "alarm": "tab:red",
    "refused": "tab:orange",
    "notice": "tab:purple",
    "rollback": "tab:blue",
}
SHADES = {"suspect": "tab:olive", "diverged": "tab:brown"}  # of stretches whose states were not trusted
MARKS_MAX = 400  # lines of one kind: more of them are a filled area, and take seconds to draw


def draw_into(name: str, trace: Trace) -> None:
    """Make a PNG of the loss with saves, alarms, rollbacks and steps in doubt, of gradient norm, memory and step time.
    UsageError if matplotlib is missing, if `name` is taken, or if it does not end in .png."""
    path = Path(name)
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot: {name!r} does not end in .png", next_command="give a name such as trace.png")
    if path.exists() or path.is_symlink():
        raise UsageError(f"--plot: {name!r} exists already; nothing is overwritten", next_command="give another name")
    picture = _picture(trace)
    LocalStore(PosixDisk(), str(path.resolve().parent)).put(path.name, [picture])


def _picture(trace: Trace) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "a picture needs matplotlib, which is not installed", next_command="pip install 'mementum[plot]'"
        ) from None
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    steps = [row.step for _, row in trace.rows]
    panels: Sequence[Axes] = figure.subplots(len(PANELS), sharex=True)
    for axes, (name, title) in zip(panels, PANELS, strict=True):
        values = [_drawable(getattr(row, name)) for _, row in trace.rows]
        axes.plot(steps, values, linewidth=0.9, color="tab:blue")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        if all(map(math.isnan, values)):
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center")
    _draw_doubts(panels[0], trace)
    _draw_marks(panels[0], trace.marks)
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(loc="upper right")
    panels[0].set_title(trace.task, parse_math=False)  # a name with dollar signs is no formula
    panels[-1].set_xlabel("step")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _drawable(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    for kind, colour in COLOURS.items():
        steps = [mark.step for mark in marks if mark.kind == kind][-MARKS_MAX:]
        for place, step in enumerate(steps):
            axes.axvline(step, color=colour, alpha=0.5, linewidth=0.9, label=None if place else kind)


def _draw_doubts(axes: Axes, trace: Trace) -> None:
    """A shade from the step from which states were not trusted to the one from which they were again; of what a
    rollback has left, the line that is drawn is another."""
    labelled: set[str] = set()
    newest = trace.rows[-1][1].step
    for doubt in [one for one in trace.doubts if not one.left][-MARKS_MAX:]:
        name = doubt.health.value
        last = newest if doubt.last is None else doubt.last
        first = max(doubt.first, trace.rows[0][1].step)
        if first <= last:
            label = None if name in labelled else name
            axes.axvspan(first - 0.5, last + 0.5, color=SHADES[name], alpha=0.25, linewidth=0, label=label)
            labelled.add(name)
