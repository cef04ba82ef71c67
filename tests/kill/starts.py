"""Two ways to start a trainer in a process group of its own: a fresh interpreter, or a fork of one that waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
WARNINGS = ("-W", "error::UserWarning")  # what torch or the loader warn of would be a fault of the trainer
ANSWER_BYTES_MAX = 64  # a number and a newline
ANSWER_S_MAX = 120.0  # importing torch takes seconds on a loaded machine, never that long


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A trainer: its process (and group) id, the reading end of its pipe, and how to wait for its exit code."""

    pid: int
    descriptor: int
    wait: Callable[[], int]


Start = Callable[[Path], Started]


class Fresh:
    """Starts every trainer as a new interpreter that imports everything: what a restart is in real life.

    The next one is started ahead and waits for the name of its root, so that it imports while this one trains.
    Use it in a `with` block; more than `starts_max` starts are not served.
    """

    def __init__(self, *, starts_max: int) -> None:
        self._left = starts_max
        self._ahead: tuple[subprocess.Popen[bytes], int] | None = None

    def __enter__(self) -> Self:
        self._launch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            process, descriptor = self._ahead
            os.close(descriptor)
            process.kill()
            process.communicate()

    def start(self, root: Path) -> Started:
        assert self._ahead is not None, "more starts than were announced"
        (process, descriptor), self._ahead = self._ahead, None
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(f"{root}\n".encode())
        self._launch()
        return Started(pid=process.pid, descriptor=descriptor, wait=process.wait)

    def _launch(self) -> None:
        if self._left == 0:
            return
        self._left -= 1
        reading, writing = os.pipe()
        process = subprocess.Popen(
            (sys.executable, *WARNINGS, str(HERE / "trainer.py"), str(writing)),
            stdin=subprocess.PIPE,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, **THREADS},
        )
        os.close(writing)
        self._ahead = process, reading


class Zygote:
    """Starts trainers by forking one process that has imported torch; use it in a `with` block."""

    def __enter__(self) -> Self:
        self._requests, theirs = socket.socketpair()
        self._requests.settimeout(ANSWER_S_MAX)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, *WARNINGS, str(HERE / "zygote.py"), str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **THREADS},
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()  # which ends it
        self._process.wait(ANSWER_S_MAX)

    def start(self, root: Path) -> Started:
        """One at a time: the one before must have been waited for."""
        reading, writing = os.pipe()
        socket.send_fds(self._requests, [str(root).encode()], [writing])
        os.close(writing)
        return Started(pid=self._answer(), descriptor=reading, wait=self._answer)

    def _answer(self) -> int:
        digits = b""
        while not digits.endswith(b"\n"):
            byte = self._requests.recv(1)  # one by one, since the next answer may follow at once
            assert byte, "the zygote is gone"
            digits += byte
            assert len(digits) <= ANSWER_BYTES_MAX
        return int(digits)
