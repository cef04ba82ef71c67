"""One optimizer's gradients: read at its step, and understood when the values have come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from math import isfinite, log, nan, sqrt
from operator import is_, is_not
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from mementum.perceive import adam, hot
from mementum.perceive.layers import Layers
from mementum.perceive.robust import RunningMedian
from mementum.perceive.sample import BLOCK, Sample, dense_of, full_norms
from mementum.perceive.vitals import GradientReading
from mementum.records import record

MISSED_KEPT = 0.75  # of what is known of the misses, at each new one: some four full readings count
MISS_MAX = 3.0  # of a logarithm: a factor of twenty is no estimate at all, and more is none either
UNTOLD = 0.1  # the same: a sample that misses by less is good enough, even where the usual norm is nearer
WILD = 20.0  # times the usual norm, or a part of it: further off an estimate is none, and more is told by no alarm
UNSURE = 0.5  # of a logarithm: a layer whose sample misses by more is compared with nothing
CALIBRATIONS = 9  # full readings whose factors count: their median passes four wild ones by
ERRORS = 64  # full readings over which the error of the estimate is told


@record
class Read:
    """What was read at a step, in the order of its values: norms of samples, of hot rows, of whole tensors, of whole
    ones and their hottest rows (in pairs), moments, loss scale."""

    sample: Sample
    present: tuple[int, ...]  # numbers of the parameters that had a gradient
    hot: tuple[int, ...] = ()  # of those of which hot rows were read
    full: tuple[int, ...] = ()  # of those that were read in full
    rows: tuple[tuple[int, torch.Tensor], ...] = ()  # of those that were read by rows, and which were the hottest
    turn: int = 0  # how often all had been read in full before
    moments: adam.Moments | None = None
    scaled: bool = False
    checked: bool = False  # whether the optimizer is told of an overflow, at which it leaves out the step


class Stepping:
    """What is known of one optimizer's gradients. `square`: of its last norm; None before the first."""

    def __init__(self, name: str, optimizer: Optimizer, names: Mapping[int, str], *, full_every: int) -> None:
        self.name = name
        self.errors = RunningMedian(ERRORS)
        self.square: float | None = None
        self._update: tuple[float, float] | None = None  # the ratio, and the rate of the first group it was read with
        self.curvature: float | None = None
        self._optimizer, self._names = optimizer, names
        self._full_every, self._count = full_every, 0
        self._layers = Layers(())
        self._factors: dict[int, RunningMedian] = {}
        self._lay_out([])

    @property
    def part(self) -> float:
        return self._sample.part

    @property
    def update_ratio(self) -> float | None:
        """Median over the layers of update to weight, as last read, at the learning rate of now."""
        if self._update is None:
            return None
        ratio, rate = self._update
        now = adam.known(self._optimizer.param_groups[0]["lr"])
        return ratio if now is None else ratio * (now / rate)

    def forget(self) -> None:
        """What the last steps showed is of no use any more."""
        self.square = self._update = self.curvature = None

    def read(self) -> tuple[Read, list[torch.Tensor]] | None:
        """Queue the reading of the gradients that are there; None where there are none. Waits for no device."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if len(parameters) != len(self._parameters) or not all(map(is_, parameters, self._parameters)):
            self._lay_out(parameters)
        gradients: list[torch.Tensor | None] = [parameter.grad for parameter in parameters]
        present = self._everything
        if not all(map(is_not, gradients, repeat(None))):
            present = tuple(number for number, gradient in enumerate(gradients) if gradient is not None)
        if not present or (self._sample.on_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        parts = self._sample.norms(gradients)
        full: tuple[int, ...] = ()
        rows: tuple[tuple[int, torch.Tensor], ...] = ()
        moments = None
        turn, place = divmod(self._count, self._full_every)
        # All at first; then some at each reading, so that no step pays for all.
        wanted = self._factors if self._count == 0 else self._turns[place]
        warm = self._read_hot(gradients, parts)
        numbers = [number for number in wanted if gradients[number] is not None]
        if numbers:
            full, rows = self._read_in_full(numbers, gradients, parts)
        if place == self._full_every // 2:
            moments = adam.read(self._optimizer, self._parameters, self._sample, parts)
        self._count += 1
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            parts.append(scale.reshape(1))
        read = Read(
            sample=self._sample,
            present=present,
            hot=warm,
            full=full,
            rows=rows,
            turn=turn,
            moments=moments,
            scaled=scale is not None,
            checked=getattr(self._optimizer, "found_inf", None) is not None,
        )
        return read, parts

    def digest(self, read: Read, values: Sequence[float]) -> GradientReading | None:
        """Understand the values of a reading; None where a loss scale makes the optimizer leave out the step."""
        order, count = self._sample.order, len(self._parameters)
        if read.sample is not self._sample:
            return None  # the parameters are others by now
        norms = list(values[:count])
        if not self._sample.in_order:
            for number, norm in zip(order, values, strict=False):
                norms[number] = norm
        if len(read.present) < count:
            there = set(read.present)
            norms = [norm if number in there else nan for number, norm in enumerate(norms)]
        for number, norm in zip(read.hot, values[count:], strict=False):
            norms[number] = norm
        place = count + len(read.hot)
        fulls = dict(zip(read.full, values[place:], strict=False))
        place += len(read.full)
        hottest: dict[int, float] = {}
        for number, _ in read.rows:
            fulls[number], hottest[number] = values[place : place + 2]
            place += 2
        scale = values[-1] if read.scaled else 1.0
        if not isfinite(sum(norms[number] for number in read.present) + sum(fulls.values())):
            return None if read.scaled or read.checked else GradientReading(finite=False)
        self.square, layers = self._estimate(norms, fulls, scale, turn=read.turn)
        for number, rows in read.rows:
            self._follow(number, rows, norms[number], hottest[number], fulls[number])
        if read.moments is not None:
            self._update, self.curvature = adam.understand(
                read.moments, values[place:], self._sample, self._layer_of, layers=len(self._layers.names)
            )
        largest = self._layers.largest_ratio(layers)
        return GradientReading(
            norm=sqrt(self.square),
            layer_ratio=None if largest is None else largest[0],
            layer=None if largest is None else largest[1],
            update_ratio=self.update_ratio,
            curvature=self.curvature,
        )

    def state(self) -> dict[str, Any]:
        factors = {str(number): factor.median() for number, factor in self._factors.items() if len(factor)}
        return {"layers": self._layers.state(), "factors": factors}

    def apply(self, state: Mapping[str, Any]) -> None:
        self._lay_out([parameter for group in self._optimizer.param_groups for parameter in group["params"]])
        self._layers.apply(state["layers"])
        for number, factor in self._factors.items():
            if str(number) in state["factors"]:
                factor.add(float(state["factors"][str(number)]))
                self._factor[number] = factor.median()

    def _lay_out(self, parameters: list[torch.Tensor]) -> None:
        """Made anew only where the optimizer has other parameters; what is usual for a layer stays known."""
        self._parameters = parameters
        self._everything = tuple(range(len(parameters)))
        self._sample = Sample(parameters)
        names = [self._names.get(id(one), f"{self.name}[{number}]") for number, one in enumerate(parameters)]
        place = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._layer_of = [place[name] for name in names]
        usual = self._layers.state()
        self._layers = Layers(tuple(place))
        self._layers.apply(usual)
        sizes = self._sample.sizes
        self._factor = [sqrt(max(1.0, size / BLOCK)) for size in sizes]
        self._factors = {n: RunningMedian(CALIBRATIONS) for n, size in enumerate(sizes) if size > BLOCK}
        self._fulls = {number: RunningMedian(CALIBRATIONS) for number in self._factors}
        self._misses = dict.fromkeys(self._factors, (0.0, 0.0))  # of the sample, of the usual norm
        self._around: dict[int, float] = {}  # the median of the last full norms
        self._last: dict[int, float] = {}  # the last full norm: what stands for a tensor as long as it is unsure
        self._unsure = set(self._factors)  # those of which nobody knows yet whether the sample tells anything
        self._usual: dict[int, float] = {}  # of those whose sample tells less than what is usual
        self._hot: dict[int, torch.Tensor] = {}  # rows whose norm is read in the place of the sample's
        self._turns = _in_turns(self._factors, sizes, self._full_every)
        self._turn, self._sums, self._count = 0, [0.0, 0.0], 0

    def _estimate(
        self, norms: Sequence[float], fulls: Mapping[int, float], scale: float, *, turn: int
    ) -> tuple[float, Sequence[float]]:
        """The square of the norm of all, and each layer's norm, NaN where none of it was there; calibrates by the
        way."""
        best = [norm * factor / scale for norm, factor in zip(norms, self._factor, strict=True)]
        for number, around in self._around.items():
            best[number] = min(max(best[number], around / WILD), around * WILD)  # what is NaN stays so
        for number, usual in self._usual.items():
            if norms[number] == norms[number]:
                best[number] = usual
        for number in self._unsure:
            if number in self._last and norms[number] == norms[number]:
                best[number] = self._last[number]
        if turn != self._turn:
            self._end_turn(turn, _square([norm for number, norm in enumerate(best) if number not in self._factors]))
        for number, full in fulls.items():
            self._sums[0] += best[number] ** 2
            best[number] = full / scale
            self._sums[1] += best[number] ** 2
            self._calibrate(number, norms[number] / scale, best[number])
        square = _square(best)
        squares = [nan] * len(self._layers.names)
        for norm, layer in zip(best, self._layer_of, strict=True):
            if norm == norm:
                squares[layer] = norm * norm if squares[layer] != squares[layer] else squares[layer] + norm * norm
        for number in self._unsure:  # the whole layer: a part of it would be compared with all of it later
            squares[self._layer_of[number]] = nan
        return square, [sqrt(one) for one in squares]

    def _end_turn(self, turn: int, exact: float) -> None:
        """Each tensor's estimate was compared with its full norm, at its turn: how far off was the norm of all? In the
        first turn there was nothing to estimate with."""
        estimated, full = self._sums
        if self._turn > 0 and full > 0:
            self.errors.add(abs(sqrt((estimated + exact) / (full + exact)) - 1))
        self._turn, self._sums = turn, [0.0, 0.0]

    def _calibrate(self, number: int, norm: float, full: float) -> None:
        """Learn what the sample's norm is to be multiplied with, and whether that tells more than the usual norm does:
        of an embedding other rows have a gradient at each step, and its norm as a whole is steady all the same."""
        factor, fulls = self._factors[number], self._fulls[number]
        if not full > 0:
            return
        self._last[number] = full
        if len(factor) and len(fulls):
            by_sample = abs(log(self._factor[number] * norm / full)) if norm > 0 else MISS_MAX
            by_usual = abs(log(fulls.median() / full))
            sampled, usual = self._misses[number]
            sampled += (1 - MISSED_KEPT) * (min(by_sample, MISS_MAX) - sampled)
            usual += (1 - MISSED_KEPT) * (min(by_usual, MISS_MAX) - usual)
            self._misses[number] = sampled, usual
        fulls.add(full)
        if norm > 0:
            factor.add(full / norm)
            self._factor[number] = factor.median()
        sampled, usual = self._misses[number]
        self._around[number] = fulls.median()
        if sampled > UNTOLD and usual < sampled:
            self._usual[number] = fulls.median()
        else:
            self._usual.pop(number, None)
        if len(fulls) > 1 and (sampled <= UNSURE or number in self._usual):
            self._unsure.discard(number)
        else:
            self._unsure.add(number)

    def _follow(self, number: int, rows: torch.Tensor, norm: float, hottest: float, full: float) -> None:
        """Read these rows from now on, if they carry much of the norm, and much more than what is read now does."""
        known = number in self._hot
        if known and norm * norm >= hot.SHARE * hottest * hottest:
            return
        if hottest * hottest < hot.SHARE * full * full or (not known and len(self._hot) >= hot.TENSORS_MAX):
            return
        self._hot[number] = rows
        self._factors[number] = RunningMedian(CALIBRATIONS)
        self._factors[number].add(full / hottest)
        self._factor[number] = full / hottest

    def _read_hot(self, gradients: Sequence[torch.Tensor | None], parts: list[torch.Tensor]) -> tuple[int, ...]:
        read = []
        for number, rows in self._hot.items():
            gradient = gradients[number]
            if gradient is not None and gradient.layout == torch.strided:
                parts.append(hot.norm(dense_of(gradient), rows).reshape(1))
                read.append(number)
        return tuple(read)

    def _read_in_full(
        self, numbers: Sequence[int], gradients: Sequence[torch.Tensor | None], parts: list[torch.Tensor]
    ) -> tuple[tuple[int, ...], tuple[tuple[int, torch.Tensor], ...]]:
        whole: list[tuple[int, torch.Tensor]] = []
        by_rows: list[tuple[int, torch.Tensor]] = []
        for number in numbers:
            gradient = gradients[number]
            if gradient is not None:
                dense = dense_of(gradient)
                (by_rows if self._is_by_rows(number, gradient) else whole).append((number, dense))
        vectors, order = full_norms([dense for _, dense in whole])
        parts += vectors
        rows = []
        for number, dense in by_rows:
            full, hottest, which = hot.find(dense)
            parts.append(torch.stack((full, hottest)))
            rows.append((number, which))
        return tuple(whole[place][0] for place in order), tuple(rows)

    def _is_by_rows(self, number: int, gradient: torch.Tensor) -> bool:
        """At first all matrices with enough rows; later those whose rows are read, and whose sample tells little."""
        if gradient.layout != torch.strided or gradient.is_complex() or not hot.count_of(dense_of(gradient).shape):
            return False
        return self._count == 0 or number in self._hot or self._misses[number][0] > UNTOLD


def _in_turns(numbers: Iterable[int], sizes: Sequence[int], turns: int) -> list[list[int]]:
    """Tensors in so many lots of about as many elements each: the largest first, always to the smallest lot."""
    lots: list[list[int]] = [[] for _ in range(turns)]
    filled = [0] * turns
    for number in sorted(numbers, key=lambda number: sizes[number], reverse=True):
        least = filled.index(min(filled))
        lots[least].append(number)
        filled[least] += sizes[number]
    return lots


def _square(norms: Sequence[float]) -> float:
    return sum(norm * norm for norm in norms if norm == norm)  # but for those that were not there
