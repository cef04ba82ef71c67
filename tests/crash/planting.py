"""Runs crash_check.py for copies of the product, each in a fork of one process that has imported what that needs.

As a script: the server, with {"source": folder, "names": checks} as JSON lines on stdin. Nothing of the product itself
may be imported there: each fork takes it from its own copy.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Self

CHECK = Path(__file__).with_name("crash_check.py")


class Planting:
    """The server; use it in a `with` block. One check at a time."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__))],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, source: Path, *names: str) -> tuple[int, str]:
        """The exit code of the named checks of the product in `source`, and what they have printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"source": str(source), "names": names}), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return code, _said(source).read_text(encoding="utf-8")


def _said(source: Path) -> Path:
    return Path(f"{source}.said")


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(**order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(source: str, names: list[str]) -> None:
    """Be the program that checks the product in `source`. Never returns."""
    said = os.open(_said(Path(source)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.path[:0] = [source, str(CHECK.parent)]
    sys.argv = [str(CHECK), "--source", source, *names]
    code: Any = 1
    try:
        runpy.run_path(str(CHECK), run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)  # the way back leads into the server's loop


if __name__ == "__main__":
    import blake3  # noqa: F401
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first optimizer imports it
    import zstandard  # noqa: F401

    assert not [name for name in sys.modules if name.partition(".")[0] == "mementum"]
    _serve()
