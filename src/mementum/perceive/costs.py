"""What a save of each reach costs: planned before the first one, measured from then on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from mementum.records import Reach, record

KEPT = 16  # newest saves: enough for a median that one slow disk does not move, few enough to follow a larger state
SLOWED_PART = 0.05  # of the time of writing beside the training that is lost by slower steps, where none was measured


@record
class Planned:
    """What is expected of a save. `size`: bytes that it writes; `memory`: bytes that its copy takes."""

    lost_s: float
    snapshot_s: float
    durable_s: float
    size: int
    memory: int


@record
class SaveCost:
    """What a save of this reach costs. `lost_s`: to the training, in all; `snapshot_s` and `durable_s`: from its
    beginning until its copy, and it, was whole; `size`: bytes written; `memory`: bytes that its copy takes, as planned;
    `measured`: from how many saves, 0 if planned."""

    reach: Reach
    lost_s: float
    snapshot_s: float
    durable_s: float
    size: int
    memory: int
    measured: int


class Costs:
    """Medians of the newest measured saves, for each reach apart: a snapshot that stays in memory costs less than one
    that is written. A reach of which no save was measured costs what was planned."""

    def __init__(self, planned: Mapping[Reach, Planned]) -> None:
        self._planned = dict(planned)
        self._measured: dict[Reach, deque[Planned]] = {reach: deque(maxlen=KEPT) for reach in self._planned}
        self._every: tuple[SaveCost, ...] | None = None  # until the next is told: it is asked for at every step

    def told(
        self,
        reach: Reach,
        *,
        lost_s: float | None,
        blocked_s: float,
        snapshot_s: float,
        durable_s: float,
        written: int,
    ) -> None:
        """A save was measured; arguments as in events.Cost. Where `lost_s` is None, the time blocked and a part of the
        writing beside the training stand for it. It is at least the time blocked: less is noise of the steps that it
        was compared with. A measurement that is negative or no number is left out."""
        numbers = (blocked_s, snapshot_s, durable_s, written, 0.0 if lost_s is None else lost_s)
        if not all(map(math.isfinite, numbers)) or min(numbers[:4]) < 0 or reach not in self._measured:
            return
        lost = lost_of(lost_s, blocked_s, snapshot_s, durable_s)
        memory = self._planned[reach].memory
        save = Planned(lost_s=lost, snapshot_s=snapshot_s, durable_s=durable_s, size=written, memory=memory)
        self._measured[reach].append(save)
        self._every = None

    def of(self, reach: Reach) -> SaveCost:
        """A KeyError for a reach that no plan was given for: there are no such saves here."""
        saves = self._measured[reach] or (self._planned[reach],)
        return SaveCost(
            reach=reach,
            lost_s=median(save.lost_s for save in saves),
            snapshot_s=median(save.snapshot_s for save in saves),
            durable_s=median(save.durable_s for save in saves),
            size=int(median(save.size for save in saves)),
            memory=self._planned[reach].memory,
            measured=len(self._measured[reach]),
        )

    def every(self) -> tuple[SaveCost, ...]:
        """Of each reach that saves can have here, the nearest first."""
        if self._every is None:
            self._every = tuple(self.of(reach) for reach in sorted(self._planned))
        return self._every


def lost_of(lost_s: float | None, blocked_s: float, snapshot_s: float, durable_s: float) -> float:
    """Seconds that a save has cost the training: as measured, where it was, else the time blocked and a part of the
    writing beside the training. It is at least the time blocked: less is noise of the steps it was compared with."""
    if lost_s is not None:
        return max(blocked_s, lost_s)
    return blocked_s + SLOWED_PART * max(0.0, durable_s - snapshot_s)
