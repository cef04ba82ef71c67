"""Deciding: after each step from what is seen to a decision, and into the journal what a person may ask for later.

A fault in here is caught, told, and never reaches the training; after three of one kind that part is switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from mementum.clock import Clock
from mementum.decide.before import BeforeStop
from mementum.decide.budget import Within
from mementum.decide.cost import BLINDLY_S
from mementum.decide.flight import Recording
from mementum.decide.interval import EverySeconds
from mementum.decide.observing import Observing
from mementum.decide.policy import First, Policy, save_of
from mementum.events import CameToNothing, Committed, Cost, Emit, Event, Failed, Note, NotFinite, SnapshotKept
from mementum.noting import Noting, Tell
from mementum.once import Once
from mementum.perceive.hang import Watch
from mementum.perceive.health import over
from mementum.perceive.memory import Memory
from mementum.perceive.notices import Notices
from mementum.perceive.recorder import Recorder
from mementum.perceive.sending import Sending
from mementum.perceive.shield import shield
from mementum.perceive.situation import Perception, Told
from mementum.records import (
    Alarm,
    Decision,
    Diagnosis,
    Granularity,
    Health,
    Notice,
    Reach,
    Save,
    Situation,
    Skip,
    record,
)

T = TypeVar("T")

FAULTS_MAX = 3  # of one part; then it is switched off, and that is said
BLINDLY = First(policies=(BeforeStop(), EverySeconds(seconds=BLINDLY_S)))  # where the policy is switched off
ONCE_ONLY = frozenset({"epoch", "event", "best"})  # causes that hold at one step and not at the next
JUDGE = "judge"  # where what is remembered of a run has its diagnosis
WOULD = "would have saved"  # how the reason of a policy that only observes begins

Append = Callable[
    [bytes, Callable[[bool], None]], bool
]  # a chunk of recorded vitals, and whom to tell what became of it


class Quarantining(Protocol):
    """What becomes of saved states by what is known of the run's health. On the training's thread, but for `hear`."""

    @property
    def begun(self) -> Health: ...
    def look(self, diagnosis: Diagnosis, step: int) -> None: ...
    def taken(self, id: str, save: Save, step: int) -> None: ...
    def hear(self, event: Event) -> None: ...
    def rewound(self, step: int) -> None: ...
    def close(self) -> None: ...


@record
class Watchers:
    """What watches the run; None for what is switched off."""

    perception: Perception | None = None
    recorder: Recorder | None = None
    notices: Notices | None = None
    hang: Watch | None = None
    quarantine: Quarantining | None = None
    memory: Memory | None = None
    sending: Sending | None = None


class Deciding:
    """Asked after each step whether to save. Belongs to the training's thread, but for `hear`."""

    def __init__(
        self, policy: Policy, watchers: Watchers, *, tell: Tell, append: Append, clock: Clock, emit: Emit, step: int
    ) -> None:
        self._policy, self._watchers = policy, watchers
        self._append, self._clock, self._emit = append, clock, emit
        self._noting = Noting(tell=tell, clock=clock, emit=emit)
        self._faults: dict[str, int] = {}
        self._since_step, self._since_s = step, clock.monotonic()
        self._unshield: tuple[Callable[[], None], ...] = ()
        self._remembering: Once[dict[str, Any] | None] | None = None
        self._owed: tuple[Save, int] | None = None  # refused at that step, and to be made when the budget covers it
        self._fresh: dict[str, Any] | None = None  # as it was before anything was remembered

    def after_step(self, told: Told) -> Save | None:
        """The save that the policy wants now, if any."""
        if self._remembering is not None:
            self._remembering()
            self._remembering = None
        seen = self._guarded("looking at the run", lambda: self._look(told))
        if seen is None and self._fresh is not None:
            self._forget(self._fresh)
        self._fresh = None  # what was remembered has been looked at once, and was no reason to fail
        situation = seen or self._bare(told)
        decision = self._guarded("the policy", lambda: self._decide(situation))
        if self._faults.get("the policy", 0) >= FAULTS_MAX:
            decision = BLINDLY.decide(situation)
        self._guarded("recording what was seen", lambda: self._record(situation, decision))
        return decision if isinstance(decision, Save) else None

    def urgent(self, told: Told) -> Save | None:
        """A save for a notice that has come since the step was told, if any."""
        return self._guarded("looking for notices", lambda: self._urgent(told))

    @property
    def diagnosis(self) -> Diagnosis:
        """What the vital signs so far say of the state; clean where nobody looks."""
        perception = self._watchers.perception
        return Diagnosis() if perception is None or perception.diagnosis is None else perception.diagnosis

    def rewound(self, state: Mapping[str, Any] | None, step: int) -> None:
        """The run has gone back to a checkpoint of `step`, and no save is in flight. `state`: what was remembered of
        the run there, if anything."""
        self._remembering = self._owed = None
        self._since_step, self._since_s = step, self._clock.monotonic()
        watchers = self._watchers
        if watchers.perception is not None:
            back = watchers.perception.rewound
            # What a run goes back to by itself is clean.
            if self._guarded("going back", lambda: (back(step, None if state is None else _calm(state)),)) is None:
                back(step, None)
        if watchers.quarantine is not None:
            self._guarded("the quarantine", partial(watchers.quarantine.rewound, step))

    @property
    def observes(self) -> bool:
        """Whether nothing is saved, and only told what would have been."""
        return isinstance(self._policy, Observing)

    def would(self, save: Save, told: Told) -> None:
        """Note a save that is not made, since the policy only observes, and that it has not asked for itself."""
        numbers = {**save.numbers, "granularity": float(save.granularity), "reach": float(save.reach)}
        skip = Skip(reason=f"{WOULD}: {save.reason}", numbers=numbers)
        self._guarded("recording what was seen", lambda: self._note_skip(self._plain(self._since(told)), skip))

    def evaluated(self, values: Mapping[str, Any]) -> None:
        """Metrics that came late."""
        perception = self._watchers.perception
        if perception is not None:
            self._guarded("looking at late metrics", lambda: perception.evaluated(values))

    def not_taken(self, save: Save) -> None:
        """There was no memory for it."""
        perception = self._watchers.perception
        if perception is not None:
            self._guarded("counting a save", lambda: perception.not_taken(save))

    def taken(self, id: str, save: Save, step: int) -> None:
        """A save has begun."""
        if save.reach >= Reach.REBOOT:
            self._since_step, self._since_s = step, self._clock.monotonic()
        perception, quarantine = self._watchers.perception, self._watchers.quarantine
        if perception is not None:
            self._guarded("counting a save", lambda: perception.taken(id, save))
        if quarantine is not None and id != WOULD:
            self._guarded("the quarantine", lambda: quarantine.taken(id, save, step))

    def hear(self, event: Event) -> None:
        """What becomes of saves; on any thread."""
        if self._watchers.quarantine is not None:
            self._watchers.quarantine.hear(event)
        perception = self._watchers.perception
        if perception is None:
            return
        match event:
            case Committed(id=id):
                perception.ended(id, durable=True)
            case CameToNothing(id=id):
                perception.ended(id, durable=False)
            case SnapshotKept(id=id):
                perception.ended(id, durable=True)
            case NotFinite(step=step, after_step=after_step, name=name):
                perception.unsound(step, after_step, f"{name} is not finite")
            case Cost(id=id):
                cost = {
                    "lost_s": event.lost_s,
                    "blocked_s": event.blocked_s,
                    "snapshot_s": event.snapshot_s,
                    "durable_s": event.durable_s,
                    "written": event.written,
                }
                perception.measured(id, cost)

    def alarm(self, alarm: Alarm) -> None:
        """An alarm that comes from elsewhere than a step."""
        self._noting.alarm(alarm)

    @property
    def is_stopping(self) -> bool:
        """Whether somebody has said that the process will be stopped, and no durable save has answered it yet."""
        notices = self._watchers.notices
        return notices is not None and any(notice.stops for notice in notices.pending())

    @property
    def has_put_off(self) -> bool:
        """Whether a signal has something to do that was put off until the save was durable."""
        notices = self._watchers.notices
        return notices is not None and notices.has_put_off

    def let_go(self) -> None:
        """Let happen what was put off: raises what the program's handler raised, or ends the process."""
        if self._watchers.notices is not None:
            self._watchers.notices.let_go()

    def remembered(self) -> Once[dict[str, Any] | None] | None:
        """What is remembered of the run now, for the context of a save. It is read when it is asked for, on any thread,
        or at the latest before the next step is looked at."""
        perception = self._watchers.perception
        if perception is None:
            return None
        self._remembering = Once(lambda: self._guarded("reading what is remembered", perception.state))
        return self._remembering

    def shield(self, data: Any) -> None:
        """Keep a loader's workers alive through a signal to the whole process group, until the save is made."""
        if self._watchers.notices is not None:
            undo = self._guarded("shielding the loader's workers", lambda: shield(data))
            self._unshield += () if undo is None else (undo,)

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on from a stored state. One that does not fit is told; then what is usual is learnt anew. Where the state
        that the run begins with is known to be clean by now, a trouble that was remembered with it is over."""
        perception, quarantine = self._watchers.perception, self._watchers.quarantine
        if perception is None:
            return
        fresh = perception.state()
        try:
            clean = quarantine is not None and quarantine.begun is Health.CLEAN
            perception.apply(_calm(state) if clean else state)
            self._fresh = fresh
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            self._emit(Note(text=f"what was remembered of the run does not fit and is learnt anew: {error!r}"))

    def _forget(self, fresh: Mapping[str, Any]) -> None:
        """Looking has failed once, and what was remembered may be why."""
        self._fresh = None
        perception = self._watchers.perception
        if perception is not None:
            self._guarded("forgetting", lambda: perception.apply(fresh))
            self._emit(Note(text="what was remembered of the run is forgotten, since looking at the run has failed"))

    def begin(self) -> None:
        """Hear signals from now on: all that they will need is there."""
        if self._watchers.notices is not None:
            self._guarded("hearing signals", self._watchers.notices.install)

    def close(self) -> None:
        """Stop watching. What was put off stays so until `let_go`."""
        watchers = self._watchers
        if watchers.recorder is not None and watchers.recorder.dropped:
            self._emit(
                Note(text=f"{watchers.recorder.dropped} steps' vital signs were not recorded: the disk was behind")
            )
            watchers.recorder.dropped = 0
        if watchers.recorder is not None and (rest := watchers.recorder.rest()) is not None:
            self._append(rest, watchers.recorder.written)
        for part in (watchers.quarantine, watchers.hang, watchers.perception, watchers.notices):
            if part is not None:
                self._guarded("closing", part.close)
        for undo in self._unshield:
            self._guarded("closing", undo)
        # Each holds a loader, and we are part of a cycle: only the garbage collector would end the loader's workers. It
        # would wait five seconds for each, since it closes their queues before the iterator has told them to end.
        self._unshield = ()

    def _look(self, told: Told) -> Situation:
        watchers = self._watchers
        told = self._since(told)
        if watchers.perception is None:
            return self._plain(told)
        situation = watchers.perception.look(told)
        if watchers.hang is not None:
            watchers.hang.beat(told.step, situation.step_s)
        diagnosis, quarantine = situation.diagnosis, watchers.quarantine
        if quarantine is not None and diagnosis is not None:
            self._guarded("the quarantine", lambda: quarantine.look(diagnosis, told.step))
        return situation

    def _urgent(self, told: Told) -> Save | None:
        perception = self._watchers.perception
        notices = perception.notices() if perception is not None else ()
        if not any(notice.stops for notice in notices):
            return None
        situation = self._plain(self._since(told), notices)
        self._noting.notices(situation)
        return save_of(BeforeStop().decide(situation))

    def _bare(self, told: Told) -> Situation:
        """What is known where looking has failed: notices, and what is at risk if that can be told without looking."""
        perception, told = self._watchers.perception, self._since(told)
        if perception is None:
            return self._plain(told)
        counted = self._guarded("counting what is at risk", lambda: perception.look(told, plainly=True))
        return counted or self._plain(told, self._guarded("looking for notices", perception.notices) or ())

    def _since(self, told: Told) -> Told:
        since_s = self._clock.monotonic() - self._since_s
        return replace(told, since_save_steps=told.step - self._since_step, since_save_s=since_s)

    def _plain(self, told: Told, notices: tuple[Notice, ...] = ()) -> Situation:
        return Situation(
            step=told.step,
            epoch=told.epoch,
            ends_epoch=told.ends_epoch,
            since_save_steps=told.since_save_steps,
            since_save_s=told.since_save_s,
            saves_in_flight=told.saves_in_flight,
            total_steps=told.total_steps,
            events=told.events,
            notices=notices,
        )

    def _decide(self, situation: Situation) -> Decision | None:
        decision = self._policy.decide(situation)
        if not isinstance(decision, Skip):
            decision = save_of(decision)
        if isinstance(decision, Save):
            if self._owed is not None and _serves(decision, self._owed[0]):
                self._owed = None
            return decision
        wanted = decision.wanted if decision is not None else None
        if wanted is not None and wanted.cause in ONCE_ONLY:
            self._owed = (wanted, situation.step)
            return decision
        return self._settle(situation) or decision

    def _settle(self, situation: Situation) -> Save | None:
        """What was refused and will not come again by itself, once the budget covers it."""
        policy = self._policy.policy if isinstance(self._policy, Recording) else self._policy
        if self._owed is None or not isinstance(policy, Within):
            return None
        save, step = self._owed
        again = policy.again(save, situation)
        if not isinstance(again, Save):
            return None
        self._owed = None
        return replace(again, reason=f"{again.reason}; refused at step {step}")

    def _record(self, situation: Situation, decision: Decision | None) -> None:
        for alarm in situation.alarms:
            self.alarm(alarm)
        self._noting.notices(situation)
        if isinstance(decision, Skip):
            self._note_skip(situation, decision)
        recorder = self._watchers.recorder
        if recorder is not None and situation.vitals is not None:
            recorder.add(situation.vitals)
            chunk = recorder.due(situation.at_s)
            if chunk is not None and not self._append(chunk, recorder.written):
                recorder.written(False)

    def _note_skip(self, situation: Situation, skip: Skip) -> None:
        would = skip.reason.startswith(WOULD)
        if would:  # from here on as if it had been made
            reach = Reach(int(skip.numbers.get("reach", Reach.REBOOT)))
            self.taken(WOULD, Save(reason=skip.reason, reach=reach, cause="asked"), situation.step)
            if self._watchers.perception is not None:
                self._watchers.perception.ended(WOULD, durable=True)
        self._noting.skip(situation, skip, would=would)

    def _guarded(self, what: str, work: Callable[[], T]) -> T | None:
        if self._faults.get(what, 0) >= FAULTS_MAX:
            return None
        try:
            return work()
        except Exception as error:  # the border that keeps our faults out of training
            self._faults[what] = self._faults.get(what, 0) + 1
            told = f"{type(error).__name__}: {error}"
            self._emit(Failed(what=what, error=told, kept="the training and older checkpoints"))
            if self._faults[what] == FAULTS_MAX:
                self._emit(Note(text=f"{what} failed three times and is switched off"))
            return None


def _calm(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**state, JUDGE: over(state[JUDGE])} if JUDGE in state else state


def _serves(save: Save, owed: Save) -> bool:
    """Whether a save holds all that the owed one would have held, and outlives all that it would have outlived."""
    return save.granularity in (Granularity.FULL, owed.granularity) and save.reach >= owed.reach
