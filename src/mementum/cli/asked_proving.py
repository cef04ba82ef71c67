"""The words of the commands that look for damage, and mend what they find."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson, DryRun, Root, Several


def verify(
    root: Root,
    address: Several = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte and compare it with its digest, not only sizes and indexes.")
    ] = False,
    tier: Annotated[
        str | None,
        typer.Option("--tier", metavar="NAME|URL", help="Look at the copies on this tier, and record that of them."),
    ] = None,
    as_json: AsJson = False,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not write what was found beside the checkpoints.")
    ] = False,
) -> None:
    """Look for damage in checkpoints, and record what was found."""
    with told(as_json):
        from mementum.cli.proving import verify as work

        code = work(root, address, deep=deep, as_json=as_json, keep=not no_record, tier=tier)
    raise typer.Exit(code)


def repair(
    root: Root,
    address: Several = None,
    where: Annotated[
        str | None,
        typer.Option("--in", metavar="NAME|URL", help="The tier whose copies are repaired. Without it: the root."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="NAME|URL", help="Where good bytes are; may be given again. Without it: all known tiers."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put damaged checkpoints right, bit for bit, from copies on other places."""
    with told(as_json):
        from mementum.cli.repairing import Asked
        from mementum.cli.repairing import repair as work

        asked = Asked(where=where, sources=tuple(source or ()), dry_run=dry_run)
        code = work(root, address, asked, as_json=as_json)
    raise typer.Exit(code)


def doctor(
    root: Root,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Look at this task only. Without it: all of the root.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte of the checkpoints, not only sizes and indexes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Explain a root that will not resume: what is wrong with it, and what to do next. Nothing is changed."""
    with told(as_json):
        from mementum.cli.doctoring import doctor as work

        code = work(root, task, deep=deep, as_json=as_json)
    raise typer.Exit(code)


def rebuild(root: Root, as_json: AsJson = False) -> None:
    """Make the catalog of a root anew from its manifests and journals. No checkpoint is changed."""
    with told(as_json):
        from mementum.cli.rebuilding import rebuild as work

        code = work(root, as_json=as_json)
    raise typer.Exit(code)
