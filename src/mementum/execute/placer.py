"""The placer: one thread that brings checkpoints to one tier while the training goes on."""

from __future__ import annotations

from collections.abc import Callable

from mementum.events import Emit
from mementum.execute import priority
from mementum.execute.behind import Behind
from mementum.execute.compress import Pause
from mementum.records import record


@record
class PlaceJob:
    """A checkpoint to copy. `work` calls what it is given between blocks, and stops where that has a reason."""

    what: str
    id: str
    step: int
    work: Callable[[Pause], object]


class Placer(Behind[PlaceJob]):
    """Each tier has one, so that a slow place holds up no other."""

    def __init__(self, *, emit: Emit) -> None:
        super().__init__("mementum-place", lower=priority.lower, kept="the checkpoint in the root", emit=emit)
