"""Adam: what the moments of an optimizer tell of its updates and of the curvature, read on the sample."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from statistics import median
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from mementum.perceive.sample import BLOCK, Sample, dense_of
from mementum.records import record


@record
class Moments:
    """What must be known to understand the sums of Adam's moments. A rate or step that is None lies on a device: it
    comes with the values."""

    numbers: tuple[int, ...]  # of the parameters that have moments
    group_of: tuple[int, ...]  # for each of them
    rates: tuple[float | None, ...]  # learning rates, by group
    betas: tuple[float, float]
    step: float | None


def read(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], sample: Sample, parts: list[torch.Tensor]
) -> Moments | None:
    """Queue the reading, on the sample, of norms of updates and of weights, and of sums of second moments. None where
    the optimizer has no such moments."""
    groups = optimizer.param_groups
    first: list[torch.Tensor | None] = [None] * len(parameters)
    second: list[torch.Tensor | None] = [None] * len(parameters)
    plain = _as_it_is if sample.is_plain else dense_of
    group_of: dict[int, int] = {}
    step: Any = None
    number = -1
    for place, group in enumerate(groups):
        for parameter in group["params"]:
            number += 1
            state = optimizer.state.get(parameter) or {}
            moment, squared = state.get("exp_avg"), state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
            if moment is None or squared is None or "betas" not in group:
                continue
            moment, squared = plain(moment), plain(squared)
            if not sample.fits(number, moment) or not sample.fits(number, squared):
                continue
            first[number], second[number] = moment, squared
            group_of[number] = place
            step = state.get("step") if step is None else step
    if not group_of or step is None:
        return None
    weights = [plain(one) if number in group_of else None for number, one in enumerate(parameters)]
    some = groups[next(iter(group_of.values()))]
    sample.append_moments(parts, first, second, weights, eps=float(some["eps"]))
    rates = [known(group["lr"]) for group in groups]
    at = known(step)
    parts += [group["lr"].reshape(1) for group, rate in zip(groups, rates, strict=True) if rate is None]
    if at is None:
        parts.append(step.reshape(1))
    return Moments(
        numbers=tuple(group_of),
        group_of=tuple(group_of.values()),
        rates=tuple(rates),
        betas=(float(some["betas"][0]), float(some["betas"][1])),
        step=at,
    )


def understand(
    moments: Moments, values: Sequence[float], sample: Sample, layer_of: Sequence[int], *, layers: int
) -> tuple[tuple[float, float] | None, float | None]:
    """The median over the layers of update to weight with the learning rate of the first group at that step, and the
    trace of the second moments per parameter. None: nothing can be said.

    The update of a parameter is lr sqrt(1 - beta2^t) / (1 - beta1^t) times first moment over root of second (Kingma and
    Ba, Adam, 2015, end of section 2): without weight decay, with epsilon as in that form."""
    count = len(layer_of)
    rest = iter(values[3 * count :])
    rates = [next(rest) if rate is None else rate for rate in moments.rates]
    step = max(1.0, next(rest) if moments.step is None else moments.step)
    beta1, beta2 = moments.betas
    bias = sqrt(1 - beta2**step) / (1 - beta1**step)
    row = {number: place for place, number in enumerate(sample.order)}
    updates, weights = [0.0] * layers, [0.0] * layers
    trace, size = 0.0, 0
    for number, group in zip(moments.numbers, moments.group_of, strict=True):
        updated, weight, second = (values[row[number] + block * count] for block in range(3))
        whole, layer = sample.sizes[number], layer_of[number]
        share = max(1.0, whole / BLOCK)
        updates[layer] += share * (rates[group] * bias * updated) ** 2
        weights[layer] += share * weight * weight
        trace += share * second
        size += whole
    ratios = [sqrt(one / weight) for one, weight in zip(updates, weights, strict=True) if weight > 0]
    ratios = [ratio for ratio in ratios if isfinite(ratio)]
    # At a rate of 0, as a warm-up begins with, nothing is updated, and that says nothing of other rates.
    update = (median(ratios), rates[0]) if ratios and rates[0] > 0 else None
    return update, trace / size if size and isfinite(trace) else None


def known(value: Any) -> float | None:
    """A number that is known here; None of one on a device, which is not asked for."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return None
    return float(value)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
