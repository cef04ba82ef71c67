"""Faults: what goes wrong in a run from its onset on, one class a family."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mementum.records import record

if TYPE_CHECKING:
    from _runs import Setup

FP16_MAX = 65504.0
OUTLIER_EVERY = 23  # steps between outlier batches of the family in which clipping is switched off
PHASE_WARM_UP = 1000  # steps of warm-up of a second phase, of which its twin sees a quarter


@record
class Live:
    """What a fault can reach. `draw`: a generator that nothing else draws from."""

    model: nn.Module
    parameters: list[Tensor]
    optimizer: torch.optim.Optimizer
    draw: torch.Generator


class Fault:
    """The seams of a step, through which nothing goes wrong. `hurts`: whether the fault acts at a step."""

    def __init__(self, setup: Setup, live: Live, *, faulty: bool) -> None:
        self.setup, self.live, self.faulty = setup, live, faulty

    def hurts(self, step: int) -> bool:
        return self.faulty and 0 <= step - self.setup.onset < self.setup.lasts

    def begins(self, step: int) -> bool:
        return self.faulty and step == self.setup.onset

    def lr(self, step: int, planned: float) -> float:
        return planned

    def before(self, step: int) -> None:
        """Before the step's forward pass."""

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, targets

    def loss(self, step: int, loss: Tensor) -> Tensor:
        """What the backward pass begins with."""
        return loss

    def accumulates(self, step: int) -> tuple[int, bool]:
        """In how many parts the batch is taken, and whether the sum of their gradients is divided by them."""
        return 1, True

    def clips(self, step: int) -> float | None:
        return self.setup.clip

    def gradients(self, step: int) -> None:
        """Before gradients are clipped and used."""

    def after(self, step: int) -> None:
        """After the optimizer's step."""

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.live.draw)

    def random_symbols(self, like: Tensor) -> Tensor:
        return torch.randint(128, like.shape, generator=self.live.draw)

    def scaled(self, low: float, high: float) -> float:
        """Between two bounds by the severity, even in its logarithm."""
        return float(low * (high / low) ** self.setup.severity)

    @property
    def moments(self) -> list[dict[str, Tensor]]:
        state = self.live.optimizer.state
        return [state[one] for one in self.live.parameters]


class LrJump(Fault):
    """The learning rate is 8 to 300 times what was planned."""

    def lr(self, step: int, planned: float) -> float:
        return planned * self.scaled(8, 300) if self.hurts(step) else planned


class MissingWarmUp(Fault):
    """A second phase begins with a new optimizer and a higher learning rate, whose long warm-up is left out."""

    def before(self, step: int) -> None:
        if step == self.setup.onset:
            self.live.optimizer.state.clear()

    def lr(self, step: int, planned: float) -> float:
        since = step - self.setup.onset
        if since < 0:
            return planned
        peak = planned * self.scaled(20, 200)
        return peak if self.faulty else planned + (peak - planned) * min(since / PHASE_WARM_UP, 1.0)


class CorruptedBatches(Fault):
    """Inputs and targets are random symbols, in most or all rows."""

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.hurts(step):
            return inputs, targets
        rows = self.uniform(len(inputs), 1) < 0.3 + 0.7 * self.setup.severity
        return (
            torch.where(rows, self.random_symbols(inputs), inputs),
            torch.where(rows, self.random_symbols(targets), targets),
        )


class RepeatedBatches(Fault):
    """One batch comes again and again, and what was learnt before is lost meanwhile."""

    held: tuple[Tensor, Tensor] | None = None

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.hurts(step):
            return inputs, targets
        self.held = self.held or (inputs, targets)
        return self.held


class LabelNoise(Fault):
    """A part of the targets is random."""

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if not self.hurts(step):
            return inputs, targets
        wrong = self.uniform(*targets.shape) < 0.1 + 0.8 * self.setup.severity
        return inputs, torch.where(wrong, self.random_symbols(targets), targets)


def flip(values: Tensor, count: int, bits: tuple[int, ...], draw: torch.Generator) -> None:
    """Flip one bit in each of `count` random numbers of a float32 tensor; 30 is the highest of the exponent."""
    raw = values.detach().view(-1).view(torch.int32)
    places = torch.randint(len(raw), (count,), generator=draw)
    for place in places.tolist():
        bit = bits[int(torch.randint(len(bits), (1,), generator=draw))]
        raw[place] ^= 1 << bit


class FlippedWeights(Fault):
    """Some weights have a bit of their exponent flipped, once."""

    def before(self, step: int) -> None:
        if not self.begins(step):
            return
        bits = (30,) if self.setup.kind == "highest" else (25, 26)
        with torch.no_grad():
            for _ in range(round(self.scaled(1, 30))):
                matrices = [one for one in self.live.parameters if one.dim() > 1]
                flip(matrices[int(self.uniform(1) * len(matrices))], 1, bits, self.live.draw)


class FlippedMoments(Fault):
    """Numbers of Adam's moments have a bit of their exponent flipped, once."""

    def before(self, step: int) -> None:
        if not self.begins(step):
            return
        name = "exp_avg" if self.setup.kind == "first" else "exp_avg_sq"
        bits = (28, 29, 30) if self.setup.kind == "first" else (28, 29)  # down: a step that is too large
        for state in self.moments:
            flip(state[name], max(1, round(state[name].numel() * self.scaled(1e-3, 3e-1))), bits, self.live.draw)


