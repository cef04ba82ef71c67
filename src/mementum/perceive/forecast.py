"""In how many steps a measured amount will reach its limit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

KEPT = 64  # samples: 320 steps at one look every 5; an older past says little about the next steps
FEWEST = 4  # with less, a line fits anything
SPREAD = 1.4826  # of the median absolute deviation, to compare with the standard deviation of a normal one
SURE = 3.0  # standard errors by which an amount must have risen, to be said to grow
SLOPE_ERROR = 5.0  # times spread / sqrt(samples): the error of the rise over all samples, by medians of half spans
RISE_PART = 1e-3  # of the limit; a rise below it leaves more than 1000 spans of time
DROP_NOISE = 8.0  # spreads that an amount falls where memory was given back, and does not merely waver
DROP_PART = 0.1  # and of the range of all samples
TRIED = 6  # newest samples on which lines through longer and shorter pasts are tried
BETTER = 1.5  # times nearer must a line through a shorter past come, since it comes nearer by chance too
PEAKS_FEWEST = 3  # two are on any line
STAIRS_FEWEST = 3
STAIR_PART = 0.02  # of the range of all samples, that a jump is at least: more than a step of an even rise over all
ENDED = 2.0  # times the longest stair: whoever stays on one for longer has stopped climbing
LONGER = 1.5  # times the longest rise before it: a rise of that length is no tooth of the same saw
HIGH = 0.9  # quantile of what lies above the line: the peaks meet the limit, not the middle

Sample = tuple[float, float]  # step, amount


class Forecast:
    """Steps until an amount that was seen at some steps reaches a limit: a robust line through its newest samples.

    Slopes are medians over pairs that lie half of the samples apart (the incomplete method of Theil, 1950): 32 pairs
    where the complete one takes 2016, within 0.2 ms. What falls now and then (a garbage collector, a caching allocator)
    is judged by its peaks, and by a rise of its own only when that goes above them or lasts longer than any before."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, step: int, amount: float) -> None:
        """A step that was seen before replaces what is known of it and of later ones: training went back."""
        while self._samples and self._samples[-1][0] >= step:
            self._samples.pop()
        self._samples.append((float(step), float(amount)))

    def steps_left(self, limit: float) -> float:
        """From the newest sample until the limit: 0 at or above it, inf where the amount does not grow."""
        samples = tuple(self._samples)
        if samples and samples[-1][1] >= limit:
            return 0.0
        if len(samples) < FEWEST or _range(samples) < RISE_PART * limit:
            return math.inf
        rises = _rises(samples)
        if len(rises) > 1:
            return _saw_left(rises, limit)
        stairs = _stairs(samples)
        if len(stairs) >= STAIRS_FEWEST:
            return _stairs_left(stairs, samples[-1][0], limit)
        if stairs:
            samples = samples[samples.index(stairs[-1]) :]
        return _line_left(_newest_line(samples), limit) if len(samples) >= FEWEST else math.inf


def _stairs(samples: Sequence[Sample]) -> list[Sample]:
    """The first samples after a jump with none beside it, where such jumps make up most of the rise."""
    steps = _steps(samples)
    least = max(DROP_NOISE * _noise(steps), STAIR_PART * _range(samples))
    jumped = [False, *(step > least for step in steps), False]
    alone = [index for index in range(1, len(samples)) if jumped[index] and not any(jumped[index - 1 : index + 2 : 2])]
    risen = sum(steps[index - 1] for index in alone)
    return [samples[index] for index in alone] if risen > _range(samples) / 2 else []


def _stairs_left(stairs: Sequence[Sample], now: float, limit: float) -> float:
    """The limit is met by a jump, not between two."""
    between = [after[0] - before[0] for before, after in pairwise(stairs)]
    last, height = stairs[-1], (stairs[-1][1] - stairs[0][1]) / len(between)
    if height <= 0 or now - last[0] > ENDED * max(between):
        return math.inf
    reached = last[0] + math.ceil((limit - last[1]) / height) * sum(between) / len(between)
    return max(0.0, reached - now)


