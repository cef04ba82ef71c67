"""Seeing: the vital signs of each step whose values have come, and what detectors and judge say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mementum.perceive.alarms import Detectors
from mementum.perceive.arriving import Arrived, Arriving
from mementum.perceive.gradients import Gradients
from mementum.perceive.health import EXPECTED, Judge
from mementum.perceive.measured import Measured
from mementum.perceive.vitals import VitalSigns
from mementum.records import Alarm, Diagnosis, Vitals


class Seeing:
    """Values that come from a device are of an earlier step: they are looked at as that step's, each of them, so that
    an onset is where it was. `scaled`: there is a loss scale, whose overflows keep an optimizer from its step."""

    def __init__(
        self,
        *,
        signs: VitalSigns,
        gradients: Gradients | None,
        detectors: Detectors | None,
        judge: Judge | None,
        metrics: Measured,
        lr: Callable[[], float | None],
        every: int,
        scaled: bool,
    ) -> None:
        self._signs, self._gradients, self._detectors, self._judge = signs, gradients, detectors, judge
        self._metrics, self._lr, self._every, self._scaled = metrics, lr, every, scaled
        self._arriving = Arriving()
        parts: tuple[VitalSigns | Detectors | None, ...] = (signs, detectors)
        self._anew = tuple((part, part.state()) for part in parts if part is not None)  # before anything is usual
        self._save_s: float | None = None
        self._rate = 0.0
        self.diagnosis: Diagnosis | None = None if judge is None else Diagnosis()  # the newest; None: nobody looks

    def look(
        self,
        step: int,
        metrics: Mapping[str, Any],
        events: tuple[str, ...],
        *,
        at_s: float,
        save_s: float | None,
        rate: float,
        **seen: float | None,
    ) -> tuple[Vitals, tuple[Alarm, ...]] | None:
        """The newest vital signs, and the alarms of all that have come since the last look; None where this step is
        not looked at. `save_s`, `rate`: as `Detectors.look` takes them. `seen`: what else is known of this step."""
        stepped = self._gradients is None or (self._gradients.take_stepped() and not self._scaled)
        if EXPECTED in events:
            self._begin_anew()
        if step % self._every:
            return None
        self._save_s, self._rate = save_s, rate
        arrived = self._arriving.take(step, metrics, stepped=stepped)
        alarms = [alarm for one in arrived[:-1] for alarm in self._examine(self._observe(one, at_s))]
        reading = self._gradients.take() if self._gradients is not None and arrived else None
        newest = arrived[-1] if arrived else Arrived(step=step)
        vitals = self._observe(newest, at_s, reading=reading, **seen)
        alarms += self._examine(vitals, self._metrics.take_evaluated(), has_come=bool(arrived))
        return replace(vitals, step=step), tuple(alarms)

    def rewound(self) -> None:
        """What is still on its way is of a branch that was left."""
        self._arriving.forget()
        if self._gradients is not None:
            self._gradients.forget()
        self.diagnosis = None if self.diagnosis is None else Diagnosis()

    def _observe(self, arrived: Arrived, at_s: float, **seen: Any) -> Vitals:
        self._metrics.note(arrived.fetched)
        loss, norm = arrived.loss, arrived.norm
        return self._signs.observe(
            arrived.step, at_s=at_s, loss=loss, grad_norm=norm, lr=self._lr(), stepped=arrived.stepped, **seen
        )

    def _examine(self, vitals: Vitals, evaluated: float | None = None, *, has_come: bool = True) -> tuple[Alarm, ...]:
        """The alarms, and, where a step's values have come, the diagnosis of that step."""
        if self._detectors is None:
            return ()
        alarms = self._detectors.look(vitals, eval_loss=evaluated, save_s=self._save_s, rate=self._rate)
        if self._judge is not None and has_come:
            self.diagnosis = self._judge.look(vitals, self._detectors.signs)
        return alarms

    def _begin_anew(self) -> None:
        """The program says that what follows is another thing: nothing of before is usual any more."""
        for part, state in self._anew:
            part.apply(state)
        if self._judge is not None:
            self._judge.expect()
