"""Onset: the step at which a trouble that has just been noticed began, estimated on the early side."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, exp, log

import numpy as np
from numpy.typing import NDArray

from mementum.records import record

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Found = tuple[int, float | None, float | None]  # an index, the level there and the spread about it

FRESH = 8  # values before the look that are taken for the trouble's own at first: no detector needs more of a spike
REFERENCE_MIN = 16  # before that many there is no saying what was usual
ROUNDS_MAX = 8  # of guess and new reference: each goes further back, and most stay after two
LONG_MIN = 10.0  # and where more values are searched for one: most that is found in them is noise
LONG_SHOWN = 2.0  # spreads above what was usual before, that the newest few must be: what is over is no trouble
STANDS_OUT = 4.0  # spreads, of a loss's or a norm's logarithm: one of 1,000 healthy values or so
SLACK = 0.5  # spreads a value, of the sum that walks back: half of the smallest shift that it is to find (Page, 1954)
HIGH_MIN = 3.0  # what that sum must come to for a slight rise of the loss to be part of the trouble (noise: 1 in 20)
CLIP = 4.0  # spreads: one value says no more than that
NORM_MIN = 8.0  # and of a gradient norm, whose noise is less even
MISSING_TIMES = 2  # the usual distance between two known norms: where there is none for longer, nothing is trusted
LOW_WINDOW = 32  # values before a trouble that may have been too low already, as those of a batch that repeats are
LOW_REFERENCE = 96  # values before those
LOW_SLACK = 1.0
LOW_MIN = 12.0  # what that sum must come to for them to be part of the trouble
SMOOTH_BLOCK = 8  # values whose typical bend from one to the next is compared
SMOOTH_PART = 0.25  # of what is usual: losses of one batch that repeats have a hundredth, by chance one block in 100
SMOOTH_BLOCKS_MIN = 3  # in a row
RISING_TIMES = 3  # a level that follows a slow rise makes it look that much shorter
BEND_WINDOW = 64  # values, and four times as many as the trouble has lasted: enough to see what was before it
BEND_WINDOW_MAX = 1024
BEND_CLIP = 8.0
BEND_PLACES = 96  # that are tried as the place of the bend
BEND_GAIN_MIN = 20.0  # in units of the noise's variance: less is no bend
BEND_BELIEVED = 8.0  # so much less likely, in the same units, a place still may be the true one (3 in 1,000 are not)
EARLIEST, EARLIEST_TIMES = 32, 6  # and times what a detector counts: of 400 rises made, 6.9 times 46 was most,
EARLIEST_MAX = 320  # and 319 values in all
ROUNDING = 1e-6  # of the value: a spread below this is float32's, not the run's
SMALLEST = 1e-12
MARGIN = 2  # values before the first that is seen to be out of order, and
MARGIN_PART = 3  # a third of those since: what grows had no number at first, for the longer, the slower it grows
MARGIN_PART_SLOW = 1  # as many again: a rise of a spread in twenty steps was hidden by noise for twenty of forty
FEW = 3  # values whose median is compared
SHOWN = 2.0  # spreads, that the last few must be above the level for more to be said of how it grew
AT_ONCE = 8.0  # spreads: what came to as much from one value to the next, and
LEAP = 4.0  # to so many times the highest of the few before, was not hidden before that; nor does it go on to
GROWN = 1.5  # times as much
OWN_LEAD = 4  # values before the first that stands out: the more there are beyond these, the less is hidden
FAINT = 0.05  # spreads: where what grows from step to step is taken to have begun
# Looks that what did not come at once is followed back. The least, with the margins: 25, the distance of snapshots. Of
# 1,450 troubles that were made none is later than 34, which is what growth by 15 % a step needs; twice as slow is a
# drift.
HIDDEN_MIN, HIDDEN_MAX = 22, 34


@record
class Onset:
    """`step`: the first whose state is not trusted. `level` and `spread` of the loss just before it; None where
    there was too little to say."""

    step: int
    level: float | None = None
    spread: float | None = None


@record
class Search:
    """How to walk back from a trouble. `fresh`: values before the look that are taken for its own at first.
    `reference`: values before them that say what was usual. `falls_on`: whether the line through those falls on after
    their end. `lows`: whether what lies below it can stand out. `least`: what the sum of a slight rise must come to.
    `gap`, `norm_gap`: usual losses and norms in a row that separate it from an outlier before it. `back`: values that
    are searched at most."""

    fresh: int
    reference: int
    falls_on: bool
    lows: bool
    least: float
    gap: int
    norm_gap: int
    back: int


# What jumps is seen within some steps. A line through few values follows a learning curve, which falls ever less.
SUDDEN = Search(fresh=FRESH, reference=32, falls_on=False, lows=True, least=HIGH_MIN, gap=10, norm_gap=5, back=48)
# What rises for long is a part of what is taken for usual, if that ends so late.
LONG = replace(SUDDEN, fresh=24, reference=64, lows=False, least=LONG_MIN)
# What drifts is seen late, and needs a line that is right to a part of a spread.
SLOW = Search(
    fresh=FRESH, reference=96, falls_on=True, lows=True, least=HIGH_MIN, gap=10, norm_gap=10, back=BEND_WINDOW_MAX
)


@record
class Usual:
    """A line from index `begin` to `end`, and the spread about it. `height`: where it stands at `begin`."""

    begin: int
    end: int
    height: float
    slope: float
    spread: float

    @property
    def level(self) -> float:
        """Where it stands at `end`."""
        return self.height + self.slope * (self.end - self.begin)


def onset(steps: Steps, losses: Floats, log_norms: Floats, *, rising: int = 0) -> Onset:
    """Where the trouble began that was noticed at the last of `steps` (int64, ascending). `rising`: for how many
    values it has been so already, as the detector counts that has noticed it; 0: it came suddenly.

    `losses` and `log_norms` (float64, of the same length) hold NaN where nothing is known. The loss of a step is
    computed with the weights of the step before: what shows first at one step spoils the state before it already."""
    search = SLOW if rising else SUDDEN
    count = len(steps)
    first, hidden, floor = count - 1, 0, 0
    level = spread = None
    known = np.flatnonzero(np.isfinite(losses))
    if len(known):
        values, is_log = _evened(losses[known])
        start, level, spread = _walked_back(values, RISING_TIMES * rising, search)
        if rising and level is not None and spread:
            start = min(start, _bend(steps[known], values, start, level, spread))
        elif not rising:
            start, level, spread = min((start, level, spread), _of_long(values), key=lambda found: found[0])
        if level is None and 2 * len(known) <= count:  # it may have begun before the few that are remembered
            start = 0
        if is_log and level is not None and spread:
            level, spread = exp(level), exp(level) * spread
        if start < len(values):  # a loss that was as usual says something of the weights before its own step
            first = min(first, int(known[start - 1]) + 1 if start else 0)
        if not rising and level is not None and spread:
            hidden = _hidden((losses[known] - level) / spread, start, count // len(known))
        floor = int(known[max(0, len(known) - min(EARLIEST + EARLIEST_TIMES * rising, EARLIEST_MAX))])
    begun = first - hidden
    norms = np.flatnonzero(np.isfinite(log_norms))
    if len(norms):
        first = min(first, _of_norms(log_norms[norms], norms, first, count, search))
    seen_for = count - first
    unseen = seen_for // MARGIN_PART_SLOW if rising else min(seen_for, search.back) // MARGIN_PART
    before = min(begun, first - unseen) - 1 - MARGIN
    if rising:
        before = max(before, floor)
    step = int(steps[before]) if before >= 0 else max(0, int(steps[0]) - 1)
    return Onset(step=step, level=level, spread=spread)


def _hidden(above: Floats, start: int, apart: int) -> int:
    """For how many looks a trouble was there already before the first of its values, `above[start]`, in spreads above
    the level; known are those of looks so far `apart`. 0 for what came at once. What grows by the same part at each is
    followed back to where it was faint."""
    own = above[start:]
    few = min(FEW, len(own) // 2)
    if not few or float(np.median(own[:few])) < -1.0:  # a stretch that was too good: it has been found whole
        return 0
    at_first, at_last = max(1.0, float(np.median(own[:few]))), float(np.median(own[-few:]))
    out = _stood_out(np.maximum(own, 0.0), len(own), FEW)
    leap = float(np.median(own[out : out + FEW])) if out < len(own) else 0.0
    lead = float(np.max(above[max(0, start + out - FEW) : start + out], initial=0.0))
    if at_last < SHOWN or (leap >= max(AT_ONCE, LEAP * lead) and at_last < GROWN * leap):
        return 0
    least = max(0, HIDDEN_MIN - max(0, out - OWN_LEAD))
    if few < FEW or at_last < GROWN * at_first:
        return least
    hidden = ceil(log(at_first / FAINT) * (len(own) - few) / log(at_last / at_first))
    return max(least, apart * min(hidden, HIDDEN_MAX - out))


def _evened(losses: Floats) -> tuple[Floats, bool]:
    """Their logarithms, where none is negative: a curve of learning is nearer to a line in them, and its noise, which
    shrinks with it, even. A loss of 0 counts as the smallest that is not."""
    above = losses[losses > 0.0]
    if not len(above) or losses.min() < 0.0:
        return losses, False
    return np.log(np.maximum(losses, above.min())), True


def _of_norms(values: Floats, places: NDArray[np.intp], first: int, count: int, search: Search) -> int:
    """The index, of `count`, of the first norm out of order that belongs to a trouble which shows in the loss at
    `first`; or of the first that is missing, where norms used to be known and no longer are."""
    start = int(np.searchsorted(places, first))
    last = int(places[-1])
    if len(places) >= REFERENCE_MIN and count - 1 - last > MISSING_TIMES * float(np.median(np.diff(places))):
        first = min(first, max(last + 1, count - search.back))
    usual = _usual(values[: max(0, start - FRESH)], search.reference)
    for _ in range(ROUNDS_MAX):
        if usual is None:
            break
        apart = _apart(values, usual, falls_on=search.falls_on)
        earlier = max(_begun(apart, start, search.norm_gap, NORM_MIN), min(start, len(values) - search.back))
        if earlier >= start:
            break
        start = earlier
        usual = _usual(values[:start], search.reference)
    return min(first, int(places[start])) if start < len(places) else first


def _of_long(values: Floats) -> Found:
    """As `_walked_back`, for a rise that began so long ago that what was usual is to be found before it; an index
    beyond all of `values` where there is none."""
    start, level, spread = _walked_back(values, 0, LONG)
    if level is None or spread is None or float(np.median(values[-FEW:])) <= level + LONG_SHOWN * spread:
        return len(values) + 1, None, None
    return start, level, spread


def _walked_back(values: Floats, fresh: int, search: Search) -> Found:
    """The index of the first value out of order before the end of `values`, the level there and the spread about it.
    `fresh`: values that are the trouble's own at least."""
    fresh = max(fresh, search.fresh)
    start = max(0, len(values) - fresh)
    usual = None
    for _ in range(ROUNDS_MAX):
        found = _usual(values[:start], search.reference + 2 * max(0, fresh - search.fresh))
        if found is None:
            break
        usual = found
        apart = _apart(values, usual, falls_on=search.falls_on)
        if not search.lows:
            apart = np.maximum(apart, -STANDS_OUT)
        earlier = max(_begun(apart, len(values), search.gap, search.least), len(values) - search.back)
        later, start = earlier >= start, earlier
        if later:  # what was taken for the trouble's own is as usual
            break
    good = min(_low(values, start), _smooth(values, start))
    if good < start:
        start, usual = good, _usual(values[:good], LOW_REFERENCE) or usual
    if usual is None:
        return start, None, None
    return start, usual.level, usual.spread


