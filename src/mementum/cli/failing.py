"""Failing: errors as a person or a program reads them, and the exit code that each one has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mementum.cli.text import as_json, printable
from mementum.errors import (
    CheckpointDamaged,
    MementumError,
    NoSuchAddress,
    NothingToResume,
    UnknownFormat,
    UsageError,
)

OK, ERROR, USAGE, INTEGRITY, NOTHING = range(5)

# The first that fits decides, so that what is narrower stands first.
CODES: tuple[tuple[type[MementumError], int], ...] = (
    (NoSuchAddress, NOTHING),
    (NothingToResume, NOTHING),
    (UsageError, USAGE),
    (CheckpointDamaged, INTEGRITY),
    (UnknownFormat, INTEGRITY),
    (MementumError, ERROR),
)


def exit_code(error: MementumError) -> int:
    return next(code for kind, code in CODES if isinstance(error, kind))


@contextmanager
def told(json_too: bool) -> Iterator[None]:
    """Tell errors of the body on stderr, with JSON also on stdout, and leave with their exit code."""
    try:
        yield
    except MementumError as error:
        _tell(error, exit_code(error), json_too)
        raise typer.Exit(exit_code(error)) from None
    except BrokenPipeError:  # whoever reads has seen enough; the framework ends quietly
        raise
    except OSError as cause:
        where = f"{cause.filename}: " if cause.filename is not None else ""
        _tell(MementumError(f"{where}{cause.strerror or cause}", kept="everything"), ERROR, json_too)
        raise typer.Exit(ERROR) from None


def _tell(error: MementumError, code: int, json_too: bool) -> None:
    warn(str(error))
    if json_too:
        fields = {
            "kind": type(error).__name__,
            "message": error.message,
            "kept": error.kept,
            "next": error.next_command,
            "exit_code": code,
        }
        print(as_json({"error": fields}))


def warn(text: str) -> None:
    """Lines on stderr, with nothing in them that a terminal would obey."""
    for line in text.split("\n"):
        print(printable(line), file=sys.stderr)
