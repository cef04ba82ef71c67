"""The command line: its commands, their words and their help. Each command's work stands in a file of its own."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from mementum.cli.config import AsJson, config
from mementum.cli.failing import told

# Help without rich, and plain tracebacks for our own mistakes: importing rich for either doubles the time to start.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Look at the checkpoints of training runs, and prove them.",
    epilog="Exit codes: 0 well, 1 error, 2 wrong words, 3 damage found, 4 no such checkpoint.",
)

Root = Annotated[str, typer.Argument(metavar="ROOT", help="The folder that was given to open_run.")]
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


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"mementum {version('mementum')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Look at the checkpoints of training runs, and prove them."""


@app.command()
def ls(
    root: Root,
    task: Annotated[str | None, typer.Option("--task", metavar="TASK", help="List this task only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a root, the newest first."""
    with told(as_json):
        from mementum.cli.listing import ls as work

        code = work(root, task=task, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def show(root: Root, address: One = None, as_json: AsJson = False) -> None:
    """Show one checkpoint: why it was made, what it holds, what is known of it."""
    with told(as_json):
        from mementum.cli.showing import show as work

        code = work(root, address, as_json=as_json)
    raise typer.Exit(code)


@app.command()
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


@app.command()
def trace(
    root: Root,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Without it: the only task of the root.")] = None,
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


@app.command()
def verify(
    root: Root,
    address: Several = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte and compare it with its digest, not only sizes and indexes.")
    ] = False,
    as_json: AsJson = False,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not write what was found beside the checkpoints.")
    ] = False,
) -> None:
    """Look for damage in checkpoints, and record what was found."""
    with told(as_json):
        from mementum.cli.proving import verify as work

        code = work(root, address, deep=deep, as_json=as_json, keep=not no_record)
    raise typer.Exit(code)


@app.command()
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


@app.command()
def rebuild(root: Root, as_json: AsJson = False) -> None:
    """Make the catalog of a root anew from its manifests and journals. No checkpoint is changed."""
    with told(as_json):
        from mementum.cli.rebuilding import rebuild as work

        code = work(root, as_json=as_json)
    raise typer.Exit(code)


@app.command()
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


@app.command()
def tree(
    root: Root,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Without it: the only task of the root.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a task's starts and rollbacks as a tree: from which checkpoint each went on, and what became of it."""
    with told(as_json):
        from mementum.cli.attempting import tree as work

        code = work(root, task, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def rollback(
    root: Root,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Without it: the only task of the root.")] = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
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


@app.command()
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


@app.command("restore")
@app.command()
def export(
    root: Root,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The folder to make. It must not be there yet.")],
    form: Annotated[
        str, typer.Option("--as", metavar="FORM", help="The format to make: safetensors, hf, torch or dcp.")
    ],
    address: One = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="This model only. Without it: all that FORM takes.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="PATH", help="For hf: a config.json, or a folder with one and a tokenizer."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a folder of one checkpoint in a format of other programs. `restore` is the same."""
    with told(as_json):
        from mementum.cli.exchanging import export as work

        code = work(root, address, to=to, form=form, model=model, config=config, as_json=as_json)
    raise typer.Exit(code)


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A file of torch.save, a .safetensors file, a Lightning .ckpt, or a folder of transformers.",
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="ROOT", help="The root that gets the checkpoint.")],
    task: Annotated[str, typer.Option("--task", metavar="TASK", help="The task that gets the checkpoint.")],
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", metavar="CLASS", help="The optimizer's class, where the file does not tell it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a foreign one. Nothing in it is run."""
    with told(as_json):
        from mementum.cli.exchanging import import_source as work

        code = work(source, to=to, task=task, optimizer=optimizer, as_json=as_json)
    raise typer.Exit(code)


app.add_typer(config, name="config")


def main() -> None:
    """Run the command that stands in `sys.argv`. Names that the terminal's encoding lacks are shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="mementum")
