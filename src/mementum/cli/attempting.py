"""Attempting: `mementum tree`, the starts and rollbacks of a task, and from which checkpoint each of them went on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from mementum.branching import BY_HAND
from mementum.catalog.plans import Plan
from mementum.cli.branches import History, Stretch, history, lines
from mementum.cli.failing import NOTHING, OK, warn
from mementum.cli.listing import id_width
from mementum.cli.reading import Held, look
from mementum.cli.recalling import home_of
from mementum.cli.rolling_back import plan_fields, what_of
from mementum.cli.text import as_json as rendered
from mementum.cli.text import moment, printable
from mementum.records import Health

if TYPE_CHECKING:
    from rich.tree import Tree

ENDS_SHOWN = 2  # of a row of checkpoints about which there is nothing to say, at either end
FOLDED_MIN = 3  # that are told in one line
MARKS = {Health.CLEAN: ("✓", "green"), Health.SUSPECT: ("?", "yellow"), Health.DIVERGED: ("✗", "red")}
DAMAGED = ("!", "red")
QUIET = "dim"
PIPE_WIDTH = 4096  # columns where no terminal folds the lines: none is cut


def tree(root: str, task: str | None, *, as_json: bool) -> int:
    """Print the tree of a task; the exit code."""
    contents = look(root)
    found = history(contents, home_of(contents, task))
    if as_json:
        print(rendered(_fields(found)))
    elif found.stretches:
        _print(found)
    if found.stretches:
        return OK
    warn(f"task {found.task!r} has no attempt so far")
    return NOTHING


def _print(found: History) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    drawn = Tree(Text(printable(found.task), style="bold"), guide_style=QUIET)
    _Drawing(found).draw(drawn)
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width, highlight=False).print(drawn)


class _Drawing:
    """Puts the stretches of a history under the checkpoints from which they went on."""

    def __init__(self, found: History) -> None:
        self._found = found
        self._lines = lines(found)
        self._width = id_width([one.id for stretch in found.stretches for one in stretch.held] or [""])

    def draw(self, drawn: Tree) -> None:
        self._stretches(drawn, self._lines.first)
        plan = self._found.pending
        if plan is not None and not any(plan.target == one.id for of in self._found.stretches for one in of.held):
            self._pending(drawn, plan)

    def _stretches(self, drawn: Tree, stretches: Sequence[Stretch]) -> None:
        """One after the other. Starts that came to nothing are told together: a crash loop has hundreds of them."""
        for empty, group in groupby(stretches, key=lambda one: not one.held and one.plan is None):
            some = list(group)
            if empty and len(some) >= FOLDED_MIN:
                drawn.add(_text(f"attempts {some[0].attempt} to {some[-1].attempt} have saved nothing", QUIET))
                continue
            for one in some:
                self._stretch(drawn, one)

    def _stretch(self, drawn: Tree, stretch: Stretch) -> None:
        node = drawn.add(_text(_headline(stretch)))
        if stretch.plan is not None:
            _explain(node, stretch.plan)
        if not stretch.held:
            node.add(_text("no checkpoint of it is there", QUIET))
        for plain, group in groupby(stretch.held, key=self._is_plain):
            some = list(group)
            between = some[ENDS_SHOWN:-ENDS_SHOWN]
            if not plain or len(between) < FOLDED_MIN:
                between = []
            for one in some:
                if one not in between:
                    self._checkpoint(node, one)
                elif one is between[0]:
                    first, last = between[0].entry.manifest.step, between[-1].entry.manifest.step
                    node.add(_text(f"… {len(between)} more clean ones, steps {first} to {last}", QUIET))

    def _is_plain(self, held: Held) -> bool:
        entry, plan = held.entry, self._found.pending
        branches = held.id in self._lines.aside or (plan is not None and plan.target == held.id)
        return entry.health is Health.CLEAN and entry.pinned is None and held.damaged is None and not branches

    def _checkpoint(self, drawn: Tree, held: Held) -> None:
        entry = held.entry
        mark, style = MARKS[entry.health] if held.damaged is None else DAMAGED
        node = drawn.add(_text(f"{mark} step {entry.manifest.step}  {held.id[: self._width]}  {_state(held)}", style))
        self._stretches(node, self._lines.aside.get(held.id, ()))
        plan = self._found.pending
        if plan is not None and plan.target == held.id:
            self._pending(node, plan)

    def _pending(self, drawn: Tree, plan: Plan) -> None:
        how = " (by hand)" if plan.by_hand else ""
        node = drawn.add(_text(f"the next start goes on from step {plan.step}{how}", "bold"))
        _explain(node, plan)


def _explain(node: Tree, plan: Plan) -> None:
    for line in chain((plan.why,) if plan.why != BY_HAND else (), what_of(plan)):
        node.add(_text(line, QUIET))


def _text(line: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(printable(line), style=style)  # Text, never str: what stands in square brackets is not markup


def _state(held: Held) -> str:
    entry = held.entry
    words = [entry.health.value if not entry.judged_why else f"{entry.health.value} ({entry.judged_why})"]
    if held.damaged is not None:
        words.append(f"damaged ({held.damaged})")
    if entry.pinned is not None:
        words.append(f"pinned ({entry.pinned})")
    return ", ".join(words)


def _headline(stretch: Stretch) -> str:
    words = [f"attempt {stretch.attempt}"]
    if stretch.time is not None:
        words.append(f"{moment(stretch.time)} UTC")
    words.append(_origin(stretch))
    if stretch.until is not None or stretch.ended is not None:
        at = "" if stretch.until is None else f" at step {stretch.until}"
        words.append(f"{stretch.ended}{at}" if stretch.ended is not None else f"last heard of{at}")
    return ", ".join(words)


def _origin(stretch: Stretch) -> str:
    plan = stretch.plan
    if plan is not None:
        how = "by hand" if plan.by_hand else f"rollback {plan.number}"
        return f"back at step {plan.step} ({how})"
    match stretch.began:
        case "anew":
            return "begun anew"
        case "unknown":
            return "where it began is not known"
    if stretch.source is None:
        return f"on from checkpoint {stretch.source_id}, which is there no more"
    step = stretch.source.entry.manifest.step
    return f"on from step {step}" if stretch.source.id == stretch.source_id else f"on from step {step} or after it"


def _fields(found: History) -> dict[str, Any]:
    return {
        "task": found.task,
        "stretches": list(_stretch_fields(found.stretches)),
        "pending": None if found.pending is None else plan_fields(found.pending),
    }


def _stretch_fields(stretches: Sequence[Stretch]) -> Iterator[Mapping[str, Any]]:
    for one in stretches:
        yield {
            "attempt": one.attempt,
            "rollback": one.number,
            "time": one.time,
            "began": one.began,
            "source": one.source_id,
            "plan": None if one.plan is None else plan_fields(one.plan),
            "until": one.until,
            "ended": one.ended,
            "checkpoints": [
                {
                    "id": held.id,
                    "step": held.entry.manifest.step,
                    "health": held.entry.health.value,
                    "why": held.entry.judged_why,
                    "pinned": held.entry.pinned,
                    "damaged": held.damaged,
                }
                for held in one.held
            ],
        }
