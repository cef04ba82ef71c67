"""Keeping: what each policy has in its slots and on its disk at every step of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from _runs import Array, vitals_of

from mementum.decide.flight import EVERY, FlightRecorder
from mementum.decide.interval import EverySteps
from mementum.decide.quarantine import State, changed, given_up, health_at, marks, to_keep
from mementum.decide.retain import Retention, retain
from mementum.decide.window import Window
from mementum.perceive.alarms import Detectors
from mementum.perceive.health import Judge
from mementum.perceive.risk import Risk
from mementum.records import (
    Alarm,
    Diagnosis,
    Entry,
    Granularity,
    Health,
    Manifest,
    Reach,
    Save,
    Situation,
    Standing,
    Vitals,
    record,
)

SLOTS = 3  # the product's default, for every policy
INTERVAL = 100  # steps between ours' saves to the disk; all others get as many saves as ours
LAST, SPREAD = 3, 3  # of retention, for ours
LOSS_WINDOW = 100  # losses whose spread the window policy asks for
BASE_MOST = 10_000  # steps of the window policy's T_base, the most that is tried
CLEAN = Diagnosis()


@record
class Look:
    """What is known at one step of a run."""

    step: int
    vitals: Vitals
    alarms: tuple[Alarm, ...]
    diagnosis: Diagnosis
    situation: Situation  # but for what depends on a policy's own saves


def look_at(run: dict[str, Array]) -> list[Look]:
    """The run as the product's detectors and judge, with their defaults, see it."""
    return looks(vitals_of(run), run["state_sound"].tolist())


def looks(seen: Sequence[Vitals], sound: Sequence[bool] = ()) -> list[Look]:
    """The same for vital signs as they are. `sound`: of the state after each step, from 1 on, whether all is finite,
    which is found when ours saves it to the disk."""
    detectors, judge, risk = Detectors(), Judge(), Risk()
    before = 0
    losses: list[float] = []
    found: list[Look] = []
    for vitals in seen:
        alarms = detectors.look(vitals)
        diagnosis = judge.look(vitals, detectors.signs)
        losses = [*losses, vitals.loss][-LOSS_WINDOW:] if vitals.loss is not None else losses
        risky, rose = risk.look(vitals, alarms)
        situation = Situation(
            step=vitals.step,
            epoch=0,
            since_save_steps=0,
            since_save_s=0.0,
            vitals=vitals,
            alarms=alarms,
            diagnosis=diagnosis,
            loss_std=deviation(losses),
            risk=risky,
            risk_rose=rose,
        )
        found.append(Look(step=vitals.step, vitals=vitals, alarms=alarms, diagnosis=diagnosis, situation=situation))
        if vitals.step % INTERVAL == 0 and sound:
            if sound[vitals.step - 1]:
                before = vitals.step
            else:  # as `soundness` tells it: it counts at the next look
                judge.found(vitals.step, before, "the state is not finite")
    return found


def deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5)


def id_of(step: int) -> str:
    return f"{step:08}"


def entry_of(step: int, health: Health) -> Entry:
    """A whole checkpoint, as far as retention looks at it."""
    manifest = Manifest(
        id=id_of(step),
        seq=step,
        task="",
        attempt=0,
        parent=None,
        step=step,
        epoch=0,
        time="",
        reason="",
        granularity=Granularity.FULL,
        health=health,
        files=(),
    )
    return Entry(manifest=manifest, folder="")


class Keeper(Protocol):
    """A policy with its memory and its disk."""

    @property
    def written(self) -> int:
        """Checkpoints on the disk so far, all of one size."""
        ...

    def step(self, look: Look) -> None: ...

    def clean(self) -> list[int]:
        """The steps of all states that it would come back from."""
        ...

    def states(self) -> list[int]:
        """The steps of all states that it has."""
        ...


K = TypeVar("K", bound=Keeper)


