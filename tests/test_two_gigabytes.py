"""A disk of 2 GB under a run that writes 10 GB: it never fails, and what stays is what the policy says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

import mementum
from mementum.cli.pinning import pin
from mementum.events import CameToNothing, Committed, Failed, NoRoom, Removed, SaveSkipped
from mementum.recover.verify import verify
from mounts import Mounted
from trips import Told

DISK = 2 << 30
WIDTH = 3872  # a weight of 60 MB, and as much momentum
SAVES = 84
BEST, PINNED = 31, 17
REACH = 3  # how many times as far back as the next newer one a checkpoint may be, at most


class Training:
    """Writes 120 MB at each save, of which one number is the step's."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.told = Told()
        self.model.weight.grad = torch.full_like(self.model.weight, 1e-3)
        self.optimizer.step()  # which makes the momentum

    def open(self, root: Path) -> mementum.Run:
        quiet = {"vitals": "off", "alarms": "off", "recorder": "off", "scrub": "off"}
        quick = {"slots": 0, "capture": "blocking"}
        return mementum.open_run(
            root,
            task="large",
            model=self.model,
            optimizer=self.optimizer,
            keep_last=None,
            every_steps=1,
            config={**quiet, **quick},
            on_event=self.told,
        )

    def step(self, run: mementum.Run) -> None:
        step = run.step + 1
        with torch.no_grad():
            self.model.weight[0, 0] = step
        run.record(loss=0.5 if step == BEST else 1 + 1 / step)
        assert run.wait()


def test_ten_gigabytes_on_a_disk_of_two(mount: Callable[[int], Mounted]) -> None:
    disk, training = mount(DISK), Training()
    root, told = disk.folder / "root", training.told
    with disk.watched() as seen, training.open(root) as run:
        while run.step < SAVES:
            training.step(run)
            if run.step == PINNED:
                pin(str(root), f"@{PINNED}", why="for the paper", by=None, as_json=False)
        kept = {entry.manifest.step: entry for entry in run._opened.catalog.entries(run._opened.home)}
        for step, entry in kept.items():
            assert verify(run._opened.store, entry.folder, entry.manifest, deep=True) == (), step
    assert [event.step for event in told.of(Committed)] == list(range(1, SAVES + 1))
    assert sum(event.size for event in told.of(Committed)) > 10e9
    for wrong in (Failed, SaveSkipped, CameToNothing, NoRoom):
        assert told.of(wrong) == []
    assert len(seen) > SAVES
    assert 0.78 < max(seen) < 0.90  # it was full enough to count
    assert {SAVES, BEST, PINNED} <= set(kept)
    assert len(told.of(Removed)) == SAVES - len(kept)
    assert len(kept) >= 10  # 1.4 GB of them
    back = sorted(SAVES - step for step in kept)
    assert all(older <= REACH * max(newer, 1) for newer, older in pairwise(back)), back
    with torch.no_grad():
        training.model.weight.zero_()
    with training.open(root) as run:
        assert run.step == SAVES
        assert training.model.weight[0, 0].item() == SAVES
