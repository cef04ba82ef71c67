"""Detectors of what is sudden: a loss or a gradient that jumps, or is no number."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from mementum.perceive.level import Level
from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble, Vitals

GRAD_MEMORY = 128  # steps: the window of the published detectors (llm.c, OLMo-core)


class Persistence:
    """How many of the last `within` steps were high: a bit each, so that it costs nothing and is a number to keep."""

    def __init__(self, within: int) -> None:
        self._mask = (1 << within) - 1
        self.bits = 0

    def add(self, high: bool) -> int:
        """Take one step; how many of the last were high."""
        self.bits = (self.bits << 1 | high) & self._mask
        return self.bits.bit_count()


class LossSpike:
    """A loss far above its trend that stays there, or is beyond what any batch does."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stays = Persistence(limits.within_steps)
        self._high = Persistence(limits.within_steps)

    def look(self, vitals: Vitals) -> Sign | None:
        z, limits = vitals.loss_z, self._limits
        if z is None or vitals.loss is None:
            return None
        stays, high = self._stays.add(z > limits.loss_z_stays), self._high.add(z > limits.loss_z)
        if z > limits.loss_z_at_once:
            text = f"the loss jumped to {vitals.loss:.4g}, {z:.1f} spreads above its trend"
            return Sign(trouble=Trouble.LOSS_SPIKE, value=z, limit=limits.loss_z_at_once, text=text)
        if stays < limits.stays_steps or high == 0:
            return None
        text = (
            f"the loss stays up: {vitals.loss:.4g}, above trend at {stays} of the last {limits.within_steps} steps, "
            f"by more than {limits.loss_z:g} spreads at {high}"
        )
        return Sign(trouble=Trouble.LOSS_SPIKE, value=z, limit=limits.loss_z_stays, text=text)

    def state(self) -> dict[str, float]:
        return {"stays": self._stays.bits, "high": self._high.bits}

    def apply(self, state: Mapping[str, float]) -> None:
        self._stays.bits, self._high.bits = int(state["stays"]), int(state["high"])


class GradientSpike:
    """A gradient norm, in all or of a layer, that is a multiple of what it is normally."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._level = Level(memory=GRAD_MEMORY)  # of the norm's logarithm
        self._stays = Persistence(limits.within_steps)
        self._layers = Persistence(limits.within_steps)

    def look(self, vitals: Vitals) -> Sign | None:
        return self._in_all(vitals) or self._of_a_layer(vitals)

    def _in_all(self, vitals: Vitals) -> Sign | None:
        norm, z, limits = vitals.grad_norm, vitals.grad_z, self._limits
        if norm is None or not 0.0 < norm < float("inf"):
            return None
        value = log(norm)
        known, usual = self._level.known, self._level.value
        self._level.learn(value)
        if not known or z is None:
            return None
        ratio = exp(min(value - usual, 700.0))  # a larger exponent is no float
        stays = self._stays.add(z > limits.grad_z and ratio > limits.grad_ratio_stays)
        text = f"the gradient norm is {norm:.4g}, {ratio:.1f} times its usual {exp(usual):.4g}"
        if z > limits.grad_z and ratio > limits.grad_ratio:
            return Sign(trouble=Trouble.GRAD_SPIKE, value=ratio, limit=limits.grad_ratio, text=text)
        if stays < limits.stays_steps:
            return None
        text += f", and was high at {stays} of the last {limits.within_steps} steps"
        return Sign(trouble=Trouble.GRAD_SPIKE, value=ratio, limit=limits.grad_ratio_stays, text=text)

    def _of_a_layer(self, vitals: Vitals) -> Sign | None:
        ratio, limits = vitals.layer_ratio, self._limits
        if ratio is None or self._layers.add(ratio > limits.layer_ratio) < limits.stays_steps:
            return None
        text = f"the gradient norm of a layer stays at {ratio:.1f} times its usual one"
        return Sign(trouble=Trouble.GRAD_SPIKE, value=ratio, limit=limits.layer_ratio, text=text)

    def state(self) -> dict[str, float]:
        return {**self._level.state(), "stays": self._stays.bits, "layers": self._layers.bits}

    def apply(self, state: Mapping[str, float]) -> None:
        self._level.apply(state)
        self._stays.bits, self._layers.bits = int(state["stays"]), int(state["layers"])


class NonFinite:
    """A loss or a gradient that is NaN or infinite: at once, except where no optimizer has used it. A loss scale
    overflows by design, its step is left out, and the state is what it was."""

    def __init__(self, limits: Limits) -> None:
        self._patience = limits.overflows
        self._in_row = 0
        self._loss_given = False

    def look(self, vitals: Vitals) -> Sign | None:
        self._loss_given = self._loss_given or vitals.loss is not None
        if vitals.finite:
            self._in_row = 0
            return None
        self._in_row += 1
        in_loss = not vitals.loss_finite
        patience = self._patience if vitals.held_back and not in_loss else 1
        if self._in_row < patience:
            return None
        what = "the loss is" if in_loss else "gradients are" if self._loss_given else "the loss or a gradient is"
        text = f"{what} not finite" + (f" at {self._in_row} steps in a row" if patience > 1 else "")
        return Sign(trouble=Trouble.NON_FINITE, value=self._in_row, limit=patience, text=text)

    def state(self) -> dict[str, float]:
        return {"in_row": self._in_row, "loss_given": self._loss_given}

    def apply(self, state: Mapping[str, float]) -> None:
        self._in_row, self._loss_given = int(state["in_row"]), bool(state["loss_given"])
