"""Doctoring: `mementum doctor`, which explains a root that will not resume, and changes nothing in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mementum.catalog.tasks import DAY, HOME
from mementum.cli import surveying
from mementum.cli.examining import checkpoints
from mementum.cli.finding import Finding, Severity, exit_code
from mementum.cli.onlooking import Onlooker
from mementum.cli.scanning import Scanned, entries, scan
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.errors import NoSuchAddress
from mementum.rooting import local_folder

INDENT = " " * 10  # the width of a severity, and two spaces


def doctor(root: str, task: str | None, *, deep: bool, as_json: bool) -> int:
    """Print every finding with what to do next; the exit code is that of the gravest problem."""
    folder = local_folder(root)
    findings = tuple(diagnose(folder, task, deep=deep))
    if as_json:
        print(rendered({"root": str(folder), "findings": [_fields(one) for one in findings]}))
    else:
        print("\n".join(printable(line) for line in _lines(folder, findings)))
    return exit_code(findings)


def diagnose(root: Path, task: str | None, *, deep: bool) -> Iterator[Finding]:
    """All that can be said of a root, or of one task in it. NoSuchAddress names the tasks that there are."""
    disk = Onlooker()
    every = scan(root, disk)
    meant = every if task is None else _named(every, task)
    if not every:
        yield _empty(root)
        return
    for scanned in meant:
        held = surveying.holder(scanned)
        yield held
        yield from checkpoints(scanned, entries(scanned), deep=deep)
        yield from surveying.leftovers(scanned, disk, held=held.kind == "held")
        yield from surveying.nameless(scanned)
    yield from surveying.doubled(every)
    yield from surveying.foreign(root, every, disk)
    yield from surveying.permissions(root, meant, disk)
    yield from surveying.space(root, meant)
    yield from surveying.network(root)
    yield surveying.catalog(root, every, disk)
    yield from surveying.refused(disk)


def _named(every: Sequence[Scanned], task: str) -> tuple[Scanned, ...]:
    meant = tuple(scanned for scanned in every if scanned.name == task)
    if not meant:
        known = ", ".join(sorted({repr(scanned.name) for scanned in every})) or "none"
        raise NoSuchAddress(f"there is no task {task!r}; there are: {known}", next_command="mementum doctor ROOT")
    return meant


def _empty(root: Path) -> Finding:
    """No task at all. Who gives a folder inside of a root is told the root."""
    inside = root
    while HOME.fullmatch(inside.name) or DAY.fullmatch(inside.name):
        inside = inside.parent
    next_command = f"mementum doctor {inside}" if inside != root else "give the folder that open_run was given"
    return Finding(
        severity=Severity.PROBLEM, kind="nothing", what="it holds no tasks of mementum", next_command=next_command
    )


def _lines(root: Path, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"{root}"
    for one in findings:
        of = "" if one.task is None else f"{one.task}: "
        yield f"{one.severity.value:<{len(INDENT)}}{of}{one.what}"
        if one.next_command is not None:
            yield f"{INDENT}next: {one.next_command}"
    counts = Counter(one.severity for one in findings)
    grave = ((Severity.PROBLEM, "problem"), (Severity.WARNING, "warning"), (Severity.NOTE, "note"))
    yield ", ".join(counted(counts[severity], noun) for severity, noun in grave)


def _fields(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "kind": finding.kind,
        "task": finding.task,
        "what": finding.what,
        "next": finding.next_command,
    }
