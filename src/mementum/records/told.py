"""How a run came back, and where it leaves batches out."""

from __future__ import annotations

from mementum.records.making import record
from mementum.records.stored import Damage


@record
class Detour:
    """Batches that are thrown away: `groups` steps' worth of them, before those of step `at_step` are taken."""

    at_step: int
    groups: int


@record
class Exactness:
    """Whether a resume will be bit for bit. No reasons: it will, if the program itself is deterministic and the
    `conditions`, which nobody can see from outside, hold."""

    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self.reasons:
            return "not exact: " + "; ".join(self.reasons)
        return "exact" + "".join(f", if {condition}" for condition in self.conditions)


@record
class Resumed:
    """From what a run came back, and how. `tier`: `ram` if from a snapshot that outlived its process."""

    checkpoint: str
    step: int
    epoch: int
    reason: str
    rung: str = "exact"
    tier: str = "ssd"
    passed_over: tuple[Damage, ...] = ()
    differs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    duration_s: float
