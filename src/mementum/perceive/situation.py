"""Perception: all that is seen of a run, put together after each step as the situation that decisions are made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from mementum.clock import Clock
from mementum.perceive.ailing import Ailing
from mementum.perceive.alarms import Detectors
from mementum.perceive.budgets import KEPT, Budgets
from mementum.perceive.costs import Costs, SaveCost, lost_of
from mementum.perceive.deadlines import Deadlines
from mementum.perceive.exactness import SinceExact
from mementum.perceive.exposure import Exposure
from mementum.perceive.gradients import Gradients
from mementum.perceive.hazards import Hazards
from mementum.perceive.health import Judge
from mementum.perceive.measured import Measured
from mementum.perceive.memory import Memory
from mementum.perceive.notices import Notices
from mementum.perceive.onward import Onward
from mementum.perceive.risk import Risk
from mementum.perceive.seeing import Seeing
from mementum.perceive.timing import StepTimes
from mementum.perceive.vitals import VitalSigns
from mementum.records import (
    Alarm,
    Diagnosis,
    Granularity,
    Health,
    Notice,
    Reach,
    Save,
    Situation,
    Standing,
    Vitals,
    record,
)

IN_VAIN_MAX = 3  # snapshots in memory in a row of which nothing came: there is no memory that would keep them
FOR_SOMEBODY = ("notice", "asked")  # causes of saves that somebody waits for
UNSEEN: tuple[None, tuple[Alarm, ...], tuple[float, bool]] = (None, (), (0.0, False))  # neither vital signs nor risk
RATES_S = 1.0  # between two looks at the rates of failures: they change within hours, and are 20 logarithms
AGAIN = ("signs", "gradients", "detectors", "judge", "risk")  # what goes back when the run does: time and money do not


@record
class Told:
    """What the loop told of a step, with what the run knows. `metrics`: numbers, words, tensors of one element."""

    step: int
    epoch: int
    ends_epoch: bool
    since_save_steps: int = 0
    since_save_s: float = 0.0
    saves_in_flight: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    total_steps: int | None = None
    events: tuple[str, ...] = ()


@record
class Senses:
    """The parts; None for one that is switched off. `lr` reads the learning rate of now. `best`: the names of metrics
    of which the best is wanted, and whether that is the lowest or the highest."""

    costs: Costs
    hazards: Hazards
    budgets: Budgets
    signs: VitalSigns | None = None
    gradients: Gradients | None = None
    detectors: Detectors | None = None
    judge: Judge | None = None  # asked where there are detectors
    memory: Memory | None = None
    ailing: Ailing | None = None
    times: StepTimes
    notices: Notices | None = None
    deadlines: Deadlines | None = None
    lr: Callable[[], float | None] = field(default=lambda: None)
    best: Mapping[str, Literal["min", "max"]] = field(default_factory=dict)
    loss_window: int | None = None  # of the losses whose spread the window policy asks for
    every: int = 1  # steps from one look at loss and gradients to the next
    scaled: bool = False  # whether there is a loss scale, whose overflows keep an optimizer from its step


@record
class _Saving:
    """A save that was begun, what was charged for it, and when by the clock its state was taken. `taken_s`: when by the
    exposure; None for one that no exact resume can use, whose work is still at risk."""

    reach: Reach
    taken_s: float | None
    clock_s: float
    charged: SaveCost
    cause: str
    answers: frozenset[str]  # sources of the notices before it, until it is durable


class Perception:
    """Belongs to the training's thread, but for `ended`, `measured` and `unsound`, which any thread may tell.

    What is told of a save counts from the next look on."""

    def __init__(self, senses: Senses, *, clock: Clock, step: int) -> None:
        self._senses, self._clock = senses, clock
        self._began_s = clock.monotonic()
        self._exposure = Exposure(step=step)
        self.onward = Onward()  # what of the saves is on its way to tiers
        self._exact = SinceExact(resumed=step > 0)
        self._in_vain = 0
        self._rates: dict[Reach, float] = {}
        self._rated_s = -RATES_S
        self._risk = Risk()
        self._risky = 0.0
        self._saving: dict[str, _Saving] = {}
        self._ended: deque[tuple[str, bool]] = deque()
        self._measured: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._metrics = Measured(senses.best)
        self._seeing: Seeing | None = None
        if senses.signs is not None:
            self._seeing = Seeing(
                signs=senses.signs,
                gradients=senses.gradients,
                detectors=senses.detectors,
                judge=senses.judge,
                metrics=self._metrics,
                lr=senses.lr,
                every=senses.every,
                scaled=senses.scaled,
            )

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The newest; None: nobody looks."""
        return None if self._seeing is None else self._seeing.diagnosis

    @property
    def at_s(self) -> float:
        """Seconds since the attempt began."""
        return self._clock.monotonic() - self._began_s

    def look(self, told: Told, *, plainly: bool = False) -> Situation:
        """The situation after a step. `plainly`: without vital signs and alarms, where to look at them has failed."""
        self.take_in()
        at_s, senses = self.at_s, self._senses
        best, step_s = self._metrics.best, None
        if not plainly:  # else it was counted before the look failed
            step_s = senses.times.tick()
            self._metrics.note(told.metrics)
            self._metrics.take_late()
        costs = self._offered()
        rates = self._rates_of(at_s, costs)
        vitals, alarms, risk = UNSEEN if plainly else self._look_at(told, at_s, step_s, sum(rates.values()))
        if not plainly:
            self._metrics.judge(told.step, self._onset)
        self._exposure.advance(at_s, told.step, rates)
        return Situation(
            step=told.step,
            epoch=told.epoch,
            ends_epoch=told.ends_epoch,
            since_save_steps=told.since_save_steps,
            since_save_s=told.since_save_s,
            saves_since_exact=self._exact.saves,
            since_exact_s=self._exact.seconds(at_s),
            saves_in_flight=told.saves_in_flight,
            total_steps=told.total_steps,
            at_s=at_s,
            step_s=senses.times.median_s(),
            notices=self.notices(),
            vitals=vitals,
            alarms=alarms,
            diagnosis=self.diagnosis,
            standings=tuple(self._standing(cost, rates[cost.reach]) for cost in costs),
            allowances=senses.budgets.allowances(at_s, costs),
            loss_std=self._loss_std(),
            risk=risk[0],
            risk_rose=risk[1],
            metrics=self._metrics.newest,
            best=best,
            events=told.events,
        )

    def notices(self) -> tuple[Notice, ...]:
        """What no save has answered yet, also none on its way."""
        answered = frozenset[str]().union(*(saving.answers for saving in self._saving.values()))
        return tuple(notice for notice in self._all_notices() if notice.source not in answered)

    def _all_notices(self) -> tuple[Notice, ...]:
        senses = self._senses
        heard = senses.notices.pending() if senses.notices is not None else ()
        return (*heard, *(senses.deadlines.pending(self._clock.monotonic()) if senses.deadlines is not None else ()))

    def evaluated(self, values: Mapping[str, Any]) -> None:
        """Metrics that came late: of an evaluation, say. They count at the next step."""
        self._metrics.came_late(values)

    def not_taken(self, save: Save) -> None:
        """There was no memory for a save."""
        self._count(save.reach, durable=False)

    def taken(self, id: str, save: Save) -> None:
        """A save has begun, and its state is that of now, or, of one that is kept, an older one."""
        at_s = self.at_s
        charged = next((one for one in reversed(self._offered()) if one.reach <= save.reach), None)
        if charged is None:
            return
        reach, exact, kept = charged.reach, save.granularity is Granularity.FULL, save.cause == KEPT
        if not kept:  # else no work is at risk any less
            self._exact.taken(id, save, at_s)
        charged = charged if exact else replace(charged, size=0)  # a part of it is charged once it is known
        self._senses.budgets.spent(at_s, charged, cause=save.cause, id=id)
        self._saving[id] = _Saving(
            reach=reach,
            taken_s=self._exposure.begun(reach) if exact and not kept else None,
            clock_s=self._clock.monotonic(),
            charged=charged,
            cause=save.cause,
            answers=self._answers(save),
        )

    def ended(self, id: str, *, durable: bool) -> None:
        """The save with this id is durable, or nothing comes of it."""
        self._ended.append((id, durable))

    def unsound(self, step: int, after_step: int, why: str) -> None:
        """The state that was saved at `step` is not finite, and the one of `after_step` was."""
        if self._senses.judge is not None:
            self._senses.judge.found(step, after_step, why)

    def measured(self, id: str, cost: Mapping[str, Any]) -> None:
        """What a durable save has cost: the keyword arguments of `Costs.told`."""
        self._measured.append((id, cost))

    def state(self) -> dict[str, Any]:
        """What is remembered of the run, as plain values, so that a resume goes on with it."""
        return {**{name: part.state() for name, part in self._parts().items()}, **self._metrics.state()}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`. If it is none of ours, what the parts raise is raised, and nothing has changed."""
        before = self.state()
        try:
            self._apply(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            self._apply(before)
            raise

    def rewound(self, step: int, state: Mapping[str, Any] | None) -> None:
        """The run has gone back to a checkpoint of this step, no save is in flight, and `state` is what was remembered
        there. What was spent stays spent; what is still on its way is of the branch that was left."""
        self.take_in()
        self._metrics.forget()
        if self._seeing is not None:
            self._seeing.rewound()
        if state is not None:
            now = self.state()
            self.apply({**now, **{name: state[name] for name in (*AGAIN, *self._metrics.state()) if name in state}})
        self._saving.clear()
        self.onward.clear()
        self._exposure = Exposure(at_s=self.at_s, step=step)

    def _parts(self) -> dict[str, Any]:
        """What is remembered from step to step, by name."""
        senses = self._senses
        parts: dict[str, Any] = {"signs": senses.signs, "gradients": senses.gradients, "detectors": senses.detectors}
        parts |= {"judge": senses.judge, "risk": self._risk, "times": senses.times, "budgets": senses.budgets}
        return {name: part for name, part in parts.items() if part is not None}

    def _apply(self, state: Mapping[str, Any]) -> None:
        self._metrics.apply(state)
        for name, part in self._parts().items():
            if name in state:
                part.apply(state[name])

    def close(self) -> None:
        """Let go of hooks, files and threads. Notices are their owner's to close."""
        for part in (self._senses.gradients, self._senses.memory, self._senses.deadlines):
            if part is not None:
                part.close()

    def take_in(self) -> None:
        """Count what other threads have told since the last step."""
        while self._ended:
            id, durable = self._ended.popleft()
            saving = self._saving.get(id)
            if saving is None:
                continue
            self._count(saving.reach, durable=durable)
            self._exact.ended(id, durable=durable)
            if durable:
                if saving.taken_s is not None:
                    self.onward.committed(id, saving.reach, saving.taken_s, self._exposure)
                if saving.answers:
                    self._answer(saving.clock_s)
                self._saving[id] = replace(saving, answers=frozenset())
            else:
                # What was charged for it stays charged: nobody has measured what it took, and those that fail one after
                # the other must not be free.
                if saving.taken_s is not None:
                    self._exposure.failed(saving.reach, saving.taken_s)
                del self._saving[id]
        self.onward.take_in(self._exposure)
        while self._measured:
            id, cost = self._measured.popleft()
            saving = self._saving.pop(id, None)
            if saving is None:
                continue
            if saving.taken_s is not None:  # a lighter save says little of what a whole one costs
                self._senses.costs.told(min(saving.reach, Reach.REBOOT), **cost)
            lost_s = lost_of(cost["lost_s"], cost["blocked_s"], cost["snapshot_s"], cost["durable_s"])
            self._senses.budgets.corrected(
                self.at_s, saving.charged, lost_s=lost_s, written=cost["written"], cause=saving.cause, id=id
            )

    def _rates_of(self, at_s: float, costs: tuple[SaveCost, ...]) -> Mapping[Reach, float]:
        ailing = self._senses.ailing
        changed = ailing is not None and ailing.look(at_s)
        if changed or at_s - self._rated_s >= RATES_S or len(self._rates) != len(costs):
            self._rates = self._senses.hazards.rates(at_s, tuple(cost.reach for cost in costs))
            self._rated_s = at_s
        return self._rates

    def _offered(self) -> tuple[SaveCost, ...]:
        """Of the reaches that saves can have here, as far as one knows."""
        costs = self._senses.costs.every()
        return costs if self._in_vain < IN_VAIN_MAX else tuple(one for one in costs if one.reach > Reach.PROCESS)

    def _count(self, reach: Reach, *, durable: bool) -> None:
        """Of snapshots that memory does not keep, no more are taken, but for one after each that the disk has."""
        if reach is Reach.PROCESS:
            self._in_vain = 0 if durable else self._in_vain + 1
        elif durable:
            self._in_vain = min(self._in_vain, IN_VAIN_MAX - 1)

    def _answers(self, save: Save) -> frozenset[str]:
        """Of what notices nothing more is to be done once it is durable. A snapshot in memory is enough only where it
        was taken for the notice, because nothing else would be in time."""
        whole = save.granularity is Granularity.FULL and save.cause != KEPT
        enough = whole and (save.reach > Reach.PROCESS or save.cause in FOR_SOMEBODY)
        return frozenset(notice.source for notice in self._all_notices()) if enough else frozenset()

    def _answer(self, taken_s: float) -> None:
        """Notices that came before the state was taken need no further save."""
        if self._senses.notices is not None:
            self._senses.notices.answered(taken_s)
        if self._senses.deadlines is not None:
            self._senses.deadlines.answered(taken_s)

    def _look_at(
        self, told: Told, at_s: float, step_s: float | None, rate: float
    ) -> tuple[Vitals | None, tuple[Alarm, ...], tuple[float, bool]]:
        senses = self._senses
        memory = senses.memory.look(told.step) if senses.memory is not None else None  # which has a pace of its own
        if self._seeing is None:
            return None, (), (self._risky, False)
        # A save before memory is gone must reach the disk: what lies in memory may go too.
        save_s = min((cost.durable_s for cost in self._offered() if cost.reach > Reach.PROCESS), default=None)
        seen = self._seeing.look(
            told.step,
            told.metrics,
            told.events,
            at_s=at_s,
            save_s=save_s,
            rate=rate,
            memory_used=None if memory is None else memory.part,
            memory_steps_left=None if memory is None else memory.steps_left,
            step_s=step_s,
        )
        if seen is None:
            return None, (), (self._risky, False)
        vitals, alarms = seen
        if senses.detectors is not None and senses.ailing is not None:
            alarms = (*alarms, *senses.ailing.alarms(told.step, rate))
        risk = self._risk.look(vitals, alarms)
        self._risky = risk[0]
        return vitals, alarms, risk

    @property
    def _onset(self) -> int | None:
        return None if self.diagnosis is None or self.diagnosis.health is Health.CLEAN else self.diagnosis.onset

    def _loss_std(self) -> float | None:
        signs, window = self._senses.signs, self._senses.loss_window
        return None if signs is None or window is None else signs.loss_std(window)

    def _standing(self, cost: SaveCost, rate: float) -> Standing:
        exposure, reach = self._exposure, cost.reach
        return Standing(
            reach=reach,
            since_s=exposure.since_s(reach),
            since_steps=exposure.since_steps(reach),
            cost_s=cost.lost_s,
            durable_s=cost.durable_s,
            size=cost.size,
            rate=rate,
            exposure_s=exposure.seconds(reach),
            in_flight=exposure.in_flight(reach),
        )
