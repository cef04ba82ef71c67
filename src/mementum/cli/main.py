"""The command line: which commands there are. Their words stand in files of their own, and so does each one's work."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from mementum.cli.asked_exchanging import export, import_
from mementum.cli.asked_keeping import du, forget, gc, pin, place, unpin
from mementum.cli.asked_looking import diff, ls, show, trace, tree, why
from mementum.cli.asked_proving import doctor, rebuild, repair, verify
from mementum.cli.asked_running import drain, plan, rollback
from mementum.cli.config import config

COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (  # in the order of the help
    ("ls", ls),
    ("show", show),
    ("why", why),
    ("trace", trace),
    ("tree", tree),
    ("diff", diff),
    ("du", du),
    ("pin", pin),
    ("unpin", unpin),
    ("place", place),
    ("forget", forget),
    ("gc", gc),
    ("verify", verify),
    ("repair", repair),
    ("doctor", doctor),
    ("rebuild", rebuild),
    ("plan", plan),
    ("rollback", rollback),
    ("drain", drain),
    ("export", export),
    ("restore", export),
    ("import", import_),
)

# Help without rich, and plain tracebacks for our own mistakes: importing rich for either doubles the time to start.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Look at the checkpoints of training runs, and prove them.",
    epilog="Exit codes: 0 well, 1 error, 2 wrong words, 3 damage found, 4 no such checkpoint.",
)


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


for name, command in COMMANDS:
    app.command(name)(command)
app.add_typer(config, name="config")


def main() -> None:
    """Run the command that stands in `sys.argv`. Names that the terminal's encoding lacks are shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="mementum")
