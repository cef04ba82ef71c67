"""Keeps a data loader's workers alive when a SIGTERM goes to the whole process group, as schedulers send it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LOOK_S = 5.0  # how often a worker looks whether its trainer lives: as often as torch's own watchdog
GRACE_LOOKS = 6  # half a minute: what Slurm and Kubernetes wait, unless told otherwise, before they kill for good
BELL_MAX = 4096  # bytes, one a signal: more than are ever sent between two looks
THREADS = "/proc/self/task"

WorkerInit = Callable[[int], Any]


class _Shield:
    """A `worker_init_fn` that takes SIGTERM off a worker, then calls the one that the loader had.

    torch's handler lets a worker live through no SIGTERM but ends it well if the trainer sent it; else the worker is
    lost, and the trainer fails with it before it can save. Here the trainer's still ends the worker, and others do not
    while the trainer lives. For that the signal is blocked, in what the worker starts too: a program that a worker runs
    outlives a SIGTERM to the group as well.
    """

    def __init__(self, inner: WorkerInit | None) -> None:
        self.inner = inner

    def __call__(self, worker_id: int) -> None:
        trainer = multiprocessing.parent_process()
        if trainer is not None and threading.current_thread() is threading.main_thread():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            if _others_block_it():
                _on_thread(_by_sender, trainer)
            else:
                _on_thread(_by_number, trainer, _open_bell())
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self.inner is not None:
            self.inner(worker_id)


def shield(loader: Any) -> Callable[[], None]:
    """Shield the workers that a `torch.utils.data.DataLoader`, or one of its kind, starts from now on.

    Returns what undoes it, for workers that start later. A loader without workers, or of another kind, is left alone;
    so is one that is shielded already.
    """
    workers = getattr(loader, "num_workers", 0)
    inner = getattr(loader, "worker_init_fn", None)
    if not workers or not hasattr(loader, "worker_init_fn") or isinstance(inner, _Shield):
        return _nothing
    ours = _Shield(inner)
    loader.worker_init_fn = ours

    def undo() -> None:
        if loader.worker_init_fn is ours:
            loader.worker_init_fn = inner

    return undo


def _nothing() -> None:
    """There is nothing to undo."""


# In the worker.


def _on_thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name="mementum-shield", daemon=True).start()


def _by_sender(trainer: multiprocessing.process.BaseProcess) -> None:
    """End the worker if the trainer said so, or is gone. Every thread blocks the signal, so it waits here for us."""
    while trainer.is_alive():
        info = signal.sigtimedwait({signal.SIGTERM}, LOOK_S)
        if info is not None and info.si_pid == trainer.pid:
            break
    os._exit(0)  # as torch's handler does: 0 is what the trainer expects of a worker that it ended


def _by_number(trainer: multiprocessing.process.BaseProcess, bell: int) -> None:
    """End the worker at the second signal, a while after the first, or once the trainer is gone: where threads of a
    native library take the signal, nobody can tell who sent it. The first is the group's; when the trainer ends its
    workers, it sends one of its own."""
    signals = looks = 0
    while trainer.is_alive() and signals < 2 and looks < GRACE_LOOKS:
        rings = _rings(bell)
        signals += rings
        looks += 1 if signals and not rings else 0
    os._exit(0)


def _others_block_it() -> bool:
    """Whether every other thread of this process blocks SIGTERM. Those that run already did not inherit our mask: in a
    spawned worker, a library for linear algebra has started some while it was imported."""
    me = threading.get_native_id()
    try:
        others = [thread for thread in os.listdir(THREADS) if int(thread) != me]
        return all(_blocks(Path(THREADS, thread, "status").read_text("ascii", "replace")) for thread in others)
    except (OSError, ValueError):
        return False


def _blocks(status: str) -> bool:
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:")]
    return bool(masks) and bool(masks[0] >> (signal.SIGTERM - 1) & 1)


def _open_bell() -> int:
    """A pipe into which the interpreter writes the number of every signal that comes, whichever thread takes it and
    whatever the main thread is busy with."""
    bell, hammer = os.pipe()
    os.set_blocking(hammer, False)
    signal.signal(signal.SIGTERM, _leave_it)
    signal.set_wakeup_fd(hammer, warn_on_full_buffer=False)
    return bell


def _leave_it(number: int, frame: FrameType | None) -> None:
    """What the main thread does about it: the thread at the bell sees to it."""


def _rings(bell: int) -> int:
    """How many SIGTERM came, within LOOK_S at most."""
    ready, _, _ = select.select([bell], [], [], LOOK_S)
    return os.read(bell, BELL_MAX).count(signal.SIGTERM) if ready else 0
