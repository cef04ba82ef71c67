"""Plays scenes in processes of their own, forked from one that has imported torch, and tells how each has ended.

As a script: `forks.py FILE`, with scenes as JSON lines on stdin; FILE has a function for each, by its name."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AT_ONCE = 2  # processes; more do not help on the two cores that CI has
PATIENCE_S = 120.0  # for a scene that hangs, not for one that is slow
SCENE_S = 10.0  # and as much again for each of them: on a machine where ten processes fight over two cores
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a scene's process has ended: its return code as of `subprocess`, when by the monotonic clock, and what it
    has reported last under each name."""

    code: int
    at_s: float
    told: dict[str, Any]


def play(file: Path, scenes: Sequence[dict[str, Any]], *, at_once: int = AT_ONCE) -> list[Ended]:
    """The end of each scene, in their order. A scene is a dict: `play` is the function's name, `root` a folder of its
    own for what it reports (see `report`), and the whole dict is what the function is called with."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(Path(__file__)), str(file), str(at_once)],
        input="\n".join(map(json.dumps, scenes)),
        env={**os.environ, **THREADS},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + SCENE_S * len(scenes),
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)  # where a scene has failed, why
    ends = sorted(map(json.loads, done.stdout.splitlines()), key=lambda end: end["scene"])
    assert len(ends) == len(scenes), done.stderr
    return [
        Ended(code=end["code"], at_s=end["at_s"], told=dict(_reported(Path(scene["root"]))))
        for end, scene in zip(ends, scenes, strict=True)
    ]


def report(scene: dict[str, Any], **values: Any) -> None:
    """From within a scene: tell the test something, whatever becomes of the process."""
    line = json.dumps(values).encode() + b"\n"
    descriptor = os.open(f"{scene['root']}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _reported(root: Path) -> Iterator[tuple[str, Any]]:
    told = Path(f"{root}.told")
    for line in told.read_text().splitlines() if told.exists() else ():
        yield from json.loads(line).items()


def _serve(file: str, at_once: int) -> None:
    spec = importlib.util.spec_from_file_location("scenes", file)
    assert spec is not None
    assert spec.loader is not None
    scenes = importlib.util.module_from_spec(spec)
    sys.modules["scenes"] = scenes
    spec.loader.exec_module(scenes)
    living: dict[int, int] = {}
    waiting = list(enumerate(map(json.loads, sys.stdin)))[::-1]
    while waiting or living:
        while waiting and len(living) < at_once:
            number, scene = waiting.pop()
            threads = len(os.listdir("/proc/self/task"))
            assert threads == 1, f"a fork of {threads} threads may hang"
            child = os.fork()
            if child == 0:
                _become(scenes, scene)
            living[child] = number
        child, status = os.wait()
        end = {"scene": living.pop(child), "code": os.waitstatus_to_exitcode(status), "at_s": time.monotonic()}
        print(json.dumps(end), flush=True)


def _become(scenes: Any, scene: dict[str, Any]) -> None:
    """Play a scene, as a program whose end is that of the process. Never returns."""
    os.setsid()
    os.dup2(sys.stderr.fileno(), 1)  # what it prints is no answer
    code = 1
    try:
        getattr(scenes, scene["play"])(scene)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os._exit(code)  # the way back leads into the server's loop


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - the first optimizer imports it, which takes longer than all else in a start

    import mementum.doors  # noqa: F401 - which `mementum` imports when it is first asked for it

    _serve(sys.argv[1], int(sys.argv[2]))
