"""Tracing: `mementum trace`, the vital signs of a task as a table, as CSV, as JSON or as a picture."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mementum.cli.doubting import Doubt, doubt_at, doubts, plan_told
from mementum.cli.failing import INTEGRITY, OK
from mementum.cli.reading import Contents, look
from mementum.cli.recalling import Recollection, home_of, ordered, recall, told, warn_of
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, printable
from mementum.errors import NoSuchAddress, UsageError
from mementum.format import typed_json, vitals
from mementum.records import Fact, Vitals, record

if TYPE_CHECKING:
    from rich.console import Console

ROWS_FIT = 40  # what a person reads at once, and what fits on a screen
SEEN = (  # columns of the table: head, field, format
    ("loss", "loss", ".5g"),
    ("z", "loss_z", ".1f"),
    ("grad", "grad_norm", ".3g"),
    ("grad z", "grad_z", ".1f"),
    ("layer", "layer_ratio", ".3g"),
    ("lr", "lr", ".3g"),
    ("memory", "memory_used", ".0%"),
    ("left", "memory_steps_left", ".3g"),
    ("step s", "step_s", ".3g"),
)
HEAD = ("step", *(head for head, _, _ in SEEN), "what happened")
RIGHT = frozenset(HEAD[:-1])
FIELDS = ("attempt", "step", "finite", *vitals.VALUES)
ABSENT = "-"


@record
class Words:
    """The options, as they were given."""

    attempt: int | None = None
    every: int | None = None
    first: int | None = None
    last: int | None = None
    newest: int | None = None
    csv: bool = False
    plot: str | None = None


@record
class Mark:
    """Something that happened at a step: `kind` is `saved`, or that of the fact."""

    step: int
    attempt: int
    kind: str
    text: str


@record
class Trace:
    """Rows in the order of their steps, each with its attempt, and what happened from the first of them on: the last
    steps before a kill may have no row. `count` is how many rows there were to choose from; `doubts` are the stretches
    of them whose states were not trusted."""

    task: str
    count: int
    rows: tuple[tuple[int, Vitals], ...]
    marks: tuple[Mark, ...]
    doubts: tuple[Doubt, ...] = ()


def trace(root: str, task: str | None, words: Words, *, as_json: bool) -> int:
    """Print or draw what was recorded; the exit code."""
    _check(words, as_json)
    contents = look(root)
    home = home_of(contents, task)
    first, last = words.first or 0, vitals.STEP_MAX if words.last is None else words.last
    recollection = recall(contents, home, first=first, last=last)
    warn_of(recollection)
    found = _trace(contents, recollection, words, fit=not (as_json or words.csv or words.plot))
    if words.plot is not None:
        from mementum.cli.drawing import draw_into  # matplotlib, which takes a second and may be missing

        draw_into(words.plot, found)
        print(printable(f"{counted(len(found.rows), 'step')} of {found.task} in {words.plot}"))
    elif words.csv:
        print("\n".join(_csv(found.rows)))
    elif as_json:
        print(rendered(_fields(found, recollection)))
    else:
        _print(found)
    return INTEGRITY if recollection.damage else OK


def _check(words: Words, as_json: bool) -> None:
    next_command = "mementum trace --help"
    if (words.plot is not None) + words.csv + as_json > 1:
        raise UsageError("--csv, --json and --plot exclude each other", next_command=next_command)
    for option, value in (("--every", words.every), ("--last", words.newest), ("--attempt", words.attempt)):
        if value is not None and value < 1:
            raise UsageError(f"{option}: {value} is not at least 1", next_command=next_command)
    if words.first is not None and words.last is not None and words.first > words.last:
        raise UsageError(f"--from {words.first} is after --to {words.last}", next_command=next_command)


def _trace(contents: Contents, recollection: Recollection, words: Words, *, fit: bool) -> Trace:
    """What was asked for. NoSuchAddress says what there is instead, where that is nothing."""
    steps = recollection.steps
    numbers = sorted({number for _, number in steps})
    if words.attempt is not None:
        one = recollection.attempt(words.attempt)
        steps = [] if one is None else [(step, one.number) for step in sorted(one.rows)]
    if not steps:
        raise _nothing(recollection, words, numbers)
    if words.newest is not None:
        steps = steps[-words.newest :]
    begin, end = steps[0][0], vitals.STEP_MAX if words.last is None else words.last
    of = {number for _, number in steps}
    marks = [mark for mark in _marks(contents, recollection) if begin <= mark.step <= end and mark.attempt in of]
    count = len(steps)
    if words.every is not None:
        steps = [*steps[: -1 : words.every], steps[-1]]
    elif fit and words.newest is None:
        steps = sampled(steps, ROWS_FIT)
    rows = tuple(recollection.row(step, number) for step, number in steps)
    found = tuple(doubt for doubt in doubts(recollection) if doubt.attempt in of and doubt.first <= end)
    return Trace(task=recollection.task, rows=rows, marks=tuple(marks), count=count, doubts=found)


def _nothing(recollection: Recollection, words: Words, numbers: Sequence[int]) -> NoSuchAddress:
    task = f"task {recollection.task!r}"
    if words.attempt is not None and numbers:
        there = ", ".join(map(str, numbers))
        return NoSuchAddress(
            f"{task} has no vital signs of attempt {words.attempt} there; there are some of attempts {there}",
            next_command="mementum trace ROOT",
        )
    if words.first is not None or words.last is not None:
        span = f"from {words.first or 0}" + ("" if words.last is None else f" to {words.last}")
        return NoSuchAddress(f"{task} has no vital signs of steps {span}", next_command="mementum trace ROOT")
    return NoSuchAddress(
        f"{task} has no vital signs: none of its attempts has recorded any", next_command="mementum ls ROOT"
    )


def _marks(contents: Contents, recollection: Recollection) -> Iterator[Mark]:
    """Saves, also of checkpoints that are gone, decisions that were no save, what was told of the state's health, and
    rollbacks, at the step at which the run went back."""
    for one in recollection.attempts:
        saved = {fact.step: "saved" for fact in one.facts if fact.kind == "cost" and fact.step is not None}
        for held in contents.held:
            manifest = held.entry.manifest
            if held.home == recollection.home and manifest.attempt == one.number:
                saved[manifest.step] = f"saved: {manifest.reason}"
        marks = [Fact(kind="saved", time="", step=step, values={"reason": text}) for step, text in saved.items()]
        for fact in ordered((*one.decisions, *one.doubts, *marks)):
            yield Mark(step=fact.step or 0, attempt=one.number, kind=fact.kind, text=told(fact))
        for plan in recollection.plans:
            if plan.attempt == one.number:
                step = plan.step if plan.from_step is None else plan.from_step
                yield Mark(step=step, attempt=one.number, kind="rollback", text=plan_told(plan))


def _csv(rows: Iterable[tuple[int, Vitals]]) -> Iterator[str]:
    """All columns; what was not seen is empty."""
    yield ",".join(FIELDS)
    for attempt, row in rows:
        values = (_digits(name, getattr(row, name)) for name in vitals.VALUES)
        yield ",".join((str(attempt), str(row.step), str(int(row.finite)), *values))


def _digits(name: str, value: float | None) -> str:
    """As many digits as were recorded."""
    if value is None:
        return ""
    return repr(value) if name in vitals.EXACT else f"{value:.7g}"


def _fields(found: Trace, recollection: Recollection) -> dict[str, Any]:
    return {
        "task": found.task,
        "rows": [fields(attempt, row) for attempt, row in found.rows],
        "marks": [
            {"step": mark.step, "attempt": mark.attempt, "kind": mark.kind, "text": mark.text} for mark in found.marks
        ],
        "doubts": [
            {
                "attempt": doubt.attempt,
                "first": doubt.first,
                "last": doubt.last,
                "seen": doubt.seen,
                "health": doubt.health.value,
                "why": doubt.why,
                "left": doubt.left,
            }
            for doubt in found.doubts
        ],
        "damage": [{"key": damage.key, "what": damage.what} for damage in recollection.damage],
    }


def fields(attempt: int, row: Vitals) -> dict[str, Any]:
    """A row for programs: null is what was not seen."""
    values = {name: _number(name, getattr(row, name)) for name in vitals.VALUES}
    return {"attempt": attempt, "step": row.step, "finite": row.finite, **values}


def _number(name: str, value: float | None) -> Any:
    if value is None:
        return None
    return typed_json.encode(value if name in vitals.EXACT else float(f"{value:.7g}"))


def _print(found: Trace) -> None:
    cells = list(table(found.rows, found.marks, found.doubts))
    if sys.stdout.isatty():
        from rich.console import Console

        draw(Console(), cells)
    else:
        print("\n".join(columns(HEAD, cells, right=RIGHT)))
    left_out = found.count - len(found.rows)
    said = f", {left_out} left out (--every 1 shows all)" if left_out else ""
    attempts = counted(len({number for number, _ in found.rows}), "attempt")
    print(printable(f"{counted(found.count, 'step')} of {attempts} of {found.task}{said}"))


def sampled(steps: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """At most so many of them, evenly, the last one always."""
    if len(steps) <= count:
        return list(steps)
    return [steps[(place + 1) * len(steps) // count - 1] for place in range(count)]


def table(
    rows: Sequence[tuple[int, Vitals]], marks: Sequence[Mark], doubts: tuple[Doubt, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """A line a row. What happened at steps that are not shown stands in the next line that is, with its step; what
    happened after the last row has lines of its own."""
    waiting = sorted(marks, key=lambda mark: mark.step)
    before: int | None = None
    for attempt, row in rows:
        doubt = doubt_at(doubts, attempt, row.step)
        happened = [] if doubt is None else [doubt.health.value]
        happened += [] if row.finite else ["not finite"]
        if before not in (None, attempt):
            happened.append(f"attempt {attempt} begins")
        before = attempt
        while waiting and waiting[0].step <= row.step:
            happened.append(_happened(waiting.pop(0), row.step))
        values = (_cell(getattr(row, name), form) for _, name, form in SEEN)
        yield (str(row.step), *values, printable("; ".join(happened)))
    for mark in waiting:
        yield (str(mark.step), *(ABSENT for _ in SEEN), printable(_happened(mark, mark.step)))


def _happened(mark: Mark, step: int) -> str:
    """What a mark says in the line of this step."""
    at = "" if mark.step == step else f" at {mark.step}"
    return mark.text + at if mark.kind == "saved" else f"{mark.kind}{at}: {mark.text}"


def _cell(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


def draw(console: Console, cells: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; what happened is folded into what is left of its width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in HEAD:
        drawn.add_column(name, justify="right" if name in RIGHT else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)
