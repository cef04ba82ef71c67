"""The words of `mementum config`: its commands and their help."""

from __future__ import annotations

from typing import Annotated

import typer

from mementum.cli.failing import told
from mementum.cli.words import AsJson

config = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show, describe and check configurations: YAML files and presets.",
)
Configuration = Annotated[
    str, typer.Argument(metavar="FILE", help="A YAML file, or a preset: pretrain, finetune, rlhf, inference.")
]


@config.command("show")
def config_show(
    source: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A YAML file, or a preset. Without it: what holds if nothing is said."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the effective settings as YAML, each with where it is from, and what becomes of keys without effect."""
    with told(as_json):
        from mementum.cli.configuring import show as work

        code = work(source, as_json=as_json)
    raise typer.Exit(code)


@config.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration, which editors complete and check by."""
    with told(True):
        from mementum.cli.configuring import describe as work

        code = work()
    raise typer.Exit(code)


@config.command("check")
def config_check(source: Configuration, as_json: AsJson = False) -> None:
    """Tell everything that is wrong with a configuration."""
    with told(as_json):
        from mementum.cli.configuring import check as work

        code = work(source, as_json=as_json)
    raise typer.Exit(code)
