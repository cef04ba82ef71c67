"""Draining: the newest snapshot that a dead run has left in memory, carried to the disk without the run."""

from __future__ import annotations

from pathlib import Path

from mementum.clock import Clock
from mementum.events import Emit
from mementum.execute.claim import require_newest
from mementum.execute.stills import Stills
from mementum.opening import Opened, open_task, root_folder
from mementum.ram import Salvaged, described, left_of, salvage, snapshot_of
from mementum.records import Manifest, record
from mementum.saving import save_checkpoint


@record
class Drained:
    """What a drain has done: `placed` is None where there was nothing to carry, and `why` says why. `removed`: slots
    whose memory was given back."""

    task: str
    placed: Manifest | None = None
    folder: str | None = None
    why: str | None = None
    removed: int = 0


def drain(root: str | Path, task: str, *, clock: Clock, emit: Emit) -> Drained:
    """Carry the newest snapshot of a dead run to the disk. TaskInUse if a living process has the task."""
    folder = root_folder(root)
    opened = open_task(folder, task, about={}, clock=clock, emit=emit)
    try:
        before = len(left_of(folder, task))
        entries = opened.catalog.entries(opened.home)
        salvaged = salvage(folder, task, store=opened.store, entries=entries, clock=clock, emit=emit, load=False)
        if salvaged is None:
            return _nothing_to_carry(folder, task, before)
        try:
            manifest = _place(salvaged, opened, clock, emit)
        except BaseException:
            salvaged.left.release()  # it lies where it lay
            raise
        salvaged.left.remove()
        found = [entry.folder for entry in opened.catalog.entries(opened.home) if entry.manifest.id == manifest.id]
        return Drained(task=task, placed=manifest, folder=f"{opened.home}/{found[0]}", removed=before)
    finally:
        opened.close()


def _nothing_to_carry(folder: Path, task: str, before: int) -> Drained:
    stay = left_of(folder, task)
    why = "all that was in memory is on the disk"
    if stay:
        why = f"what is in memory is not of this task as it stands here, and stays: {', '.join(stay)}"
    elif not before:
        why = "no process has left a snapshot in memory"
    return Drained(task=task, why=why, removed=before - len(stay))


def _place(salvaged: Salvaged, opened: Opened, clock: Clock, emit: Emit) -> Manifest:
    stills = Stills()
    stills.know(salvaged.headed.stills)
    return save_checkpoint(
        snapshot_of(salvaged, opened.store, release=lambda: None, began_s=clock.monotonic()),
        home=opened.home,
        store=opened.store,
        catalog=opened.catalog,
        describe=lambda snapshot, files: described(salvaged, files),
        emit=emit,
        require_newest=lambda: require_newest(opened.store, opened.attempt.number, task=opened.task, clock=clock),
        stills=stills,
    )
