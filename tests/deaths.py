"""A run that ends, in the process of a test, as if it was killed: nothing more is written, and its slots lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mementum
from mementum import ram
from mementum.catalog import tasks
from mementum.execute.leftovers import Left, leftovers
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

WAIT_S = 20.0  # for a thread that ends; only a broken test waits so long


def hold_disk(run: mementum.Run) -> None:
    """From here on no save reaches the disk."""
    run.wait()
    assert run._background._worker.close(WAIT_S)


def die(run: mementum.Run) -> None:
    """Once the copies under way are whole: the task is free, the slots have no owner, and nothing was tidied up."""
    capture = run._taker._capture
    capture._copier.close()
    capture._handle.remove()
    slots = capture._whole._slots._slots
    for slot in slots._slots if slots is not None else ():
        slot.close(keep=True)
    run._background._worker.close(WAIT_S)
    watchers = run._deciding._watchers  # their threads would live on
    for part in (watchers.quarantine, watchers.hang, watchers.perception, watchers.notices):
        if part is not None:
            part.close()
    for give_back in run._background.at_end:
        give_back()
    run._closed = True
    run._opened.close()


def left(root: Path, task: str) -> Iterator[Left]:
    """What lies in memory of a task; each is let go of when the next is asked for."""
    for one in leftovers(ram.FOLDER, ram.key_of(root.resolve(), task)):
        try:
            yield one
        finally:
            one.release()


def steps_left(root: Path, task: str) -> list[int]:
    """The steps of whole snapshots in memory that nobody has, newest first."""
    return [one.stamp.step for one in left(root, task) if one.stamp is not None]


def give_back(folder: Path) -> None:
    """Remove the slots that dead processes have left of all tasks whose roots lie in a folder."""
    for place, names, _ in os.walk(folder.resolve()):
        if any(tasks.DAY.fullmatch(name) for name in names):
            for found in tasks.tasks(LocalStore(PosixDisk(), place)):
                for one in leftovers(ram.FOLDER, ram.key_of(Path(place), found.task)):
                    one.remove()
