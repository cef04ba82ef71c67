"""The risk of the window policy: a number from 0 to 1 made of the vital signs and the alarms of the last ten steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from mementum.records import Alarm, Trouble, Vitals

MEAN_STEPS = 10  # the documents' beta is the mean of so many steps
RISE_FROM = 0.2  # an edge is over when the mean is below this
RISE_TO = 0.7  # and has come when it is at or above this
MEMORY_FROM, MEMORY_TO = 0.92, 0.97  # used part of the limit at which memory begins to count, and counts in full
Z_FROM, Z_TO = 3.0, 6.0  # spreads at which a loss or a gradient norm begins to count, and counts in full
GRADIENT_PART = 0.5  # of the loss's weight: alone it comes and goes (57 six-spread steps in 18,560 healthy ones)


def ramp(value: float | None, least: float, full: float) -> float:
    """0 up to `least`, 1 from `full` on, a straight line between; 0 for what is not given."""
    if value is None or not value > least:
        return 0.0
    return min((value - least) / (full - least), 1.0)


def sign_of(vitals: Vitals) -> float:
    """What one step's vital signs say, 0 to 1: the largest of
    1 where loss or gradients are not finite; `memory_used` from 0.92 (0) to 0.97 (1); `loss_z` from 3 (0) to 6 (1);
    `grad_z` from 3 (0) to 6 (a half)."""
    if not vitals.finite:
        return 1.0
    return max(
        ramp(vitals.memory_used, MEMORY_FROM, MEMORY_TO),
        ramp(vitals.loss_z, Z_FROM, Z_TO),
        GRADIENT_PART * ramp(vitals.grad_z, Z_FROM, Z_TO),
    )


def weight_of(alarm: Alarm) -> float:
    """What an alarm adds to the steps after it, 0 to 1: its chance where it can end the process, 1 where it has found
    that the computation goes wrong. Over-fitting counts nothing: it goes on for hours, and no save is urgent."""
    if alarm.trouble is Trouble.OVERFITTING:
        return 0.0
    return min(max(alarm.chance, 0.0), 1.0) if alarm.trouble.is_crash else 1.0


class Risk:
    """Remembers ten steps. A step counts as much as its vital signs say, or as the weightiest alarm of it and the nine
    steps before says, whichever is more: an alarm is told once, and is as true at the next step."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=MEAN_STEPS)
        self._alarms: deque[float] = deque(maxlen=MEAN_STEPS)
        self._risen = False

    def look(self, vitals: Vitals, alarms: Sequence[Alarm] = ()) -> tuple[float, bool]:
        """Take a step: `(risk, risk_rose)`. The risk is the mean over ten steps, those before the first counting 0. It
        rose if it has come to 0.7 at this step, for the first time since it was below 0.2."""
        self._alarms.append(max(map(weight_of, alarms), default=0.0))
        self._steps.append(max(sign_of(vitals), *self._alarms, 0.0))
        risk = sum(self._steps) / MEAN_STEPS
        rose = risk >= RISE_TO and not self._risen
        if rose:
            self._risen = True
        elif risk < RISE_FROM:
            self._risen = False
        return risk, rose

    def state(self) -> dict[str, Any]:
        """What it remembers, as plain numbers, for a checkpoint's context."""
        return {"steps": list(self._steps), "alarms": list(self._alarms), "risen": self._risen}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._steps = deque(map(float, state["steps"]), maxlen=MEAN_STEPS)
        self._alarms = deque(map(float, state["alarms"]), maxlen=MEAN_STEPS)
        self._risen = bool(state["risen"])
