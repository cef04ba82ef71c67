"""Learning rates: those of optimizers and of their schedules, scaled in place."""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping
from numbers import Real
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # in a group: what stands there, and what schedules read
OF_SCHEDULES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs", "default_min_lr", "eta_min")  # attributes of a schedule
PARTS = ("_schedulers", "scheduler", "lr_scheduler")  # where a schedule that is made of others, or wraps one, has them


def scale(optimizers: Iterable[torch.optim.Optimizer], schedulers: Iterable[object], factor: float) -> None:
    """Multiply every learning rate by `factor`, so that from here on each schedule gives `factor` times what it would
    have given.

    In the optimizers' groups these are `lr` and what torch's schedules keep beside it (`initial_lr`, `max_lr`,
    `min_lr`, `swa_lr`). In the schedules they are the base rates, bounds, and the last rate told, in those that are
    made of others too. A rate that is a tensor (of one element, any dtype and device) is changed in place: compiled
    and captured steps hold it. What two groups or schedules share is scaled once. All of it is part of what
    `state_dict()` gives, so the next resume brings the scaled rates back. Defaults for groups that are added later
    are left alone, and so is an object that has no learning rate in any of these places: a program that sets its
    rates itself must scale them itself.

    `factor`: above 0 and finite; 1 changes nothing."""
    assert 0 < factor < math.inf
    if factor == 1.0:
        return
    scaling = _Scaling(factor)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            scaling.values(group, OF_GROUPS)
    for scheduler in schedulers:
        scaling.schedule(scheduler)


def has_rates(thing: object) -> bool:
    """Whether `thing` is a schedule whose rates `scale` finds, by itself or in its parts."""
    return any(_held(one) for one in _with_parts(thing))


class _Scaling:
    """One pass by one factor. It remembers what it has scaled, for tensors and schedules are shared."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._done: dict[int, object] = {}  # by identity; the objects are held so that no identity is used again

    def schedule(self, scheduler: object) -> None:
        for one in _with_parts(scheduler):
            if self._is_new(one):
                self.values(getattr(one, "__dict__", {}), _held(one))

    def values(self, held: MutableMapping[str, Any], names: Iterable[str]) -> None:
        """Those of `names` that are held. Lists are made anew, for a schedule and its part may hold the same one."""
        for name in names:
            if name in held:
                held[name] = self._scaled(held[name])

    def _scaled(self, rate: Any) -> Any:
        if isinstance(rate, torch.Tensor):
            if self._is_new(rate):
                with torch.no_grad():
                    rate.mul_(self._factor)
            return rate
        if isinstance(rate, list | tuple):
            return type(rate)(self._scaled(one) for one in rate)
        # None where an optimizer finds its rate itself; what else is no number is not a rate, whatever its name.
        return rate * self._factor if isinstance(rate, Real) else rate

    def _is_new(self, thing: object) -> bool:
        if id(thing) in self._done:
            return False
        self._done[id(thing)] = thing
        return True


def _held(scheduler: object) -> tuple[str, ...]:
    """The names of a schedule's own attributes that are learning rates, or differences of them."""
    names: tuple[str, ...] = OF_SCHEDULES
    if isinstance(scheduler, ReduceLROnPlateau):
        names = (*names, "eps")  # the smallest change of a rate that it makes
    return tuple(name for name in names if name in getattr(scheduler, "__dict__", {}))


def _with_parts(scheduler: object) -> list[object]:
    """A schedule and the schedules within it, at any depth, each once."""
    found: dict[int, object] = {}
    waiting = [scheduler]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        for name in PARTS:
            inner = getattr(one, "__dict__", {}).get(name)
            waiting += inner if isinstance(inner, list | tuple) else [inner]
    return list(found.values())
