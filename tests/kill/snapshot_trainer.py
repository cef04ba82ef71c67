"""The training of ram_trainer.py whose saves stay in memory, but for every third, which goes to the disk."""

from __future__ import annotations

from typing import Any

import ram_trainer

import mementum
from mementum.events import Event, SnapshotKept
from mementum.records import Decision, Reach, Save, Situation

DISK_STEPS = 9  # a multiple of the steps between snapshots


class Alternating:
    """Every few steps a snapshot in memory, or a checkpoint on the disk in its place."""

    def decide(self, situation: Situation) -> Decision | None:
        if situation.step % ram_trainer.EVERY_STEPS:
            return None
        if situation.step % DISK_STEPS:
            return Save(reason="in memory", reach=Reach.PROCESS)
        return Save(reason="on the disk", reach=Reach.REBOOT)


def hear(event: Event) -> None:
    if isinstance(event, SnapshotKept):
        ram_trainer.tell("kept", event.step)
    ram_trainer.hear(event)


def open_run(root: str, *, every_steps: int, on_event: Any, **wishes: Any) -> mementum.Run:
    return mementum.open_run(root, policy=Alternating(), on_event=hear, **wishes)


if __name__ == "__main__":
    ram_trainer.open_run = open_run  # type: ignore[assignment]
    ram_trainer.serve()
