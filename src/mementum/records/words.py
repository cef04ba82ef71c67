"""The words of the field that have few values."""

from __future__ import annotations

from enum import IntEnum, StrEnum

CLEARS = "clears"  # in the file of an attempt: it does not train, it removes what others left half done, and is gone


class Granularity(IntEnum):
    """What a checkpoint holds. Only FULL resumes bit for bit."""

    FULL = 0
    WEIGHTS = 1
    WEIGHTS_AND_OPTIMIZER = 2
    ESSENTIALS = 3


class Reach(IntEnum):
    """The loss that a checkpoint must outlive; each includes the ones before it."""

    PROCESS = 1
    REBOOT = 2
    MACHINE = 3


class Health(StrEnum):
    """What the run's vital signs said of the state that was saved."""

    CLEAN = "clean"
    SUSPECT = "suspect"
    DIVERGED = "diverged"


class Trouble(StrEnum):
    """What an alarm is about. The first row of them can end a process, the second spoils what it computes."""

    MEMORY = "memory"
    HANG = "hang"
    SLOW = "slow"
    HARDWARE = "hardware"
    NON_FINITE = "non-finite"
    LOSS_SPIKE = "loss spike"
    GRAD_SPIKE = "gradient spike"
    DRIFT = "drift"
    OVERFITTING = "over-fitting"

    @property
    def is_crash(self) -> bool:
        """Whether a fresh save helps: one of a state that diverges saves the wreck."""
        return self in (Trouble.MEMORY, Trouble.HANG, Trouble.SLOW, Trouble.HARDWARE)
