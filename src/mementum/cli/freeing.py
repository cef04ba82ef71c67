"""Freeing: `mementum gc`, which makes room: what was left half done first, then what is worth least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mementum.catalog.catalog import Catalog
from mementum.catalog.tasks import TaskHome
from mementum.clearing import FULL, Cleared, bytes_over, clear_leftovers, free, shared_out
from mementum.cli.failing import ERROR, OK, warn
from mementum.cli.forgetting import Heard, verdict_fields, verdict_lines
from mementum.cli.reading import Contents, look
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable, size
from mementum.clock import Clock, SystemClock
from mementum.config import quantities
from mementum.errors import UsageError
from mementum.opening import open_catalog
from mementum.records import record
from mementum.rooting import local_folder
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

ROUNDS = 4  # in which tasks that can give more make up for those that cannot; each finds at least one that cannot
INDENT = "  "
KEYS_SHOWN = 10  # leftovers of a task; the JSON has all


@record
class Freed:
    """What one task gives: leftovers, and checkpoints where room was asked for."""

    task: str
    left: Cleared
    gave: Cleared | None


def gc(root: str, *, to: str | None, dry_run: bool, as_json: bool, clock: Clock | None = None) -> int:
    """Make room, and print what went; the exit code. `to`: how much of the disk may be used, as a share."""
    folder = local_folder(root)
    share = None if to is None else _share(to)
    contents, time, heard = look(root), clock or SystemClock(), Heard()
    left = [
        clear_leftovers(folder, home.task, _store(folder, home), clock=time, emit=heard, dry_run=dry_run)
        for home in contents.homes
    ]
    need = 0 if share is None else _need(folder, share, left, dry_run=dry_run)
    gave = _evict(folder, contents, need, dry_run=dry_run, clock=time, heard=heard) if need else None
    if gave is not None:
        left = [
            _again(folder, home, one, clock=time, heard=heard) for home, one in zip(contents.homes, left, strict=True)
        ]
    for one in left:
        if one.held is not None:
            warn(f"note: {one.held}: what saves have left half done stays for its next start")
    full = any(one.held == FULL for one in left)
    if full:
        warn("next: `mementum gc ROOT --to 90%` removes what is worth least first, and makes room for that")
    freed = [
        Freed(task=home.task, left=left[number], gave=None if gave is None else gave[number])
        for number, home in enumerate(contents.homes)
    ]
    missing = max(0, need - sum(one.gave.freed for one in freed if one.gave is not None))
    if as_json:
        print(rendered(_fields(folder, freed, need, missing, dry_run=dry_run)))
    else:
        print("\n".join(printable(line) for line in _lines(folder, freed, need, to, dry_run=dry_run)))
    if missing:
        warn(f"{size(missing)} are missing: all that is left is protected, or of other programs")
    return ERROR if missing or heard.failed or full else OK


def _share(to: str) -> float:
    try:
        return quantities.share(to if to.strip().endswith("%") else float(to))
    except ValueError as error:
        raise UsageError(
            f"--to: {to[:60]!r} is no share of a disk; expected such as 70% or 0.7", next_command="mementum gc --help"
        ) from error


def _again(folder: Path, home: TaskHome, left: Cleared, *, clock: Clock, heard: Heard) -> Cleared:
    """Leftovers for which the disk was too full, once checkpoints have made room."""
    if left.held != FULL:
        return left
    return clear_leftovers(folder, home.task, _store(folder, home), clock=clock, emit=heard, dry_run=False)


def _store(folder: Path, home: TaskHome) -> LocalStore:
    return LocalStore(PosixDisk(), f"{folder}/{home.home}")


def _need(folder: Path, share: float, left: Sequence[Cleared], *, dry_run: bool) -> int:
    """What must still come free; in a dry run the leftovers lie there still."""
    return max(0, bytes_over(folder, share) - (sum(one.freed for one in left) if dry_run else 0))


def _evict(
    folder: Path, contents: Contents, need: int, *, dry_run: bool, clock: Clock, heard: Heard
) -> tuple[Cleared, ...]:
    """Every task gives by what it holds. What one cannot give, others do: that is found out first, and done then."""
    catalog = open_catalog(folder, emit=heard)
    try:
        held = [sum(one.entry.manifest.size for one in contents.of_home(home)) for home in contents.homes]
        wanted = list(shared_out(need, held))
        for _ in range(ROUNDS):
            found = _asked(folder, contents, catalog, wanted, dry_run=True, clock=clock, heard=heard)
            able = [0 if one.missing else size_ for one, size_ in zip(found, held, strict=True)]
            short = sum(one.missing for one in found)
            if not short or not any(able):
                break
            wanted = [
                one.freed if one.missing else asked + more
                for one, asked, more in zip(found, wanted, shared_out(short, able), strict=True)
            ]
        return found if dry_run else _asked(folder, contents, catalog, wanted, dry_run=False, clock=clock, heard=heard)
    finally:
        catalog.close()


def _asked(
    folder: Path,
    contents: Contents,
    catalog: Catalog,
    wanted: Sequence[int],
    *,
    dry_run: bool,
    clock: Clock,
    heard: Heard,
) -> tuple[Cleared, ...]:
    return tuple(
        free(_store(folder, home), home.home, catalog, need=need, clock=clock, emit=heard, dry_run=dry_run)
        for home, need in zip(contents.homes, wanted, strict=True)
    )


def _lines(folder: Path, freed: Sequence[Freed], need: int, to: str | None, *, dry_run: bool) -> Iterator[str]:
    for one in freed:
        yield one.task
        for key in one.left.leftovers[:KEYS_SHOWN]:
            yield f"{INDENT}left half done: {key}"
        if len(one.left.leftovers) > KEYS_SHOWN:
            yield f"{INDENT}and {len(one.left.leftovers) - KEYS_SHOWN} more"
        if one.gave is not None:
            yield from (INDENT + line for line in verdict_lines(one.gave))
        if not one.left.leftovers and one.gave is None:
            yield f"{INDENT}nothing was left half done"
    yield f"the disk of {folder} is used to {PosixDisk().usage(str(folder)).share:.0%}"
    if to is not None and not need:
        yield f"that is no more than {to}: no checkpoint goes"
    would = "would come free, nothing did" if dry_run else "came free"
    gone = sum(not verdict.keep for one in freed if one.gave is not None for verdict in one.gave.verdicts)
    total = sum(one.left.freed + (0 if one.gave is None else one.gave.freed) for one in freed)
    yield f"{size(total)} {would}: {counted(gone, 'checkpoint')}, {counted(_leftovers(freed), 'leftover')}"


def _leftovers(freed: Sequence[Freed]) -> int:
    return sum(len(one.left.leftovers) for one in freed if one.left.held is None)


def _fields(folder: Path, freed: Sequence[Freed], need: int, missing: int, *, dry_run: bool) -> dict[str, Any]:
    return {
        "root": str(folder),
        "dry_run": dry_run,
        "need": need,
        "missing": missing,
        "tasks": [
            {
                "task": one.task,
                "leftovers": list(one.left.leftovers),
                "held": one.left.held,
                "freed": one.left.freed + (0 if one.gave is None else one.gave.freed),
                **({"verdicts": []} if one.gave is None else verdict_fields(one.gave)),
            }
            for one in freed
        ],
    }
