"""A finding: one thing that is said of a root, how grave it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from mementum.cli.failing import ERROR, INTEGRITY, NOTHING, OK
from mementum.records import record


class Severity(StrEnum):
    """A problem keeps a run from coming back, or would; a warning may; a note is good to know."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@record
class Finding:
    """`kind` is a word for programs. `task` is None where it is of the root as a whole."""

    severity: Severity
    kind: str
    what: str
    task: str | None = None
    next_command: str | None = None


CODES: Mapping[str, int] = {"damaged": INTEGRITY, "unreadable": INTEGRITY, "nothing": NOTHING}  # other problems: ERROR
GRAVEST = (INTEGRITY, NOTHING, ERROR)  # damage is also why there is nothing, and that is worse than a full disk


def exit_code(findings: Iterable[Finding]) -> int:
    """That of the gravest problem."""
    codes = {CODES.get(one.kind, ERROR) for one in findings if one.severity is Severity.PROBLEM}
    return next((code for code in GRAVEST if code in codes), OK)
