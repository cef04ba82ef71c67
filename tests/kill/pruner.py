"""Removals and ageings in processes of their own, each of which kills itself with SIGKILL at another operation.

As a script: `pruner.py FOLDER`, an empty one, with tests and tests/crash on its path. It looks at what every death
leaves, and prints how many there were."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from crash_saves import Process
from plain_catalog import PlainCatalog
from prunings import age, listed, refer_to, swept, take

from mementum.storage.disk import PosixDisk

CHANGES = frozenset({"create", "rename_new", "unlink", "rmdir", "mkdir", "fsync_dir"})  # reads leave what was there
DEATHS_MAX = 200  # operations of one act; more mean that it does not end
Act = Callable[[Process], object]


class LethalDisk:
    """The real disk below the working folder. Its change of the number `deadly` is never begun."""

    def __init__(self, deadly: int | None = None) -> None:
        self._inner, self._left = PosixDisk(), deadly

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            if self._left is not None and name in CHANGES:
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._left -= 1
            return found(*map(_absolute, given), **named)

        return call


def _absolute(given: Any) -> Any:
    return os.path.abspath(given) if isinstance(given, str) and not given.startswith("/") else given


def prepare() -> None:
    """Seven checkpoints: the second and third have files of the first, the fourth has lost its optimizer."""
    process = process_on(LethalDisk())
    process.save(1, step=10)
    refer_to(process, 1, 2, step=20)
    refer_to(process, 1, 3, step=30, linked=True)
    for number in range(4, 8):
        process.save(number, step=number * 10)
    process.settle(5)
    age(process, 4, 0, 2)


def process_on(disk: Any) -> Process:
    return Process(disk, set(), catalog=PlainCatalog())


ALL = frozenset(range(1, 8))
ACTS: dict[str, tuple[Act, frozenset[int]]] = {  # what is done, and what is left of all
    "retention": (lambda process: process.keep(3), frozenset({4, 5, 6, 7})),
    "whose files are needed": (lambda process: take(process, 1, 5), ALL - {1, 5}),
    "ageing": (lambda process: [age(process, number, 0) for number in (3, 6)], ALL),
    "ageing to a record": (lambda process: age(process, 6, 2), ALL),
}


def besiege(act: Act, left: frozenset[int]) -> int:
    """Kill it everywhere; the number of deaths."""
    for deaths in itertools.count():
        assert deaths < DEATHS_MAX
        shutil.rmtree("disk", ignore_errors=True)
        shutil.copytree("whole", "disk")
        child = os.fork()
        if child == 0:
            act(process_on(LethalDisk(deaths)))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        found = listed(LethalDisk())
        assert found.keys() >= left, f"killed at operation {deaths}: {sorted(left - found.keys())} are lost"
        assert swept(LethalDisk()).keys() == found.keys()
        act(process_on(LethalDisk()))
        assert swept(LethalDisk()).keys() == left
        if code == 0:
            return deaths
    raise AssertionError("unreachable")


def main(folder: str) -> None:
    os.chdir(folder)
    prepare()
    os.rename("disk", "whole")
    for name, (act, left) in ACTS.items():
        print(f"{name}: {besiege(act, left)}")


if __name__ == "__main__":
    main(sys.argv[1])
