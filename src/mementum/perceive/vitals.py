"""The vital signs of a run: what one step shows, compared with the run's own recent past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan, log
from statistics import median
from typing import Any

from mementum.perceive.robust import RunningMedian, Trend, deviation
from mementum.records import Vitals, record

SHORT = 32  # the last few steps: fewer say little about a spread, more are no news
WARM = 20  # values before anything is compared with them: a spread of fewer is a guess
Z_MAX = 1e6  # beyond this a distance says no more, and JSON stays without infinities
VALUE_MAX = 1e100  # far above all of float32; squares of what is below stay finite
RESOLUTION = 1e-7  # of the first losses: what float32 can tell apart of numbers as large as those a loss is made from
FIRST = 8  # losses whose median is the size of the first
NORM_MIN = 1e-38  # the smallest normal float32: a smaller norm is zero, and has no logarithm


@record
class GradientReading:
    """What was read of the gradients at the last step of each optimizer. None: not known yet, or not finite."""

    finite: bool = True
    norm: float | None = (
        None  # of all gradients, as they were at the step: clipped, and not scaled back by accumulation
    )
    layer_ratio: float | None = None  # the largest ratio of a layer's norm to that layer's own median
    layer: str | None = None  # which one that is
    update_ratio: float | None = None
    curvature: float | None = None


class VitalSigns:
    """Makes `Vitals` of what was seen at a step. Remembers the last `window` values, and of losses the last `long`."""

    def __init__(self, *, window: int = 128, long: int = 1000, tell: Callable[[str], None] = lambda text: None) -> None:
        self._tell, self._told = tell, False
        self._losses = RunningMedian(long)
        self._trend = Trend(window)
        self._residuals = RunningMedian(window)
        self._few, self._many = RunningMedian(SHORT), RunningMedian(long)
        self._norms = RunningMedian(SHORT)
        self._logs = RunningMedian(window)
        self._gaps = RunningMedian(SHORT)  # steps from one loss to the next
        self._last_step: int | None = None  # that gave a loss
        self._norm_is_given = False
        self._first: list[float] = []  # the first losses, which say how large the numbers are that losses come from

    def observe(
        self,
        step: int,
        *,
        at_s: float,
        loss: object = None,
        grad_norm: object = None,
        lr: object = None,
        reading: GradientReading | None = None,
        stepped: bool = True,
        memory_used: float | None = None,
        memory_steps_left: float | None = None,
        step_s: float | None = None,
    ) -> Vitals:
        """The signs after `step`. Loss, gradient norm and lr: anything that is a number, a tensor of the CPU too; what
        is none is told once and counts as not given. What is not finite is compared with nothing, now or later.

        `stepped`: whether an optimizer may have used the gradients of this step."""
        given_loss, given_norm = self._number("loss", loss), self._number("grad_norm", grad_norm)
        numbers = all(value is None or abs(value) <= VALUE_MAX for value in (given_loss, given_norm))
        loss_z, slope, spread = self._of_loss(step, _finite(given_loss))
        norm = self._norm(given_norm, reading)
        grad_z, noise = (None, None) if norm is None else self._of_norm(norm)
        return Vitals(
            step=step,
            at_s=at_s,
            finite=numbers and (reading is None or reading.finite),
            held_back=not numbers and not stepped and (reading is None or reading.finite),
            loss_finite=given_loss is None or abs(given_loss) <= VALUE_MAX,
            loss=_finite(given_loss),
            loss_z=loss_z,
            loss_slope=slope,
            loss_spread=spread,
            grad_norm=norm,
            grad_z=grad_z,
            layer_ratio=None if reading is None else reading.layer_ratio,
            grad_noise=noise,
            update_ratio=None if reading is None else reading.update_ratio,
            curvature=None if reading is None else reading.curvature,
            lr=_finite(self._number("lr", lr)),
            memory_used=_finite(memory_used),
            memory_steps_left=None if memory_steps_left is None or isnan(memory_steps_left) else memory_steps_left,
            step_s=_finite(step_s),
        )

    def loss_std(self, count: int) -> float | None:
        """Standard deviation of the last `count` finite losses, or of those there are; None for fewer than two."""
        return deviation(self._losses.newest(count))

    def state(self) -> dict[str, Any]:
        """What is remembered, as plain values and bytes."""
        memory: dict[str, Any] = {name: part.state() for name, part in self._parts().items()}
        return {
            **memory,
            "last_step": self._last_step,
            "norm_is_given": self._norm_is_given,
            "first": list(self._first),
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`: what is observed next gets the signs that it would have got there."""
        for name, part in self._parts().items():
            part.apply(state[name])
        self._last_step = state["last_step"]
        self._norm_is_given = state["norm_is_given"]
        self._first = [float(loss) for loss in state.get("first", ())]  # a checkpoint of an earlier version has none

    def _parts(self) -> dict[str, RunningMedian | Trend]:
        return {
            "losses": self._losses,
            "trend": self._trend,
            "residuals": self._residuals,
            "few": self._few,
            "many": self._many,
            "norms": self._norms,
            "logs": self._logs,
            "gaps": self._gaps,
        }

    def _of_loss(self, step: int, loss: float | None) -> tuple[float | None, float | None, float | None]:
        """How far the loss lies from where its trend said, that trend's slope a step, and short over long spread."""
        if loss is None:
            return None, None, None
        expected, slope = self._trend.predict(), self._trend.slope
        signs: tuple[float | None, float | None, float | None] = (None, None, None)
        if expected is not None and slope is not None:
            residual = loss - expected
            if len(self._residuals) >= WARM:
                size = self._losses.median()
                spread = self._above_rounding(self._residuals.spread(size))
                z = _ratio(residual - self._residuals.median(), spread)
                signs = (z, _ratio(slope / max(1.0, self._gaps.median()), spread), self._spreads(size))
            for part in (self._residuals, self._few, self._many):
                part.add(residual)
        self._trend.add(loss)
        self._losses.add(loss)
        if len(self._first) < FIRST:
            self._first.append(abs(loss))
        if self._last_step is not None and step > self._last_step:
            self._gaps.add(float(step - self._last_step))
        self._last_step = step
        return signs

    def _above_rounding(self, spread: float) -> float:
        """What has been trained down to the rounding of its own first losses jumps about by that rounding."""
        return max(spread, RESOLUTION * median(self._first)) if spread and self._first else spread

    def _spreads(self, size: float) -> float:
        few, many = self._few.spread(size), self._many.spread(size)
        return min(few / many, Z_MAX) if many else 1.0

    def _norm(self, given: float | None, reading: GradientReading | None) -> float | None:
        """One source for the whole run: given norms are from before the clipping, estimated ones from after it."""
        self._norm_is_given = self._norm_is_given or given is not None
        norm = given if self._norm_is_given or reading is None else reading.norm
        norm = _finite(norm)
        return norm if norm is None or norm >= 0 else None

    def _of_norm(self, norm: float) -> tuple[float | None, float | None]:
        """How far the norm's logarithm lies from its median, and the variance of the last norms over their median's
        square."""
        z = None
        value = log(max(norm, NORM_MIN))
        if len(self._logs) >= WARM:
            z = _ratio(value - self._logs.median(), self._logs.spread(1.0))
        self._logs.add(value)
        self._norms.add(norm)
        noise = deviation(self._norms.newest(SHORT)) if len(self._norms) >= WARM else None
        if noise is None:
            return z, None
        return z, _ratio(noise, self._norms.median()) ** 2

    def _number(self, name: str, value: object) -> float | None:
        if value is None:
            return None
        try:
            item = getattr(value, "item", None)  # of a tensor: float() warns where it has a gradient
            return float(value if item is None else item())  # type: ignore[arg-type]
        # Each is what float, or a tensor's own conversion, says of something that is no single number.
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            if not self._told:
                self._told = True
                self._tell(f"{name}: {type(value).__name__} is no number ({error}); it counts as not given")
            return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= VALUE_MAX else None  # of NaN, no comparison is true


def _ratio(distance: float, spread: float) -> float:
    """In units of the spread; 0 where nothing has a spread, for then nothing is known of what is usual."""
    if not spread:
        return 0.0
    return max(-Z_MAX, min(Z_MAX, distance / spread))
