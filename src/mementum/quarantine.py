"""Quarantine of a run: what a diagnosis means for the states that it has saved, made durable in the journal.

Facts come first, then what follows from them: whatever instant a process dies at, no state from after an onset is
trusted, and the one from before it lies in shared memory or on the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.background import Background
from mementum.catalog.facts import RECORDER
from mementum.clock import Clock
from mementum.decide.lineage import lineage
from mementum.decide.quarantine import State, changed, given_up, health_at, marks, to_keep
from mementum.errors import MementumError
from mementum.events import CameToNothing, Committed, Diagnosed, Emit, Event, Failed, Kept, Note, Removed, SnapshotKept
from mementum.execute import head as heads
from mementum.execute.slot_file import Stamp
from mementum.execute.slots import Slot
from mementum.frozen import located
from mementum.opening import Opened
from mementum.perceive.budgets import KEPT
from mementum.ram import describe, snapshot_in
from mementum.records import (
    NON_FINITE,
    Diagnosis,
    Entry,
    Granularity,
    Health,
    Manifest,
    Reach,
    Resumed,
    Save,
    StoredFile,
    record,
)
from mementum.slotting import ChosenSlots

TRIES_MAX = 3  # to place one snapshot: a disk that has refused it so often refuses it again, and memory is wanted
RETRY_STEPS = 25  # from one try to the next: a full disk is not emptied in one step
IN_MEMORY_MAX = 8  # states that no disk has, newest first: more than slots and saves in flight together
HEARD_MAX = 10_000  # events between two steps: a first save under a smaller keep_last removes all that it pushes out

Charge = Callable[[str, Save], None]  # a save's id, and what it is


@record
class Keeping:
    """The state that is kept for the trouble at hand. `again_at`: the step from which on to place it once more, where
    that has failed."""

    id: str
    step: int
    onset: int
    why: str
    tries: int = 1
    again_at: int | None = None
    told: bool = False


class Quarantine:
    """Belongs to the training's thread, but for `hear` and `health_of`, which any thread may call."""

    def __init__(
        self,
        *,
        opened: Opened,
        background: Background,
        slots: ChosenSlots,
        lineage: Sequence[Entry],
        coming: State | None,
        older: Iterable[State],
        pinned: Iterable[State],
        charge: Charge,
        observes: bool,
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`lineage`: the checkpoints that the run comes from. `coming`: the snapshot that it came back from, on its way
        to the disk. `older`: snapshots of a dead process in memory, from before that. `pinned`: all that are pinned
        for troubles so far, also on branches that were left. `charge` is told of saves that are made here. `observes`:
        nothing is marked and nothing kept, only told."""
        self._opened, self._background, self._slots = opened, background, slots
        self._charge, self._observes, self._clock, self._emit = charge, observes, clock, emit
        self._states = {entry.manifest.id: _state(entry) for entry in reversed(lineage) if entry.damaged is None}
        self._coming: set[str] = set()  # ids of what is on its way to the disk, and
        self._copying: set[str] = set()  # of what is on its way into memory alone
        self._held: dict[str, Slot] = {}  # by id: nobody overwrites what is kept, until the disk has it
        self._states |= {state.id: state for state in older}
        if coming is not None:
            self._states[coming.id] = coming
            self._coming.add(coming.id)
        self._pins = {state.id: state for state in pinned}
        begun = coming or (self._states.get(lineage[0].manifest.id) if lineage else None)
        self.begun = Health.CLEAN if begun is None else begun.health  # what is known of what the run begins with
        self._heard: deque[Committed | CameToNothing | SnapshotKept | Removed] = deque(maxlen=HEARD_MAX)
        self._now = Diagnosis()
        self._keeping: Keeping | None = None
        self._none_told: int | None = None  # the onset of which it was told that nothing from before it is left

    def look(self, diagnosis: Diagnosis, step: int) -> None:
        """Told of what is known after each step; most often there is nothing to do."""
        self._take_in(step)
        before, self._now = self._now, diagnosis
        if changed(before, diagnosis):
            self._told(before, diagnosis, step)
        if diagnosis.health is Health.CLEAN or self._observes:
            return
        self._keep(diagnosis, step)

    def taken(self, id: str, save: Save, step: int) -> None:
        """A save of this step's state has begun."""
        health = health_at(self._now, step)
        exact = save.granularity is Granularity.FULL
        self._states[id] = State(id=id, step=step, exact=exact, health=health)
        (self._coming if save.reach > Reach.PROCESS else self._copying).add(id)
        if health is not Health.CLEAN:
            self._tell_health(id, step, health, f"from step {self._now.onset} on: {self._now.why}")
        self._forget_oldest()

    def hear(self, event: Event) -> None:
        """What becomes of saves; on any thread."""
        if isinstance(event, Committed | CameToNothing | SnapshotKept | Removed):
            self._heard.append(event)
        if isinstance(event, Committed):
            self._let_go(event.id)  # at once: the next copy may want the memory

    def health_of(self, id: str, step: int) -> Health:
        """What is known of a state, for its manifest; on any thread."""
        state = self._states.get(id)
        return health_at(self._now, step) if state is None else state.health

    def diagnosis(self) -> Diagnosis:
        """The newest; on any thread."""
        return self._now

    def rewound(self, step: int) -> None:
        """The run has gone back to this step: what it has saved since is of a branch that it has left. Its trouble is
        over, and what was kept from after this step was not from before it."""
        self._take_in(step)
        if self._now.health is not Health.CLEAN:
            self._tell("diagnosis", step, None, {"health": Health.CLEAN.value, "why": "the run went back"})
        self._states = {id: state for id, state in self._states.items() if state.step <= step}
        self._now = Diagnosis()
        if self._background.soundness is not None:
            self._background.soundness.rewound(step)
        for state in [state for state in self._pins.values() if state.step > step]:
            self._unpin(state.id)
        self._give_up_pins()

    def close(self) -> None:
        """No further step will come. What is held stays in memory for the next start, if no disk has it."""
        self._take_in(None)

    # What is told.

    def _told(self, before: Diagnosis, diagnosis: Diagnosis, step: int) -> None:
        known = {"onset": diagnosis.onset, "seen": diagnosis.seen, "episode": diagnosis.episode}
        values = {"health": diagnosis.health.value, "why": diagnosis.why, **known}
        self._tell("diagnosis", step, None, {name: value for name, value in values.items() if value is not None})
        self._emit(Diagnosed(step=step, diagnosis=diagnosis))
        if self._observes:
            return
        for mark in marks(before, diagnosis, step, self._states.values()):
            self._states[mark.id] = replace(self._states[mark.id], health=mark.health)
            self._tell_health(mark.id, mark.step, mark.health, mark.why)
        if diagnosis.health is Health.CLEAN:
            self._give_up_pins()

    def _tell(self, kind: str, step: int | None, checkpoint: str | None, values: Mapping[str, Any]) -> None:
        self._background.tell(kind, step=step, checkpoint=checkpoint, values=values)

    def _tell_health(self, id: str, step: int, health: Health, why: str) -> None:
        onset = {} if self._now.onset is None else {"onset": self._now.onset}
        self._tell("health", step, id, {"health": health.value, "why": why, **onset})

    # What is kept.

    def _keep(self, diagnosis: Diagnosis, step: int) -> None:
        """See to it that the newest clean state from before the onset is on the disk, and stays."""
        keeping = self._keeping
        if keeping is not None and not self._holds_good(keeping, diagnosis):
            self._unpin(keeping.id)
            self._end_keeping()
            keeping = None
        if keeping is None:
            keeping = self._keeping = self._chosen(diagnosis)
        if keeping is None or self._states[keeping.id].durable or keeping.id in self._coming:
            return
        if keeping.id in self._held:
            if keeping.again_at is not None and step >= keeping.again_at:
                self._keeping = replace(keeping, again_at=None, tries=keeping.tries + 1)
                self._place(keeping)
            return
        slot = self._slots.hold(keeping.id)
        if slot is not None:
            self._held[keeping.id] = slot
            self._place(keeping)
        elif keeping.id not in self._copying:
            del self._states[keeping.id]  # it is in memory no more

    def _chosen(self, diagnosis: Diagnosis) -> Keeping | None:
        """What is to be kept now. It is pinned before anything else is done: the fact counts for a checkpoint that
        comes later too."""
        found = to_keep(diagnosis, self._states.values(), self._slots.whole | self._coming | self._copying)
        if found is None or diagnosis.onset is None:
            if self._none_told != diagnosis.onset:
                self._none_told = diagnosis.onset
                text = f"no clean state from before step {diagnosis.onset} is left in memory or on the disk"
                self._emit(Note(text=text))
            return None
        state, why = found.state, found.why
        self._background.keep_waiting(state.id)
        told = state.id in self._pins
        keeping = Keeping(id=state.id, step=state.step, onset=diagnosis.onset, why=why, told=told or state.durable)
        if not told:
            self._background.tidying.protect(state.id, why)
            self._tell("pin", state.step, state.id, {"why": why, "by": RECORDER})
            self._pins[state.id] = replace(state, pinned=why)
            if state.durable:
                self._tell_kept(keeping)
        return keeping

    def _holds_good(self, keeping: Keeping, diagnosis: Diagnosis) -> bool:
        """Whether what is kept is still one from before the onset, and can still be had."""
        state = self._states.get(keeping.id)
        if state is None or state.health is not Health.CLEAN or diagnosis.onset is None:
            return False
        return state.step < diagnosis.onset

    def _place(self, keeping: Keeping) -> None:
        """Write the snapshot in the slot to the disk. One that cannot be read is passed over, and told."""
        slot = self._held[keeping.id]
        assert slot.stamp is not None, "a slot that is held stays whole"
        store, began_s = self._opened.store, self._clock.monotonic()
        try:
            headed = heads.parse(slot.stamp.head)
            if headed.stills:
                entries = self._opened.catalog.entries(self._opened.home)
                stills = {name: located(still, store, entries) for name, still in headed.stills.items()}
                headed = replace(headed, stills=stills)
            save = replace(headed.told.save, reason=f"kept: {keeping.why}", reach=Reach.REBOOT, cause=KEPT)
            headed = replace(headed, told=replace(headed.told, save=save))
            snapshot = snapshot_in(slot, headed, store, release=_nothing, began_s=began_s)
        except MementumError as error:
            what, kept = f"reading the snapshot of step {keeping.step}", "older snapshots and checkpoints"
            self._emit(Failed(what=what, error=error.message, kept=kept))
            del self._states[keeping.id]
            self._let_go(keeping.id)
            return
        self._charge(snapshot.id, save)
        self._background.keep(snapshot, describe=lambda snapshot, files: self._described(headed, files))

    def _described(self, headed: heads.Headed, files: Iterable[StoredFile]) -> Manifest:
        told = headed.told
        return replace(describe(headed, tuple(files)), health=self.health_of(told.id, told.step))

    def _let_go(self, id: str) -> None:
        slot = self._held.pop(id, None)
        if slot is not None:
            self._slots.let_go(id, slot)

    def _end_keeping(self) -> None:
        """What is being written is let go of when that has ended."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None and keeping.again_at is not None:
            self._let_go(keeping.id)

    def _tell_kept(self, keeping: Keeping) -> None:
        self._emit(Kept(id=keeping.id, step=keeping.step, onset=keeping.onset, reason=keeping.why))

    def _give_up_pins(self) -> None:
        """The trouble is over."""
        self._end_keeping()
        for state in given_up([*self._pins.values()]):
            self._unpin(state.id)

    def _unpin(self, id: str) -> None:
        self._background.tidying.yield_up(id)
        self._tell("unpin", None, id, {"by": RECORDER})
        self._pins.pop(id, None)

    # What is heard.

    def _take_in(self, step: int | None) -> None:
        """Count what other threads have told since the last step."""
        while self._heard:
            event = self._heard.popleft()
            state, keeping = self._states.get(event.id), self._keeping
            self._copying.discard(event.id)
            if not isinstance(event, SnapshotKept):
                self._coming.discard(event.id)
            if isinstance(event, Removed):
                self._states.pop(event.id, None)
            elif isinstance(event, Committed) and state is not None:
                self._states[event.id] = replace(state, durable=True)
                if keeping is not None and keeping.id == event.id and not keeping.told:
                    self._keeping = replace(keeping, told=True)
                    self._tell_kept(keeping)
            elif isinstance(event, CameToNothing) and event.id in self._held:
                self._failed(event.id, step)
        found = None if self._background.soundness is None else self._background.soundness.take_found()
        if found is not None and found.id in self._states:
            self._states[found.id] = replace(self._states[found.id], health=Health.DIVERGED, unsound=True)

    def _failed(self, id: str, step: int | None) -> None:
        """The disk did not take it. It stays in memory until the disk does, or has refused often enough."""
        keeping = self._keeping
        if keeping is None or keeping.id != id or keeping.tries >= TRIES_MAX:
            self._let_go(id)
            self._states.pop(id, None)
        elif step is not None:
            self._keeping = replace(keeping, again_at=step + RETRY_STEPS)

    def _forget_oldest(self) -> None:
        """States that no disk has are many in a long run, and memory keeps but the newest of them."""
        held = None if self._keeping is None else self._keeping.id
        loose = [
            id for id, state in self._states.items() if not state.durable and id not in self._coming and id != held
        ]
        for id in sorted(loose, reverse=True)[IN_MEMORY_MAX:]:
            del self._states[id]


def watch_states(
    opened: Opened,
    background: Background,
    slots: ChosenSlots,
    resumed: Resumed | None,
    *,
    salvaged: Manifest | None,
    older: Iterable[Stamp],
    charge: Charge,
    observes: bool,
    clock: Clock,
    emit: Emit,
) -> Quarantine:
    """The quarantine of a run that goes on from `resumed`; from now on it says what a manifest tells of health.
    `salvaged`: the snapshot of a dead process that is on its way to the disk."""
    entries = opened.catalog.entries(opened.home)
    line: tuple[Entry, ...] = ()
    coming: State | None = None
    if resumed is not None:
        line = lineage(entries, resumed.checkpoint)
        if salvaged is not None and salvaged.id == resumed.checkpoint:
            coming = State(id=salvaged.id, step=salvaged.step, health=salvaged.health)
    made = Quarantine(
        opened=opened,
        background=background,
        slots=slots,
        lineage=line,
        coming=coming,
        older=[State(id=stamp.id, step=stamp.step) for stamp in older],
        pinned=[_state(entry) for entry in entries if RECORDER in entry.pinned_by],
        charge=charge,
        observes=observes,
        clock=clock,
        emit=emit,
    )
    background.health_of, background.diagnosis = made.health_of, made.diagnosis
    return made


def _state(entry: Entry) -> State:
    manifest = entry.manifest
    return State(
        id=manifest.id,
        step=manifest.step,
        exact=manifest.granularity is Granularity.FULL,
        durable=True,
        health=entry.health,
        unsound=NON_FINITE in manifest.decision,
        pinned=entry.pinned if RECORDER in entry.pinned_by else None,
    )


def _nothing() -> None:
    """The slot is given back when the checkpoint is known to be durable."""
