"""The words of the commands about what stays, what goes, and where copies lie."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson, DryRun, One, OnlyTask, Root, SomeTask

Which = Annotated[str, typer.Argument(metavar="ADDRESS", help="The checkpoint: TASK, TASK@SEL or @SEL, as for show.")]
Owner = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Whose pin it is. Without it: the user and host that run this."),
]


def du(root: Root, task: SomeTask = None, as_json: AsJson = False) -> None:
    """Show how many bytes lie where: by task, level and tier, what is shared, and what could be freed."""
    with told(as_json):
        from mementum.cli.weighing import du as work

        code = work(root, task, as_json=as_json)
    raise typer.Exit(code)


def pin(
    root: Root,
    address: Which,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why it must stay. Everybody sees it.")],
    by: Owner = None,
    as_json: AsJson = False,
) -> None:
    """Let a checkpoint stay, whatever retention would do."""
    with told(as_json):
        from mementum.cli.pinning import pin as work

        code = work(root, address, why=why, by=by, as_json=as_json)
    raise typer.Exit(code)


def unpin(root: Root, address: Which, by: Owner = None, as_json: AsJson = False) -> None:
    """Take a pin back. Pins of others stay."""
    with told(as_json):
        from mementum.cli.pinning import unpin as work

        code = work(root, address, by=by, as_json=as_json)
    raise typer.Exit(code)


def place(
    root: Root,
    address: One = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The tier: s3://bucket/prefix, redis://host or a folder.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="The tier that has it; ADDRESS is one of its checkpoints."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint to a tier, or from a tier into the root."""
    with told(as_json):
        from mementum.cli.moving import place as work

        code = work(root, address, to=to, source=source, as_json=as_json)
    raise typer.Exit(code)


def forget(
    root: Root,
    last: Annotated[int, typer.Option("--keep-last", metavar="N", help="Keep the newest N.")],
    task: OnlyTask = None,
    every: Annotated[
        int | None, typer.Option("--keep-every", metavar="N", help="Keep those whose step is a multiple of N, too.")
    ] = None,
    spread: Annotated[
        int, typer.Option("--keep-spread", metavar="N", help="Keep N older clean ones, too, further and further back.")
    ] = 0,
    best: Annotated[int, typer.Option("--keep-best", metavar="N", help="Keep the best N, too; 1 as if not given.")] = 1,
    best_of: Annotated[
        str, typer.Option("--best-of", metavar="METRIC", help="By what they are the best: loss, or -acc.")
    ] = "loss",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove checkpoints of a task by a policy, each with its reason. What is protected stays."""
    with told(as_json):
        from mementum.cli.forgetting import Words
        from mementum.cli.forgetting import forget as work

        words = Words(last=last, every=every, spread=spread, best=best, best_of=best_of, dry_run=dry_run)
        code = work(root, task, words, as_json=as_json)
    raise typer.Exit(code)


def gc(
    root: Root,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="SHARE", help="Free room until the disk is used to no more than this: 70%."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Free room: what was left half done, then, with --to, the checkpoints that are worth least."""
    with told(as_json):
        from mementum.cli.freeing import gc as work

        code = work(root, to=to, dry_run=dry_run, as_json=as_json)
    raise typer.Exit(code)
