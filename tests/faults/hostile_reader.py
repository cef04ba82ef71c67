"""A process that reads forged roots while its memory is limited and every path that it touches is noted.

Run as `hostile_reader.py FOLDER`: reads every root in FOLDER/roots, and prints JSON: for each root the errors that are
none of ours, and all paths touched outside of it."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_runs import TASK, things
from typer.testing import CliRunner

import mementum
from mementum.cli.main import app
from mementum.errors import MementumError

MEMORY_MAX = (64 << 20) + (24 << 20)  # bytes: one block at its largest, and what allocators keep back
PATH_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
ALLOWED = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev/null", "/dev/urandom", "/etc/mtab", "/etc/localtime")


class Watch:
    """Notes paths outside of the root that is being read. Code and the system's tables are no data."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.root is None or event not in PATH_EVENTS:
            return
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            if isinstance(path, str | bytes) and path:
                real = os.path.realpath(os.fsdecode(path))
                if not real.startswith((f"{self.root}/", *ALLOWED)) and real != self.root and not real.endswith(".py"):
                    self.outside.append(f"{event} {real}")


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_MAX, resource.RLIM_INFINITY))


def command(*words: str) -> Callable[[], object]:
    def act() -> None:
        result = CliRunner().invoke(app, list(words), prog_name="mementum")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception

    return act


def read(root: Path) -> list[str]:
    """Every way to read a root; what was raised that is no error of ours, or that memory was short."""
    ways: list[Callable[[], object]] = [
        lambda: mementum.open_run(root, task=TASK, **things(2)).close(),
        *(command(*words) for words in (("ls", str(root)), ("show", str(root)), ("verify", str(root), "--deep"))),
    ]
    wrong: list[str] = []
    for way in ways:
        try:
            way()
        except MementumError as error:
            if "does not fit into memory" in str(error):
                wrong.append(f"{error}")
        except Exception as error:
            frame = error.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""
            wrong.append(f"{type(error).__name__}: {str(error)[:200]} ({where})")
    return wrong


def main(folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    roots = sorted((folder / "roots").iterdir())
    read(roots[0])  # what is imported late is imported now
    watch = Watch()
    limit_memory()
    found: dict[str, list[str]] = {}
    for root in roots:
        watch.root, watch.outside = str(root), []
        wrong = read(root)
        watch.root = None
        found[root.name] = [*wrong, *watch.outside]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
