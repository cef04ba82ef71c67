"""Rolling back by hand: `mementum rollback`, which writes what the next start of a task does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from mementum.branching import Branch, cancel_rollback, planned, rollback
from mementum.catalog.plans import Plan
from mementum.cli.failing import OK, warn
from mementum.cli.onlooking import Onlooker
from mementum.cli.reading import look
from mementum.cli.recalling import home_of
from mementum.cli.scanning import scan
from mementum.cli.surveying import holder
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.clock import SystemClock
from mementum.errors import UsageError
from mementum.records import Health, record
from mementum.rooting import local_folder

STRETCH = re.compile(r"(\d{1,19}):(\d{1,19})")
INDENT = "  "


@record
class Words:
    """The options, as they were given."""

    to: str | None = None
    skip_batches: Sequence[str] = ()
    lr_scale: float = 1.0
    force: bool = False
    dry_run: bool = False
    cancel: bool = False


def roll_back(root: str, task: str | None, words: Words, *, as_json: bool) -> int:
    """Write the plan, or take one back, and print it; the exit code."""
    if (words.to is None) is not words.cancel:
        raise UsageError(
            "say where to go back to with --to, or take a plan back with --cancel: one of the two",
            next_command="mementum rollback --help",
        )
    folder, name = local_folder(root), home_of(look(root), task).task
    if words.cancel:
        if words.skip_batches or words.lr_scale != 1.0 or words.force or words.dry_run:
            raise UsageError("--cancel takes no other option", next_command="mementum rollback --help")
        plan = cancel_rollback(folder, name)
        print(rendered({"task": name, "cancelled": plan_fields(plan)}) if as_json else _cancelled(name, plan))
        return OK
    given: dict[str, Any] = {
        "to": words.to,
        "skip_batches": [_stretch(text) for text in words.skip_batches],
        "lr_scale": words.lr_scale,
        "force": words.force,
    }
    decide = partial(planned, clock=SystemClock()) if words.dry_run else rollback
    branch = decide(folder, name, **given)
    held = _held(root, branch)
    if as_json:
        print(rendered(_fields(branch, held, dry_run=words.dry_run)))
    else:
        print("\n".join(printable(line) for line in _lines(root, branch, dry_run=words.dry_run)))
        if held is not None:
            warn(f"note: {held}: it is not disturbed, and the plan is for the start after it")
    return OK


def _stretch(text: str) -> range:
    found = STRETCH.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text!r} names no steps whose batches can be left out",
            next_command="write --skip-batches A:B, the first step and the one after the last",
        )
    return range(int(found[1]), int(found[2]))


def _held(root: str, branch: Branch) -> str | None:
    """Who trains the task now, in words."""
    scanned = next(one for one in scan(local_folder(root), Onlooker()) if one.home == branch.home)
    found = holder(scanned)
    return found.what if found.kind == "held" else None


def _lines(root: str, branch: Branch, *, dry_run: bool) -> Iterator[str]:
    plan, target = branch.plan, branch.target
    health = "" if target.health is Health.CLEAN else f", {target.health.value}"
    yield f"the next start of {branch.task} goes on from step {plan.step} (checkpoint {plan.target}{health})"
    if plan.from_step is not None:
        newest = branch.newest.manifest
        yield f"{INDENT}what was saved after it stays where it is; the newest is of step {newest.step} ({newest.id})"
    yield from (f"{INDENT}{line}" for line in what_of(plan))
    if branch.pins:
        yield f"{INDENT}that checkpoint is pinned: it is not removed until a rollback by hand goes to another"
    if branch.suspect:
        steps = ", ".join(str(one.manifest.step) for one in branch.suspect)
        yield f"{INDENT}{counted(len(branch.suspect), 'checkpoint')} after these batches become suspect: steps {steps}"
    words = f"{shlex.quote(root)} {shlex.quote(branch.task)}"
    if dry_run:
        yield "nothing was written; the same without --dry-run writes it"
    else:
        yield f"next: start the training as before; `mementum rollback {words} --cancel` takes the plan back"


def what_of(plan: Plan) -> Iterator[str]:
    """What a plan changes besides the place, a line each."""
    for detour in plan.skips:
        batches = "the batch of a step is" if detour.groups == 1 else f"the batches of {detour.groups} steps are"
        yield f"{batches} left out before step {detour.at_step}"
    if plan.lr_scale != 1.0:
        yield f"learning rates are {plan.lr_scale:g} of those that were stored there"


def _cancelled(task: str, plan: Plan) -> str:
    return printable(f"the next start of {task} does not go back to step {plan.step}; it goes on from what is newest")


def _fields(branch: Branch, held: str | None, *, dry_run: bool) -> dict[str, Any]:
    return {
        "task": branch.task,
        "plan": plan_fields(branch.plan),
        "pinned": branch.pins,
        "suspect": [one.manifest.id for one in branch.suspect],
        "held": held,
        "written": not dry_run,
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    return {
        "checkpoint": plan.target,
        "step": plan.step,
        "from_step": plan.from_step,
        "onset": plan.onset,
        "seen": plan.seen,
        "number": plan.number,
        "skips": [[detour.at_step, detour.groups] for detour in plan.skips],
        "lr_scale": plan.lr_scale,
        "attempt": plan.attempt,
        "by_hand": plan.by_hand,
        "why": plan.why,
        "time": plan.time,
    }
