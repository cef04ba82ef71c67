"""The words of the commands about what a run does next."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson, DryRun, OnlyTask, Root


def plan(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="The folder that open_run was given, or will be. It need not exist.")
    ],
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="Whose newest checkpoint says how large the state is. Without it: the only one."
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="SIZE", help="Bytes that training changes: 1.2GB, 800MiB.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="N", help="Instead of --state: trained parameters, 124M or 7B.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="NAME", help="For --params: adamw (as if not given), sgd, ….")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="TYPE", help="For --params: fp32 (as if not given), bf16, fp16.")
    ] = None,
    frozen: Annotated[
        str | None, typer.Option("--frozen", metavar="SIZE", help="Bytes of weights beside these that nothing trains.")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="How often to save: 10m (as if not given), 100steps.")
    ] = None,
    step_time: Annotated[
        str | None, typer.Option("--step-time", metavar="TIME", help="How long a step takes: 0.5s, 200ms.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", metavar="N", help="Slots that are wanted: 3 (as if not given), 2 or more.")
    ] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Measure neither memory nor disk. Nothing is written then.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say before a run what its saves will take of memory, time and disk here, and why."""
    with told(as_json):
        from mementum.cli.planning import Words
        from mementum.cli.planning import plan as work

        words = Words(
            state=state,
            params=params,
            optimizer=optimizer,
            dtype=dtype,
            frozen=frozen,
            every=every,
            step_time=step_time,
            slots=slots,
            measure=not no_measure,
        )
        code = work(root, task, words, as_json=as_json)
    raise typer.Exit(code)


def rollback(
    root: Root,
    task: OnlyTask = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="SEL", help="The checkpoint to go back to: a step, clean, an id, as in ADDRESS."),
    ] = None,
    skip_batches: Annotated[
        list[str] | None,
        typer.Option("--skip-batches", metavar="A:B", help="Leave out the batches of steps A to B-1. May be repeated."),
    ] = None,
    lr_scale: Annotated[
        float, typer.Option("--lr-scale", metavar="X", help="Multiply the stored learning rates by X.")
    ] = 1.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also to one that is not clean, or past what memory alone has.")
    ] = False,
    dry_run: DryRun = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back the plan that no start has done yet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let the next start of a task go on from an older checkpoint. No checkpoint is removed."""
    with told(as_json):
        from mementum.cli.rolling_back import Words
        from mementum.cli.rolling_back import roll_back as work

        words = Words(
            to=to,
            skip_batches=tuple(skip_batches or ()),
            lr_scale=lr_scale,
            force=force,
            dry_run=dry_run,
            cancel=cancel,
        )
        code = work(root, task, words, as_json=as_json)
    raise typer.Exit(code)


def drain(
    root: Root,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Drain this task only. Without it: all that left something.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Carry the newest snapshot that a dead run has left in shared memory to its root, as a checkpoint."""
    with told(as_json):
        from mementum.cli.draining import drain as work

        code = work(root, task, as_json=as_json)
    raise typer.Exit(code)