def _usual(values: Floats, count: int) -> Usual | None:
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
    return Usual(
        begin=begin,
        end=len(values),
        height=height,
        slope=slope,
        spread=max(spread, ROUNDING * abs(height), SMALLEST),
    )


def _apart(values: Floats, usual: Usual, *, falls_on: bool) -> Floats:
    """How far each lies from what was usual, in spreads, within what a single value can say; 0 before that was seen."""
    places = np.arange(len(values)) - usual.begin
    if not falls_on:
        places = np.minimum(places, usual.end - usual.begin)
    residual = values - usual.height - usual.slope * places
    residual[: usual.begin] = 0.0
    return np.clip(residual / usual.spread, -2 * STANDS_OUT, 2 * STANDS_OUT)


def _begun(apart: Floats, end: int, gap: int, least: float) -> int:
    """The index before `end` where a trouble began that lasts until there: what stands out, and a slight rise before
    that, whose sum is more than `least`."""
    first = _stood_out(apart, end, gap)
    return min(first, _summed_back(apart[:first], least, SLACK))


def _stood_out(apart: Floats, end: int, gap: int) -> int:
    """The index of the first of the values before `end` that stand out with less than `gap` usual ones between them."""
    out = np.flatnonzero(np.abs(apart[:end]) > STANDS_OUT)
    first = end
    for place in out[::-1]:
        if first - place > gap:
            break
        first = int(place)
    return first