class Disk:
    """Checkpoints under retention."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self.entries: dict[int, Entry] = {}
        self.written = self.most = 0

    def write(self, step: int, *, health: Health = Health.CLEAN, pinned: str | None = None) -> None:
        if step in self.entries:
            return
        self.entries[step] = replace(entry_of(step, health), pinned=pinned)
        self.written += 1
        self.prune()
        self.most = max(self.most, len(self.entries))

    def prune(self) -> None:
        kept = {verdict.id for verdict in retain(tuple(self.entries.values()), self._retention) if verdict.keep}
        self.entries = {step: entry for step, entry in self.entries.items() if entry.manifest.id in kept}


class Blind:
    """A policy that knows no health: all that it has is clean. Each save goes through a slot, which holds it on."""

    def __init__(self, decide: Callable[[Situation], bool], *, keeps: int) -> None:
        """`decide`: whether to save. `keeps`: checkpoints that stay, as many as ours had at most."""
        self._decide = decide
        self._disk = Disk(Retention(last=keeps))
        self._slots: list[int] = []
        self._saved = 0

    @property
    def written(self) -> int:
        return self._disk.written

    def step(self, look: Look) -> None:
        if self._decide(replace(look.situation, since_save_steps=look.step - self._saved)):
            self._saved = look.step
            self._disk.write(look.step)
            self._slots = [*self._slots, look.step][-SLOTS:]

    def clean(self) -> list[int]:
        return self.states()

    def states(self) -> list[int]:
        return sorted({*self._disk.entries, *self._slots})


class Ours:
    """The product's flight recorder, quarantine and retention, and a fixed interval to the disk. A write to the disk is
    over at once, and what is written is searched for what is not finite, as the product does."""

    def __init__(self, whole: Sequence[bool], *, every: int = EVERY, interval: int = INTERVAL) -> None:
        """`whole`: of the state after each step, from 1 on, whether it would be found finite."""
        self._whole = whole
        self._recorder, self._interval = FlightRecorder(every=every), EverySteps(steps=interval)
        self._disk = Disk(Retention(last=LAST, spread=SPREAD))
        self._states: dict[str, State] = {}
        self._slots: list[str] = []  # whole snapshots, oldest first
        self._saved = self._taken = 0
        self._now = CLEAN
        self._kept: State | None = None
        self.kept: list[int] = []
        self.alarm_saves = 0

    @property
    def written(self) -> int:
        return self._disk.written

    @property
    def most(self) -> int:
        return self._disk.most

    def step(self, look: Look) -> None:
        before, self._now = self._now, look.diagnosis
        if changed(before, self._now):
            for mark in marks(before, self._now, look.step, self._states.values()):
                self._learn(replace(self._states[mark.id], health=mark.health))
            if self._now.health is Health.CLEAN:
                self._kept = None
                for state in given_up([*self._states.values()]):
                    self._learn(replace(state, pinned=None))
        if self._now.health is not Health.CLEAN:
            self._keep()
        if self._interval.decide(replace(look.situation, since_save_steps=look.step - self._saved)):
            self._saved = look.step
            self._snapshot(look.step)
            self._place(self._states[id_of(look.step)])
        elif isinstance(self._recorder.decide(self._situation(look)), Save):
            self._snapshot(look.step)

    def clean(self) -> list[int]:
        """A snapshot in memory is searched before a run comes back from it."""
        return sorted(one.step for one in self._there() if one.health is Health.CLEAN and self._whole[one.step - 1])

    def listed(self) -> list[int]:
        """The steps of the checkpoints on its disk that are listed as clean."""
        return sorted(one.step for one in self._there() if one.durable and one.health is Health.CLEAN)

    def states(self) -> list[int]:
        return sorted(one.step for one in self._there())

    def _there(self) -> list[State]:
        return [one for one in self._states.values() if one.durable or one.id in self._slots]

    def _situation(self, look: Look) -> Situation:
        since = look.step - self._taken
        standing = Standing(reach=Reach.PROCESS, since_s=float(since), since_steps=since, cost_s=0.0)
        return replace(look.situation, standings=(standing,))

    def _snapshot(self, step: int) -> None:
        state = State(id=id_of(step), step=step, health=health_at(self._now, step))
        self._slots = [*self._slots, state.id][-SLOTS:]
        self._states[state.id] = state
        self._taken = step

    def _place(self, state: State) -> None:
        """Write it to the disk."""
        if not self._whole[state.step - 1]:
            state = replace(state, health=Health.DIVERGED, unsound=True)
        self._disk.write(state.step, health=state.health, pinned=state.pinned)
        self._learn(replace(state, durable=True))
        for one in [*self._states.values()]:
            if one.durable and one.step not in self._disk.entries:
                self._learn(replace(one, durable=False))  # retention has removed it
        self._states = {id: one for id, one in self._states.items() if one.durable or id in self._slots}

    def _learn(self, state: State) -> None:
        self._states[state.id] = state
        if state.durable:
            entry = self._disk.entries[state.step]
            self._disk.entries[state.step] = replace(entry, judged=state.health, pinned=state.pinned)

    def _keep(self) -> None:
        """See to it that the newest clean state from before the onset is on the disk, and stays."""
        kept = None if self._kept is None else self._states.get(self._kept.id)
        onset = self._now.onset
        assert onset is not None
        if kept is not None and kept.health is Health.CLEAN and kept.step < onset:
            return
        if kept is not None:
            self._learn(replace(kept, pinned=None))
        found = to_keep(self._now, self._states.values(), self._slots)
        self._kept = None if found is None else found.state
        if found is None:
            return
        self.kept.append(found.state.step)
        pinned = replace(found.state, pinned=found.why)
        if pinned.durable:
            self._learn(pinned)
        else:
            self.alarm_saves += 1
            self._place(pinned)


def play(keeper: K, seen: Sequence[Look], until: int) -> K:
    """The policy after step `until`."""
    for look in seen[:until]:
        keeper.step(look)
    return keeper


def others(ours: Ours, seen: Sequence[Look], until: int) -> dict[str, Blind]:
    """The policies beside ours, after step `until`: as many slots, as many checkpoints that stay, as many written."""
    keeps, count = ours.most, ours.written
    made: dict[str, Blind] = {}

    def first(name: str, decide: Callable[[int], Callable[[Situation], bool]], most: int) -> None:
        """With the smallest interval that writes no more than ours: found by halving, for rarer saves are fewer."""
        low, high, best = 1, most, Blind(_never, keeps=keeps)
        while low <= high:
            steps = (low + high) // 2
            one = play(Blind(decide(steps), keeps=keeps), seen, until)
            if one.written <= count:
                best, high = one, steps - 1
            else:
                low = steps + 1
        made[name] = best

    first("fixed", _fixed, until)
    first("window", _window, BASE_MOST)
    first("save_on_alarm", _on_alarm, until)
    return made


def _never(situation: Situation) -> bool:
    return False


def _fixed(steps: int) -> Callable[[Situation], bool]:
    policy = EverySteps(steps=steps)
    return lambda situation: policy.decide(situation) is not None


def _window(steps: int) -> Callable[[Situation], bool]:
    policy = Window(base_steps=steps)
    return lambda situation: isinstance(policy.decide(situation), Save)


def _on_alarm(steps: int) -> Callable[[Situation], bool]:
    policy = EverySteps(steps=steps)
    return lambda situation: bool(situation.alarms) or policy.decide(situation) is not None
