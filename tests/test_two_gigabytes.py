"""A disk of 2 GB under a run that writes 10 GB: it never fails, and what stays is what the policy says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mementum
from mementum.cli.pinning import pin
from mementum.decide.protection import protected
from mementum.events import CameToNothing, Committed, Failed, NoRoom, Removed, RoomMade, SaveSkipped
from mementum.records import Entry
from mementum.recover.verify import verify
from mounts import Mounted
from trips import Told

DISK = 2 << 30
WIDTH = 3872  # a weight of 60 MB, and as much momentum
SAVES = 84
BEST, PINNED = 31, 17


class Training:
    """Writes 120 MB at each save."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.told = Told()
        self.model.weight.grad = torch.full_like(self.model.weight, 1e-3)

    def open(self, root: Path) -> mementum.Run:
        quiet = {"vitals": "off", "alarms": "off", "recorder": "off", "scrub": "off", "slots": 0, "capture": "blocking"}
        return mementum.open_run(
            root,
            task="large",
            model=self.model,
            optimizer=self.optimizer,
            keep_last=None,
            every_steps=1,
            config=quiet,
            on_event=self.told,
        )

    def step(self, run: mementum.Run) -> None:
        self.optimizer.step()
        step = run.step + 1
        run.record(loss=0.5 if step == BEST else 1 + 1 / step)
        assert run.wait()


def entries_of(run: mementum.Run) -> tuple[Entry, ...]:
    return tuple(run._opened.catalog.entries(run._opened.home))


@pytest.mark.parametrize("size", [DISK])
def test_ten_gigabytes_on_a_disk_of_two(mount: Callable[[int], Mounted], size: int) -> None:
    disk = mount(size)
    root = disk.folder / "root"
    training = Training()
    told = training.told
    with disk.watched() as seen, training.open(root) as run:
        while run.step < SAVES:
            training.step(run)
            if run.step == PINNED:
                pin(str(root), f"@{PINNED}", why="for the paper", by=None, as_json=False)
        kept = entries_of(run)
        home = run._opened.store
    written = sum(event.size for event in told.of(Committed))
    assert len(told.of(Committed)) == SAVES
    assert written > 10e9
    assert told.of(Failed) == told.of(SaveSkipped) == told.of(CameToNothing) == told.of(NoRoom) == []
    assert len(seen) > SAVES
    assert max(seen) < 0.90
    assert max(seen) > 0.75  # it was full enough to count
    steps = [entry.manifest.step for entry in kept]
    print(steps, max(seen), len(told.of(RoomMade)), len(told.of(Removed)), written)
    assert protected(kept)
    for entry in kept:
        assert verify(home, entry.folder, entry.manifest, deep=True) == ()
