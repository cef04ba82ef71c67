"""Judging: which recorded faults did harm, which were captured, and between which bounds a share lies."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from _runs import Array, Setup

from mementum.records import record

MEAN_OF = 50  # losses, whose mean is compared with the twin's: single ones are noise
BEGINS_WITHIN = 100  # steps after the onset
LASTS = 100  # steps in which the loss does not come back
SPREADS = 3.0  # of the twin's residuals
SMOOTH = 51  # losses, whose median the residuals are about
SIGMA_PER_MAD = 1.4826
NEAR = 50  # steps before the onset that a captured state may lie
Z_95 = 1.959964


@record
class Harm:
    """Whether a fault did harm, by which rule, and by how much: the largest mean excess over the twin, in spreads."""

    harmful: bool
    why: str
    excess: float


def spread_of(losses: Array) -> float:
    """Robust standard deviation of the losses about their running median."""
    padded = np.pad(losses, SMOOTH // 2, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, SMOOTH), axis=1)
    off = losses - middle
    return SIGMA_PER_MAD * float(np.median(np.abs(off - np.median(off))))


def harm_of(setup: Setup, hurt: Array, twin: Array, *, whole: bool) -> Harm:
    """`hurt`, `twin`: losses by step, from step 1 on. `whole`: whether all of loss, parameters and moments were numbers
    in all steps.

    Harmful: something is not finite; or the mean of the next 50 losses is more than 3 spreads above the twin's from a
    step at most 100 after the onset on, for 100 steps in a row; with a drift, at the run's end."""
    if not (whole and np.isfinite(hurt).all()):
        return Harm(harmful=True, why="not finite", excess=math.inf)
    spread = spread_of(twin)
    excess = np.convolve(hurt - twin, np.full(MEAN_OF, 1 / MEAN_OF), mode="valid") / spread  # of the next 50
    if setup.drift:
        return Harm(harmful=bool(excess[-1] > SPREADS), why="above its twin at the end", excess=float(excess[-1]))
    above, longest, row = excess[setup.onset - 1 :] > SPREADS, 0, 0
    for place, high in enumerate(above.tolist()):
        row = row + 1 if high else 0
        if place - row + 1 <= BEGINS_WITHIN:
            longest = max(longest, row)
    return Harm(harmful=longest >= LASTS, why="stays above its twin", excess=float(excess[setup.onset - 1 :].max()))


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Bounds of a share, 95 %: Wilson, JASA 22, 1927. (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    share, z2 = hits / of, Z_95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = Z_95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def is_captured(setup: Setup, clean: Iterable[int]) -> bool:
    """Whether the newest of the steps that a policy calls clean is from before the fault, by at most 50 steps; with a
    drift, whether any is from before it."""
    if setup.drift:
        return min(clean, default=setup.onset) < setup.onset
    return setup.onset - NEAR <= max(clean, default=-1) < setup.onset


def is_poisoned(setup: Setup, clean: Iterable[int]) -> bool:
    """Whether the newest that a policy calls clean holds the fault."""
    return max(clean, default=-1) >= setup.onset


def is_there(setup: Setup, states: Iterable[int]) -> bool:
    """Whether somebody who knows the onset would find what can be captured, whatever the states are called."""
    low = 0 if setup.drift else setup.onset - NEAR
    return any(low <= step < setup.onset for step in states)