class ClipOff(Fault):
    """Gradients are clipped, which some outlier batches need; from the onset on they are not."""

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return loss * self.scaled(30, 1000) if step % OUTLIER_EVERY == 0 else loss

    def clips(self, step: int) -> float | None:
        return None if self.hurts(step) else self.setup.clip


class ScaleOverflow(Fault):
    """Gradients are scaled for half precision, from the onset on so high that they overflow: to infinities, or, where
    the cast saturates, to its largest number."""

    def gradients(self, step: int) -> None:
        if not self.hurts(step):
            return
        for one in self.live.parameters:
            assert one.grad is not None
            scale = FP16_MAX * self.scaled(300, 1e5)
            if self.setup.kind == "infinite":
                one.grad.mul_(scale).copy_(one.grad.half().float()).div_(scale)
            else:
                one.grad.mul_(scale).clamp_(-FP16_MAX, FP16_MAX).div_(FP16_MAX / 0.1)


class LostMoments(Fault):
    """Adam's moments are lost while its count of steps is not: its next updates are far too large."""

    def before(self, step: int) -> None:
        if not self.begins(step):
            return
        for state in self.moments:
            state["exp_avg_sq"].mul_(0.0 if self.setup.kind == "both" else 10 ** (-2 - 6 * self.setup.severity))
            if self.setup.kind == "both":
                state["exp_avg"].zero_()


class NotANumber(Fault):
    """A NaN gets into a weight, a gradient, or the loss."""

    def before(self, step: int) -> None:
        if self.begins(step) and self.setup.kind == "weight":
            with torch.no_grad():
                self.live.parameters[-2][0, 0] = math.nan

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return loss * math.nan if self.begins(step) and self.setup.kind == "loss" else loss

    def gradients(self, step: int) -> None:
        if self.begins(step) and self.setup.kind == "gradient":
            grad = self.live.parameters[int(self.uniform(1) * len(self.live.parameters))].grad
            assert grad is not None
            grad.view(-1)[0] = math.nan


class SummedGradients(Fault):
    """Batches begin to be accumulated in parts, whose gradients are summed where they should be averaged: neither the
    batch nor the accumulation does harm alone."""

    def accumulates(self, step: int) -> tuple[int, bool]:
        return (self.setup.batch, False) if self.hurts(step) else (1, True)


class ShiftedTargets(Fault):
    """Targets are off by one or more places: another task, which the loss shows at once."""

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, targets.roll(-1 - int(self.setup.severity * 3), 1) if self.hurts(step) else targets


class LostLayer(Fault):
    """One or more matrices are as they were before the training: a part of the state was not restored."""

    def before(self, step: int) -> None:
        if not self.begins(step):
            return
        matrices = [one for one in self.live.parameters if one.dim() > 1]
        lost = torch.randperm(len(matrices), generator=self.live.draw)[: round(self.scaled(1, len(matrices)))]
        with torch.no_grad():
            for place in lost.tolist():
                matrices[place].copy_(0.02 * torch.randn(matrices[place].shape, generator=self.live.draw))


class BadRank(Fault):
    """A rank returns garbage: noise in the gradients, of some times their norm."""

    def gradients(self, step: int) -> None:
        if not self.hurts(step):
            return
        for one in self.live.parameters:
            assert one.grad is not None
            size = one.grad.norm() / math.sqrt(one.grad.numel()) * self.scaled(30, 1000)
            one.grad.add_(size * torch.randn(one.grad.shape, generator=self.live.draw))


class SlowDrift(Fault):
    """Something gets worse little by little until the run's end: the learning rate, the labels, the decay, the data."""

    def part(self, step: int) -> float:
        """How far it has got: 0 at the onset, 1 at the run's end."""
        return max(0.0, (step - self.setup.onset + 1) / (self.setup.steps - self.setup.onset)) if self.faulty else 0.0

    def lr(self, step: int, planned: float) -> float:
        return planned * self.scaled(50, 1000) ** self.part(step) if self.setup.kind == "lr" else planned

    def after(self, step: int) -> None:
        if self.setup.kind == "decay" and (part := self.part(step)):
            with torch.no_grad():
                torch._foreach_mul_(self.live.parameters, 1.0 - self.scaled(0.01, 0.1) * part)

    def data(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if self.setup.kind not in ("labels", "data"):
            return inputs, targets
        wrong = self.uniform(*inputs.shape) < self.scaled(0.3, 1.0) * self.part(step)
        if self.setup.kind == "data":
            return torch.where(wrong, self.random_symbols(inputs), inputs), targets
        return inputs, torch.where(wrong, self.random_symbols(targets), targets)


FAULTS: dict[str, type[Fault]] = {
    "lr jump": LrJump,
    "missing warm-up": MissingWarmUp,
    "corrupted batches": CorruptedBatches,
    "repeated batches": RepeatedBatches,
    "label noise": LabelNoise,
    "bit flips in weights": FlippedWeights,
    "bit flips in moments": FlippedMoments,
    "clip off": ClipOff,
    "loss-scale overflow": ScaleOverflow,
    "lost moments": LostMoments,
    "NaN": NotANumber,
    "summed gradients": SummedGradients,
    "shifted targets": ShiftedTargets,
    "lost layer": LostLayer,
    "bad rank": BadRank,
    "slow drift": SlowDrift,
}
