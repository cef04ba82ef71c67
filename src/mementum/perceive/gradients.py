"""What gradients show at an optimizer's step: their norms, from a sample that full norms calibrate."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from mementum.clock import Clock
from mementum.perceive.late import Late
from mementum.perceive.stepping import Read, Stepping
from mementum.perceive.thrift import Thrift
from mementum.perceive.vitals import GradientReading
from mementum.records import record

FULL_EVERY = 20  # readings: to read 100 million gradients in full takes as long as twenty to fifty samples of them


@record
class Sampling:
    """How well gradients are known. `part` of their elements is read as the sample; `error`: median relative error of
    the estimated norm of all against the full one, over the last `count` turns, in each of which every tensor's
    estimate was compared once with its full norm; None before the first."""

    part: float
    error: float | None
    count: int


class Gradients:
    """Reads the gradients of `optimizers` at each of their steps, and waits for no device.

    A sample of every tensor is read, and each tensor in full once in `full_every` readings, some at each of them, so
    that no step pays for all but the first: the ratio of both is the factor by which the next samples are corrected.
    Where a sample tells little (of an embedding other rows have a gradient at each step), the median of the last full
    norms stands for the tensor. `sampling` says how far off the norm of all is. Once in `full_every` readings Adam's
    moments are read on the same sample.

    Given a `clock`, steps are left out where reading would take more than a small part of their time (`thrift`).

    Norms are those of what the optimizer is about to use: after clipping, of a sharded tensor this process's shard. A
    loss scale is divided out where the optimizer has it (fused ones under GradScaler); else gradients count as they
    stand, and then only ratios mean anything. `names`: of layers, by `id` of the parameter; several may share one.

    Only every `every`th step of each optimizer is looked at.

    Whatever cannot be read ends the reading for good, told once; training goes on."""

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        names: Mapping[int, str],
        *,
        full_every: int = FULL_EVERY,
        every: int = 1,
        clock: Clock | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        assert full_every >= 1
        self._every, self._steps = every, dict.fromkeys(map(id, optimizers.values()), 0)
        self._steppings = {
            id(optimizer): Stepping(name, optimizer, names, full_every=full_every)
            for name, optimizer in optimizers.items()
        }
        self._thrift = {} if clock is None else {one: Thrift(clock) for one in self._steppings}
        self._late: Late[tuple[Stepping, Read]] = Late()
        self._tell = tell
        self._blind = False
        self._stepped = False
        self._pid = os.getpid()
        # One registration for all optimizers, also copies and wrapped ones; it is filtered by identity.
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def take(self) -> GradientReading | None:
        """What has come since the last call: of each optimizer what its last step showed, on a device one step late.
        None: nothing has. The norm is of all optimizers, each as it was last read, so that it does not jump where they
        step in turn."""
        fresh: list[GradientReading] = []
        try:
            fresh = [reading for (of, read), values in self._late.ready() if (reading := of.digest(read, values))]
        except RuntimeError as error:
            self._give_up(error)
        if not fresh:
            return None
        squares = [stepping.square for stepping in self._steppings.values() if stepping.square is not None]
        finite = all(reading.finite for reading in fresh)
        largest = max(fresh, key=lambda reading: reading.layer_ratio or 0.0)
        update = [one.update_ratio for one in self._steppings.values() if one.update_ratio is not None]
        curvature = [one.curvature for one in self._steppings.values() if one.curvature is not None]
        return GradientReading(
            finite=finite,
            norm=sum(squares) ** 0.5 if squares and fresh[-1].norm is not None else None,
            layer_ratio=largest.layer_ratio,
            layer=largest.layer,
            update_ratio=max(update, default=None),
            curvature=max(curvature, default=None),
        )

    def take_stepped(self) -> bool:
        """Whether an optimizer has used its gradients as they are since this was asked last. One that has a loss scale
        and finds its overflow itself has not: it leaves out the step."""
        stepped, self._stepped = self._stepped, False
        return stepped

    def sampling(self) -> tuple[Sampling, ...]:
        """How well the gradients of each optimizer are known, in the order of the optimizers."""
        return tuple(
            Sampling(part=one.part, error=one.errors.median() if len(one.errors) else None, count=len(one.errors))
            for one in self._steppings.values()
        )

    def forget(self) -> None:
        """What was read and not taken yet is of no use any more, nor what the last steps showed."""
        self._late.forget()
        for stepping in self._steppings.values():
            stepping.forget()

    def close(self) -> None:
        """Let go of the optimizers."""
        self._handle.remove()

    def state(self) -> dict[str, Any]:
        """What is usual for each layer, and the factors of the sample, as plain values."""
        return {stepping.name: stepping.state() for stepping in self._steppings.values()}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`: layers are compared with what was usual there, until enough new steps were seen."""
        for stepping in self._steppings.values():
            if stepping.name in state:
                stepping.apply(state[stepping.name])

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stepping = self._steppings.get(id(optimizer))
        if stepping is None or os.getpid() != self._pid or torch.compiler.is_compiling():
            return
        self._stepped = self._stepped or getattr(optimizer, "found_inf", None) is None
        if self._blind:
            return
        self._steps[id(optimizer)] += 1
        if self._steps[id(optimizer)] % self._every:
            return
        thrift = self._thrift.get(id(optimizer))
        if thrift is not None and not thrift.begin():
            return
        try:
            with torch.no_grad():
                taken = stepping.read()
                if taken is not None:
                    read, parts = taken
                    self._late.put((stepping, read), parts)
        # What a tensor of somebody else's class, or a device without memory, answers to being read.
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            self._give_up(error)
        if thrift is not None:
            thrift.end()

    def _give_up(self, error: Exception) -> None:
        self._blind = True
        self._tell(f"gradients are not read any more: {type(error).__name__}: {error}; training goes on")
