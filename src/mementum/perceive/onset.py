"""Onset: the step at which a trouble that has just been noticed began, estimated on the early side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mementum.records import record

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

FRESH = 8  # values before the look that are taken for the trouble's own at first: no detector needs more of a spike
RISING_TIMES = 3  # a level that follows a slow rise makes it look that much shorter
REFERENCE = 96  # values before the trouble that say what was usual: a line through more bends with the learning
REFERENCE_MIN = 16  # before that many there is no saying what was usual
ROUNDS_MAX = 8  # of guess and new reference: each goes further back, and most stay after two
GAP = 10  # usual values in a row that separate a trouble from an outlier before it
STANDS_OUT = 4.0  # spreads, of a loss or a norm's logarithm: one of 1,000 healthy values or so
SLACK = 0.5  # spreads a value, of the sum that walks back: half of the smallest shift that it is to find (Page, 1954)
CLIP = 4.0  # spreads: one value says no more than that
HIGH_MIN = 3.0  # what that sum must come to for a slight rise of the loss to be part of the trouble (noise: 1 in 20)
NORM_MIN = 8.0  # and of a gradient norm, whose noise is less even
LOW_MIN = 12.0  # what that sum must come to for a stretch of low values to be part of the trouble: repeated batches
BEND_WINDOW = 64  # values, and four times as many as the trouble has lasted: enough to see what was before it
BEND_WINDOW_MAX = 1024
BEND_CLIP = 8.0
BEND_PLACES = 96  # that are tried as the place of the bend
BEND_GAIN_MIN = 20.0  # in units of the noise's variance: less is no bend
BEND_BELIEVED = 8.0  # so much less likely, in the same units, a place still may be the true one (3 in 1,000 are not)
EARLIEST, EARLIEST_TIMES = (
    32,
    4,
)  # and times what a detector counts: of 80 rises made, 4.7 times 27 was most
ROUNDING = 1e-6  # of the value: a spread below this is float32's, not the run's
SMALLEST = 1e-12
MARGIN = 2  # values before the first that is seen to be out of order, and
MARGIN_PART = 3  # a third of those since: what grows had no number at first, for the longer, the slower it grows
MARGIN_PART_SLOW = 1  # as many again: a rise of a spread in twenty steps was hidden by noise for twenty of forty


@record
class Onset:
    """`step`: the first whose state is not trusted. `level` and `spread` of the loss just before it; None where
    there was too little to say."""

    step: int
    level: float | None = None
    spread: float | None = None


@record
class Usual:
    """A line from index `begin` on, where it stands at `height`, and the spread about it."""

    begin: int
    height: float
    slope: float
    spread: float


def onset(steps: Steps, losses: Floats, log_norms: Floats, *, rising: int = 0) -> Onset:
    """Where the trouble began that was noticed at the last of `steps` (int64, ascending). `rising`: for how many
    values it has been so already, as the detector counts that has noticed it.

    `losses` and `log_norms` (float64, of the same length) hold NaN where nothing is known. The loss of a step is
    computed with the weights of the step before: what shows first at one step spoils the state before it already."""
    known = np.flatnonzero(np.isfinite(losses))
    first = len(steps) - 1
    level = spread = None
    if len(known):
        values = losses[known]
        start, level, spread = _walked_back(values, max(FRESH, RISING_TIMES * rising))
        if level is not None and spread:
            start = min(start, _bend(steps[known], values, start, level, spread))
        first = min(first, int(known[start])) if start < len(values) else first
    known = np.flatnonzero(np.isfinite(log_norms))
    if len(known):
        first = min(first, _of_norms(log_norms[known], known, first))
    unseen = (len(steps) - first) // (MARGIN_PART_SLOW if rising else MARGIN_PART)
    before = first - 1 - MARGIN - unseen
    if rising:
        before = max(before, len(steps) - EARLIEST - EARLIEST_TIMES * rising)
    step = int(steps[before]) if before >= 0 else max(0, int(steps[0]) - 1)
    return Onset(step=step, level=level, spread=spread)


def _of_norms(values: Floats, places: NDArray[np.intp], first: int) -> int:
    """The index of the first norm out of order that belongs to a trouble which shows in the loss at `first`."""
    start = int(np.searchsorted(places, first))
    usual = _usual(values[: max(0, start - FRESH)])
    if usual is None:
        return first
    apart = _apart(values, usual)
    for _ in range(ROUNDS_MAX):
        earlier = _begun(apart, start, NORM_MIN)
        if earlier >= start:
            break
        start = earlier
        usual = _usual(values[:start])
        if usual is None:
            break
        apart = _apart(values, usual)
    return int(places[start]) if start < len(places) else first


def _walked_back(values: Floats, fresh: int) -> tuple[int, float | None, float | None]:
    """The index of the first value out of order before the end of `values`, the level there and the spread about it."""
    start = max(0, len(values) - fresh)
    level = spread = None
    for _ in range(ROUNDS_MAX):
        usual = _usual(values[:start], REFERENCE + 2 * (fresh - FRESH))
        if usual is None:
            break
        apart = _apart(values, usual)
        level, spread = usual.height + usual.slope * (start - usual.begin), usual.spread
        earlier = _begun(apart, len(values), HIGH_MIN)
        later, start = earlier >= start, earlier
        if later:  # what was taken for the trouble's own is as usual
            break
    return start, level, spread


def _usual(values: Floats, count: int = REFERENCE) -> Usual | None:
    """What the last `count` values were like: a line by the medians of eight blocks and the median of the slopes
    between them (Theil and Sen), and the spread about it by the MAD."""
    if len(values) < REFERENCE_MIN:
        return None
    begin = max(0, len(values) - count)
    recent = values[begin:]
    blocks = [
        (float(block.mean()), float(np.median(recent[block]))) for block in np.array_split(np.arange(len(recent)), 8)
    ]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for n, a in enumerate(blocks) for b in blocks[n + 1 :]]
    slope = float(np.median(slopes))
    line = recent - slope * np.arange(len(recent))
    height = float(np.median(line))
    spread = 1.4826 * float(np.median(np.abs(line - height)))
    return Usual(begin=begin, height=height, slope=slope, spread=max(spread, ROUNDING * abs(height), SMALLEST))


def _apart(values: Floats, usual: Usual) -> Floats:
    """How far each lies from what was usual, in spreads, within what a single value can say; 0 before that was seen."""
    residual = values - usual.height - usual.slope * (np.arange(len(values)) - usual.begin)
    residual[: usual.begin] = 0.0
    return np.clip(residual / usual.spread, -2 * STANDS_OUT, 2 * STANDS_OUT)


def _begun(apart: Floats, end: int, least: float) -> int:
    """The index before `end` where a trouble began that lasts until there: what stands out, a slight rise before that,
    and a stretch of low values before both."""
    first = _stood_out(apart, end)
    first = min(first, _summed_back(apart[:first], least))
    return min(first, _summed_back(-apart[:first], LOW_MIN))


def _stood_out(apart: Floats, end: int) -> int:
    """The index of the first of the values before `end` that stand out with less than GAP usual ones between them."""
    out = np.flatnonzero(np.abs(apart[:end]) > STANDS_OUT)
    first = end
    for place in out[::-1]:
        if first - place > GAP:
            break
        first = int(place)
    return first


def _summed_back(apart: Floats, least: float) -> int:
    """Where the sum of what is above the slack is largest, walking back from the end; the end if it stays small."""
    if not len(apart):
        return 0
    sums = np.cumsum(np.clip(apart[::-1], -CLIP, CLIP) - SLACK)
    best = int(np.argmax(sums))
    return len(apart) - 1 - best if sums[best] > least else len(apart)


def _bend(steps: Steps, values: Floats, start: int, level: float, spread: float) -> int:
    """The earliest index at which the course may have bent up: a step, a ramp and a ramp that steepens, each beside a
    learning curve (a line, and the logarithm of the step), are fitted by least squares, and of all places that are
    about as likely as the best one the first counts."""
    size = min(len(values), BEND_WINDOW_MAX, BEND_WINDOW + 4 * (len(values) - start))
    if size < REFERENCE_MIN:
        return start
    recent = values[-size:]
    recent = np.clip(recent, level - BEND_CLIP * spread, level + BEND_CLIP * spread) / spread
    ticks = np.arange(size, dtype=np.float64)
    learning = np.log(np.maximum(1.0, steps[-size:]))
    base, _ = np.linalg.qr(np.stack([np.ones(size), ticks, learning], axis=1))
    course = recent - base @ (base.T @ recent)
    places = np.unique(np.linspace(4, size - 2, BEND_PLACES).astype(np.int64))
    ramp = np.maximum(0.0, ticks - places[:, None] + 1)
    shapes = np.concatenate([(ramp > 0).astype(np.float64), ramp, ramp**2])
    shapes -= (shapes @ base) @ base.T
    along = shapes @ course
    gains = np.where(along > 0.0, along**2 / np.maximum(np.sum(shapes**2, axis=1), 1e-12), 0.0)
    noise = max((float(course @ course) - float(gains.max())) / size, 1e-12)
    gains /= noise
    if gains.max() < BEND_GAIN_MIN:
        return start
    likely = np.tile(places, 3)[gains >= gains.max() - BEND_BELIEVED]
    return len(values) - size + int(likely.min())
