"""Detectors: from the vital signs of each step to the alarms that a person should see, each told once an episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from mementum.perceive.calibration import Calibration, Seen
from mementum.perceive.drifts import Drift, SlowSteps, VanishingUpdate
from mementum.perceive.fitting import Overfitting
from mementum.perceive.level import Level
from mementum.perceive.pressure import memory_sign
from mementum.perceive.signs import Limits, Sign
from mementum.perceive.spikes import GradientSpike, LossSpike, NonFinite
from mementum.records import Alarm, Trouble, Vitals

STATE_VERSION = 2  # of what `state` gives: another one is not taken up, and what is usual is learnt anew
STEP_MEMORY = 64  # steps, whose duration stands for that of the next ones


class Detector(Protocol):
    """One detector: it remembers what it needs, and says what it finds at a step."""

    def look(self, vitals: Vitals) -> Sign | None: ...
    def state(self) -> dict[str, Any]: ...
    def apply(self, state: Mapping[str, Any]) -> None: ...


class Episode:
    """What was told of one trouble already. It ends when the sign has not been seen for `calm_steps` looks."""

    def __init__(self, calm_steps: int) -> None:
        self._calm_steps = calm_steps
        self._grade, self._calm = 0, 0

    def tells(self, sign: Sign | None) -> bool:
        """Whether this step's sign is news."""
        if sign is None:
            self._calm += 1
            if self._calm >= self._calm_steps:
                self._grade = 0
            return False
        self._calm = 0
        news = sign.grade > self._grade
        self._grade = max(self._grade, sign.grade)
        return news

    def state(self) -> dict[str, float]:
        return {"grade": self._grade, "calm": self._calm}

    def apply(self, state: Mapping[str, float]) -> None:
        self._grade, self._calm = int(state["grade"]), int(state["calm"])


class Detectors:
    """All of them. `which`: the troubles that are told; of others all is learnt and nothing said. `seen`: how alarms of
    the attempts before this one have turned out, which the chance of an alarm follows."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        which: Collection[Trouble] = tuple(Trouble),
        seen: Mapping[Trouble, Seen] | None = None,
    ) -> None:
        self._limits = limits = limits or Limits()
        self._which = frozenset(which)
        self._calibration = Calibration(seen)
        self._detectors: dict[str, Detector] = {
            "non_finite": NonFinite(limits),
            "loss": LossSpike(limits),
            "gradient": GradientSpike(limits),
            "drift": Drift(limits),
            "slow": SlowSteps(limits),
            "update": VanishingUpdate(limits),
        }
        self._overfitting = Overfitting(limits)
        self._step_s = Level(memory=STEP_MEMORY)
        self._episodes = {name: Episode(limits.calm_steps) for name in (*self._detectors, "memory", "fit")}
        self._signs: list[Sign] = []

    @property
    def signs(self) -> tuple[Sign, ...]:
        """All signs of the last look: those of an episode that was told already too, and of troubles that are not."""
        return tuple(self._signs)

    def look(
        self, vitals: Vitals, *, eval_loss: float | None = None, save_s: float | None = None, rate: float = 0.0
    ) -> tuple[Alarm, ...]:
        """The alarms of this step, most often none. Call it once a step, in order; steps may be missing.

        `eval_loss`: of an evaluation that has ended since the last look. `save_s`: seconds from the decision to save
        until the checkpoint is durable, as measured; None before the first. `rate`: of failures, a second, that come
        without any sign."""
        self._calibration.passed(vitals.at_s)
        if vitals.step_s is not None and 0.0 < vitals.step_s < float("inf"):
            self._step_s.learn(vitals.step_s)
        alarms: list[Alarm] = []
        self._signs.clear()
        for name, detector in self._detectors.items():
            self._judge(name, detector.look(vitals), vitals.step, alarms)
        step_s = self._step_s.value or None
        memory = memory_sign(vitals, limits=self._limits, step_s=step_s, save_s=save_s)
        self._judge("memory", memory, vitals.step, alarms)
        self._judge("fit", self._overfitting.look(vitals.loss, eval_loss), vitals.step, alarms)
        return tuple(self._weighed(alarm, vitals.at_s, rate) for alarm in alarms)

    def state(self) -> dict[str, Any]:
        """All that they remember, as plain numbers, for a checkpoint's context."""
        return {
            "version": STATE_VERSION,
            "detectors": {name: detector.state() for name, detector in self._detectors.items()},
            "fit": self._overfitting.state(),
            "step_s": self._step_s.state(),
            "episodes": {name: episode.state() for name, episode in self._episodes.items()},
        }

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave: the alarms are those of detectors that never stopped. What another version of
        mementum gave is passed by: a checkpoint is not refused for the sake of what can be learnt again."""
        if state.get("version") != STATE_VERSION:
            return
        for name, detector in self._detectors.items():
            detector.apply(state["detectors"][name])
        self._overfitting.apply(state["fit"])
        self._step_s.apply(state["step_s"])
        for name, episode in self._episodes.items():
            episode.apply(state["episodes"][name])

    def _judge(self, name: str, sign: Sign | None, step: int, alarms: list[Alarm]) -> None:
        if sign is not None:
            self._signs.append(sign)
            if sign.trouble not in self._which:
                sign = None
        if self._episodes[name].tells(sign) and sign is not None:
            alarms.append(
                Alarm(
                    trouble=sign.trouble,
                    step=step,
                    value=sign.value,
                    limit=sign.limit,
                    text=sign.text,
                    claimed=sign.chance,
                    horizon_s=sign.horizon_s,
                )
            )

    def _weighed(self, alarm: Alarm, at_s: float, rate: float) -> Alarm:
        """With the chance that such alarms have turned out to have."""
        if not alarm.claimed > 0:
            return alarm
        believed, horizon_s = self._calibration, alarm.horizon_s
        chance = believed.chance(alarm.trouble, alarm.claimed, horizon_s=horizon_s, rate=rate)
        believed.raised(alarm.trouble, alarm.claimed, at_s=at_s, horizon_s=horizon_s)
        return replace(alarm, chance=chance)