def _saw_left(rises: Sequence[tuple[Sample, ...]], limit: float) -> float:
    """Of rises that each end in a drop, save the last one, which is still going on."""
    *before, now = rises
    peaks = [max(rise, key=lambda sample: sample[1]) for rise in before]
    slope = _slope(peaks) if len(peaks) >= PEAKS_FEWEST else 0.0
    expected = peaks[-1][1] + max(0.0, slope) * (now[-1][0] - peaks[-1][0])
    above = now[-1][1] > expected + DROP_PART * (expected - now[0][1])
    longer = _length(now) > LONGER * max(map(_length, before))
    if len(now) >= FEWEST and (above or longer):
        return _line_left(_newest_line(now), limit)
    rise = slope * _length(peaks)
    if rise <= 0 or rise < RISE_PART * limit or rise < SURE * _error(peaks, slope):
        return math.inf
    return max(0.0, peaks[-1][0] + (limit - peaks[-1][1]) / slope - now[-1][0])


def _line_left(samples: Sequence[Sample], limit: float) -> float:
    slope = _slope(samples)
    rise = slope * _length(samples)
    if rise <= 0 or rise < RISE_PART * limit or rise < SURE * _error(samples, slope):
        return math.inf
    middle = median(amount - slope * step for step, amount in samples)
    above = sorted(amount - slope * step - middle for step, amount in samples)
    peak = above[min(len(above) - 1, int(HIGH * len(above)))]
    return max(0.0, (limit - middle - peak) / slope - samples[-1][0])


def _newest_line(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """As many of the newest samples as lie on one line: those whose line, had it been drawn before the last few, would
    have met these best."""
    if len(samples) < 2 * FEWEST + TRIED:
        return samples[-max(FEWEST, len(samples) - len(samples) % 2) :]
    past, newest = samples[:-TRIED], samples[-TRIED:]
    best, least = samples, _missed(past, newest) / BETTER
    size = len(past) // 2
    while size >= FEWEST:
        missed = _missed(past[-size:], newest)
        if missed < least:
            best, least = samples[-size - TRIED :], missed
        size //= 2
    return best


def _missed(past: Sequence[Sample], newest: Sequence[Sample]) -> float:
    """How far the line through the past lies from the newest samples."""
    slope = _slope(past)
    middle = median(amount - slope * step for step, amount in past)
    return median(abs(amount - slope * step - middle) for step, amount in newest)


def _rises(samples: tuple[Sample, ...]) -> list[tuple[Sample, ...]]:
    """The samples, parted where the amount drops."""
    drop = max(DROP_NOISE * _noise(_steps(samples)), DROP_PART * _range(samples))
    rises, begin, peak = [], 0, samples[0][1]
    for index, (_, amount) in enumerate(samples):
        if peak - amount > drop:
            rises.append(samples[begin:index])
            begin, peak = index, amount
        peak = max(peak, amount)
    return [*rises, samples[begin:]]


def _steps(samples: Sequence[Sample]) -> list[float]:
    return [after[1] - before[1] for before, after in pairwise(samples)]


def _noise(steps: Sequence[float]) -> float:
    """The spread of an amount about its line, from the differences of neighbours."""
    usual = median(steps)
    return SPREAD * median(abs(step - usual) for step in steps) / math.sqrt(2)


def _slope(samples: Sequence[Sample]) -> float:
    """The median over pairs that lie half of the samples apart."""
    half = len(samples) // 2
    pairs = zip(samples, samples[len(samples) - half :] if half < 2 else samples[half:], strict=False)
    return median((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs)


def _error(samples: Sequence[Sample], slope: float) -> float:
    """The standard error of the rise over all samples."""
    off = [amount - slope * step for step, amount in samples]
    middle = median(off)
    return SLOPE_ERROR * SPREAD * median(abs(value - middle) for value in off) / math.sqrt(len(off))


def _length(samples: Sequence[Sample]) -> float:
    return samples[-1][0] - samples[0][0]


def _range(samples: Sequence[Sample]) -> float:
    amounts = [amount for _, amount in samples]
    return max(amounts) - min(amounts)
