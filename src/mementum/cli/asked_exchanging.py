"""The words of the commands that exchange checkpoints with other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson, One, Root


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
