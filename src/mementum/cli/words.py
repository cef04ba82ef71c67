"""Words that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs; an error is an object too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")]
ROOT = typer.Argument(
    metavar="ROOT", help="The folder that was given to open_run, or the url of a tier: s3://bucket/prefix."
)
Root = Annotated[str, ROOT]
SomeRoot = Annotated[str | None, ROOT]
OnlyTask = Annotated[str | None, typer.Argument(metavar="TASK", help="Without it: the only task of the root.")]
SomeTask = Annotated[str | None, typer.Argument(metavar="TASK", help="Without it: all tasks of the root.")]
One = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS",
        help="TASK, TASK@SEL or @SEL; SEL is latest, exact, clean, best[:METRIC], a step, or the beginning of an id. "
        "Without it: the latest of the only task.",
    ),
]
Several = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS",
        help="TASK@SEL or @SEL for one checkpoint, TASK for all of a task. Without it: all of the root.",
    ),
]
