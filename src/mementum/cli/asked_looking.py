"""The words of the commands that look at what a root holds."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson, One, OnlyTask, Root, SomeRoot


def ls(
    root: SomeRoot = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog", metavar="URL", help="List what a catalog that many runs share knows of all their roots."
        ),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="TASK", help="List this task only.")] = None,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="TEST",
            help="List what passes: 'loss<2.1', 'step>=1000 and health==clean', pinned. All of several.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a root, or of a catalog, the newest first."""
    with told(as_json):
        from mementum.cli.sharing import ls as work

        code = work(root, catalog, task=task, as_json=as_json, wanted=tuple(wanted or ()))
    raise typer.Exit(code)


def show(root: Root, address: One = None, as_json: AsJson = False) -> None:
    """Show one checkpoint: why it was made, what it holds, what is known of it."""
    with told(as_json):
        from mementum.cli.showing import show as work

        code = work(root, address, as_json=as_json)
    raise typer.Exit(code)


def why(
    root: Root,
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="TASK@SEL or @SEL, as for show; or TASK@STEP of a step that was not saved."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Say why a checkpoint was saved, or why none was at a step, and what was seen there."""
    with told(as_json):
        from mementum.cli.explaining import why as work

        code = work(root, address, as_json=as_json)
    raise typer.Exit(code)


def diff(
    root: Root,
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint, as an address: TASK@SEL or @SEL.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The one that it is compared with.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the tensors that differ, and say how far their numbers are apart.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what of two checkpoints is not the same: facts, settings, code, tensors, context."""
    with told(as_json):
        from mementum.cli.comparing import diff as work

        code = work(root, a, b, deep=deep, as_json=as_json)
    raise typer.Exit(code)


def trace(
    root: Root,
    task: OnlyTask = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="N", help="This attempt only. Without it: of each step the newest."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option("--every", metavar="N", help="Every Nth row, and the last. Without it the table is made to fit."),
    ] = None,
    first: Annotated[int | None, typer.Option("--from", metavar="STEP", help="From this step on.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="STEP", help="Up to this step.")] = None,
    newest: Annotated[int | None, typer.Option("--last", metavar="N", help="The newest N rows only.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print all columns as CSV.")] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw a PNG. The file must not be there yet.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the vital signs that a task's attempts have recorded, with saves and alarms."""
    with told(as_json):
        from mementum.cli.tracing import Words
        from mementum.cli.tracing import trace as work

        words = Words(attempt=attempt, every=every, first=first, last=last, newest=newest, csv=csv, plot=plot)
        code = work(root, task, words, as_json=as_json)
    raise typer.Exit(code)


def tree(
    root: Root,
    task: OnlyTask = None,
    as_json: AsJson = False,
) -> None:
    """Show a task's starts and rollbacks as a tree: from which checkpoint each went on, and what became of it."""
    with told(as_json):
        from mementum.cli.attempting import tree as work

        code = work(root, task, as_json=as_json)
    raise typer.Exit(code)
