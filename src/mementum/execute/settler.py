"""The settler: one thread that compresses checkpoints when the processor has nothing else to do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mementum.events import Emit
from mementum.execute import priority
from mementum.execute.behind import Behind
from mementum.execute.compress import Pause
from mementum.records import record


@record
class SettleJob:
    """A checkpoint to compress. `work` calls what it is given between blocks, and stops where that has a reason."""

    what: str
    work: Callable[[Pause], object]


class Settler(Behind[SettleJob]):
    """A checkpoint whose place a newer one takes stays raw. Whoever removes or sweeps checkpoints of the task holds
    `turn` meanwhile."""

    def __init__(self, *, emit: Emit) -> None:
        super().__init__("mementum-settle", lower=priority.idle, kept="the checkpoint, as it is", emit=emit)
        self.turn = threading.Lock()
