"""Draining: `mementum drain`, which carries what dead runs have left in shared memory to their root."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mementum import draining, ram
from mementum.catalog.tasks import tasks
from mementum.cli.failing import OK, warn
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.clock import Clock, SystemClock
from mementum.draining import Drained
from mementum.errors import MementumError, NoSuchAddress
from mementum.events import Event, Failed, Note, PassedOver
from mementum.rooting import local_folder
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def drain(root: str, task: str | None, *, as_json: bool) -> int:
    """Drain one task, or all that have something to carry, and print what was done; the exit code.

    If one of several fails, the others are drained all the same, and its error is raised at the end."""
    folder = local_folder(root)
    _require_ours(folder, task)
    meant = ram.tasks_with_leftovers(folder) if task is None else (task,)
    done, failed = _drained(folder, meant, SystemClock())
    if as_json and failed is None:
        print(rendered({"root": str(folder), "tasks": [_fields(folder, one) for one in done]}))
    elif not as_json:
        print("\n".join(printable(line) for line in _lines(folder, done, failed=failed is not None)))
    if failed is not None:
        raise failed
    return OK


def _require_ours(folder: Path, task: str | None) -> None:
    """A task that is not there is a slip of the pen: to drain it would make it."""
    known = sorted({home.task for home in tasks(LocalStore(PosixDisk(), str(folder)))})
    if not known:
        raise NoSuchAddress(
            f"{folder} holds no tasks of mementum", next_command="give the folder that open_run was given"
        )
    if task is not None and task not in known:
        names = ", ".join(map(repr, known))
        raise NoSuchAddress(f"there is no task {task!r}; there are: {names}", next_command="mementum ls ROOT")


def _drained(folder: Path, meant: Sequence[str], clock: Clock) -> tuple[list[Drained], MementumError | None]:
    done: list[Drained] = []
    failed: MementumError | None = None
    for task in meant:
        try:
            done.append(draining.drain(folder, task, clock=clock, emit=_tell))
        except MementumError as error:
            if failed is not None:  # the last one is told by who called
                warn(str(failed))
            failed = error
    return done, failed


def _tell(event: Event) -> None:
    """What a person should know of it."""
    match event:
        case PassedOver():
            warn(f"warning: {event.id} is passed over: {event.what}")
        case Failed():
            warn(f"warning: {event.what} failed: {event.error} (kept: {event.kept})")
        case Note():
            warn(f"note: {event.text}")


def _lines(folder: Path, done: Sequence[Drained], *, failed: bool) -> Iterator[str]:
    for one in done:
        if one.placed is None:
            yield f"{one.task}: nothing to carry: {one.why}"
        else:
            yield f"{one.task}: step {one.placed.step} is safe as {one.placed.id} in {folder}/{one.folder}"
        if one.removed:
            yield f"{one.task}: {counted(one.removed, 'slot')} of shared memory given back"
    placed = [one for one in done if one.placed is not None]
    if placed:
        first = placed[0]
        yield f"next: mementum verify {shlex.quote(str(folder))} {shlex.quote(first.task)}@latest --deep"
    elif not done and not failed:
        yield "nothing to carry: no process has left a snapshot of a task of this root in memory"


def _fields(folder: Path, one: Drained) -> dict[str, Any]:
    placed = one.placed
    return {
        "task": one.task,
        "checkpoint": None if placed is None else placed.id,
        "step": None if placed is None else placed.step,
        "path": None if placed is None else f"{folder}/{one.folder}",
        "why": one.why,
        "removed": one.removed,
    }
