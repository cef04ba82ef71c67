"""Forgetting: `mementum forget`, which removes by a policy that is given, each checkpoint with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mementum.catalog.tasks import TaskHome
from mementum.clearing import Cleared, forget_now
from mementum.cli.failing import ERROR, OK, warn
from mementum.cli.listing import id_width
from mementum.cli.reading import look
from mementum.cli.recalling import home_of
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, printable, size
from mementum.clock import Clock, SystemClock
from mementum.decide.retain import Retention
from mementum.errors import UsageError
from mementum.events import Event, Failed
from mementum.opening import open_catalog
from mementum.records import record
from mementum.rooting import local_folder
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HEAD = ("step", "id", "size", "", "why")
RIGHT = frozenset({"step", "size"})
LAST_MIN = 1  # to keep none of the newest is to remove a task, which is no policy


@record
class Words:
    """The options, as they were given."""

    last: int
    every: int | None = None
    spread: int = 0
    best: int = 1
    best_of: str = "loss"
    dry_run: bool = False


class Heard:
    """What went wrong with single checkpoints while others were removed: told at once, and counted."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.failed += 1
            warn(f"warning: {event.what} failed: {event.error} (kept: {event.kept})")


def forget(root: str, task: str | None, words: Words, *, as_json: bool, clock: Clock | None = None) -> int:
    """Remove what the policy does not keep, and print what went and what stays; the exit code."""
    folder, retention = local_folder(root), _retention(words)
    home, heard = home_of(look(root), task), Heard()
    cleared = _forget(folder, home, retention, words, clock or SystemClock(), heard)
    if as_json:
        fields = {"task": home.task, "dry_run": words.dry_run, "freed": cleared.freed, **verdict_fields(cleared)}
        print(rendered(fields))
    else:
        print("\n".join(printable(line) for line in verdict_lines(cleared)))
        removed = counted(sum(not verdict.keep for verdict in cleared.verdicts), "checkpoint")
        would = "would be removed, nothing was" if words.dry_run else "removed"
        print(f"{removed} of {len(cleared.verdicts)} {would}: {size(cleared.freed)}")
    return ERROR if heard.failed else OK


def _retention(words: Words) -> Retention:
    for option, value, least in (
        ("--keep-last", words.last, LAST_MIN),
        ("--keep-every", 1 if words.every is None else words.every, 1),
        ("--keep-spread", words.spread, 0),
        ("--keep-best", words.best, 0),
    ):
        if value < least:
            raise UsageError(f"{option}: {value} is less than {least}", next_command="mementum forget --help")
    if not words.best_of.removeprefix("-"):
        raise UsageError("--best-of: a metric has a name", next_command="write --best-of loss, or -acc: more is better")
    return Retention(
        last=words.last, every_steps=words.every, spread=words.spread, best=words.best, best_of=words.best_of
    )


def _forget(folder: Path, home: TaskHome, retention: Retention, words: Words, clock: Clock, heard: Heard) -> Cleared:
    store = LocalStore(PosixDisk(), f"{folder}/{home.home}")
    catalog = open_catalog(folder, emit=heard)
    try:
        return forget_now(store, home.home, catalog, retention, clock=clock, emit=heard, dry_run=words.dry_run)
    finally:
        catalog.close()


def verdict_lines(cleared: Cleared) -> Iterator[str]:
    """A table of what stays and what goes, newest first, each with its reason."""
    entries = {entry.manifest.id: entry for entry in cleared.entries}
    shown = [verdict for verdict in cleared.verdicts if verdict.id in entries]
    width = id_width([verdict.id for verdict in shown])
    rows = []
    for verdict in shown:
        manifest = entries[verdict.id].manifest
        word = "keep" if verdict.keep else "remove"
        rows.append((str(manifest.step), verdict.id[:width], size(manifest.size), word, verdict.reason))
    if rows:
        yield from columns(HEAD, rows, right=RIGHT)


def verdict_fields(cleared: Cleared) -> dict[str, Any]:
    """The same for programs."""
    entries = {entry.manifest.id: entry for entry in cleared.entries}
    return {
        "verdicts": [
            {
                "checkpoint": verdict.id,
                "step": entries[verdict.id].manifest.step,
                "size": entries[verdict.id].manifest.size,
                "keep": verdict.keep,
                "reason": verdict.reason,
            }
            for verdict in cleared.verdicts
        ]
    }