def _summed_back(apart: Floats, least: float, slack: float) -> int:
    """Where the sum of what is above the slack is largest, walking back from the end; the end if it stays small."""
    if not len(apart):
        return 0
    sums = np.cumsum(np.clip(apart[::-1], -CLIP, CLIP) - slack)
    best = int(np.argmax(sums))
    return len(apart) - 1 - best if sums[best] > least else len(apart)


def _low(values: Floats, start: int) -> int:
    """The index where a stretch of values began that were too low, if they lasted until `start`; else `start`."""
    usual = _usual(values[: max(0, start - LOW_WINDOW)], LOW_REFERENCE)
    if usual is None:
        return start
    return _summed_back(-_apart(values[:start], usual, falls_on=True), LOW_MIN, LOW_SLACK)


def _smooth(values: Floats, start: int) -> int:
    """The index where a stretch without noise began, if it lasted until `start`; else `start`: a batch that repeats. A
    single block with noise does not end it."""
    bends = np.abs(np.diff(values[:start], 2))
    count = len(bends) // SMOOTH_BLOCK
    if count < SMOOTH_BLOCKS_MIN:
        return start
    blocks = np.median(bends[len(bends) - count * SMOOTH_BLOCK :].reshape(count, SMOOTH_BLOCK), axis=1)[::-1]
    smooth = blocks < SMOOTH_PART * np.quantile(blocks, 0.75)
    if not smooth[:SMOOTH_BLOCKS_MIN].all():
        return start
    rough = np.flatnonzero(~smooth[:-1] & ~smooth[1:])
    length = int(rough[0]) if len(rough) else count
    return max(0, start - (length + 1) * SMOOTH_BLOCK)


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
