"""The sign of memory that runs out: how near its limit is, and the chance to reach it before a save is durable."""

from __future__ import annotations

from math import erfc, inf, isfinite, log, sqrt

from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble, Vitals

SAVE_MARGIN = 2.0  # times what a save took last: the next one is made beside a machine that is short of memory
STEPS_MIN = 10  # memory is read every few steps and seen a step late: less than this is no warning
FORECAST_SPREAD = 0.3  # of the logarithm of the forecast: its median error is at most 20 % (0.2 / 0.6745)
CHANCE_HIGH = 0.02  # assumed: above `memory_high` without growth; worth a save once 50 times its cost is at risk
CHANCE_URGENT = 0.5  # assumed too: above `memory_urgent` the next larger batch may be the one
GRADES = (0.01, 0.1, 0.5, 0.9)  # an alarm is told again when its chance rises past one of these


def chance_of_limit(steps_left: float, horizon_steps: float) -> float:
    """The probability that the limit is reached within `horizon_steps`, if it is forecast in `steps_left`: the true
    number is taken as log-normal about the forecast, so that it is 1/2 where both are equal, and rises to 1."""
    if steps_left <= 0.0:
        return 1.0
    if not isfinite(steps_left) or horizon_steps <= 0.0:
        return 0.0
    return 0.5 * erfc(-log(horizon_steps / steps_left) / (FORECAST_SPREAD * sqrt(2.0)))


def memory_sign(vitals: Vitals, *, limits: Limits, step_s: float | None, save_s: float | None) -> Sign | None:
    """What memory says at a step. `step_s`: what a step takes, `save_s`: what it takes until a save is durable, both
    in seconds and None where unknown."""
    used, steps_left = vitals.memory_used, vitals.memory_steps_left
    save_s = save_s if save_s is not None and 0.0 < save_s < inf else 0.0
    horizon_steps = max(SAVE_MARGIN * save_s / step_s if step_s else 0.0, STEPS_MIN)
    by_ramp = 0.0 if steps_left is None else chance_of_limit(steps_left, horizon_steps)
    by_level = 0.0
    if used is not None and used > limits.memory_high:
        by_level = CHANCE_URGENT if used > limits.memory_urgent else CHANCE_HIGH
    chance = max(by_ramp, by_level)
    grade = sum(chance >= least for least in GRADES)
    if grade == 0:
        return None
    share = None if used is None else f"{100 * used:.0f} % of the memory limit is used"
    if share is None or by_ramp >= by_level:
        value, limit = steps_left or 0.0, horizon_steps
        ramp = f"at this rate the memory limit is reached in {max(value, 0.0):.0f} steps"
        text = ramp if share is None else f"{ramp}; {share}"
    else:
        value, text = used or 0.0, share
        limit = limits.memory_urgent if by_level == CHANCE_URGENT else limits.memory_high
    return Sign(
        trouble=Trouble.MEMORY,
        value=value,
        limit=limit,
        text=text,
        grade=grade,
        chance=chance,
        horizon_s=horizon_steps * step_s if step_s else SAVE_MARGIN * save_s,
    )
