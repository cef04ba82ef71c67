"""Taking: from a decision to save to a snapshot that the worker has, within milliseconds of the loop's time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from mementum.background import Background, Lasting
from mementum.clock import Clock, timestamp
from mementum.decide.rollback import Course, plain
from mementum.events import CameToNothing, Cost, Emit, Note, PhaseBegan, PhaseEnded, SaveSkipped, SnapshotKept
from mementum.execute import head as heads
from mementum.execute.capture import Capture, Captured
from mementum.execute.commit import new_id
from mementum.execute.ledger import Ledger
from mementum.execute.snapshot import Image, Label, Snapshot
from mementum.execute.standing import StandingCapture
from mementum.format import context as contexts
from mementum.format import typed_json
from mementum.live.component import Component
from mementum.once import Once
from mementum.records import Granularity, Health, Reach, Save, record

WEIGHTS_FILE = ".safetensors"  # how the names of files end that hold weights alone
DIRECT_WAIT_S = 3600.0  # for a disk that takes the state straight from the live tensors, while the loop stands still
FROZEN = "the frozen weights that it needs are on no disk yet"
UNHELD = "its slot cannot outlive the process"
REPEATED = "interval"  # the cause of saves that may as well be a step later, if the structure has just changed


@record
class Moment:
    """Where the run stands, besides what its components hold. `recent` are the rows of the last steps' metrics."""

    step: int
    epoch: int
    values: Mapping[str, Any]
    rng: Mapping[str, Any]
    iterating: bool
    feed: Mapping[str, Any] | None
    recent: tuple[Mapping[str, Any], ...]
    exactness: tuple[str, ...]
    course: Course = Course()  # what rollbacks have made of the run
    perceived: Callable[[], Mapping[str, Any] | None] | None = None  # reads what is remembered of the vital signs

    @property
    def metrics(self) -> dict[str, Any]:
        """What was recorded of this very step."""
        newest = self.recent[-1] if self.recent and self.recent[-1]["step"] == self.step else {}
        return {name: value for name, value in newest.items() if name != "step"}


class Taker:
    """Takes snapshots of one run, and hands them to its background."""

    def __init__(
        self,
        *,
        capture: Capture,
        components: Sequence[Component],
        background: Background,
        holds: Callable[[int], bool],
        lasting: Lasting,
        task: str,
        attempt: int,
        claim: str,
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`holds`: whether the next start would find the snapshot with this number in memory."""
        self._capture, self._components, self._background = capture, components, background
        self._holds = holds
        self._frozen: Literal["there", "missing", "on its way"] = "there"  # on the disk, as far as one knows
        self._lasting, self._task, self._attempt, self._claim = lasting, task, attempt, claim
        self._clock, self._emit = clock, emit
        self.ledger: Ledger = background.ledger
        self._standing, self._standing_told = StandingCapture(), False
        self._planned: tuple[object, object, bytes] = (None, None, b"")

    def possible(self, save: Save) -> Save:
        """What is to be taken for it. Frozen weights are in no snapshot: until a disk has them, none in memory is
        whole, and the disk is what it takes."""
        if save.reach is not Reach.PROCESS or self._frozen == "there" or self._background.saves_in_flight:
            return save
        if self._frozen == "on its way":  # that save is over
            self._frozen = "there"
            return save
        self._frozen = "on its way"
        return replace(save, reach=Reach.REBOOT, reason=f"{save.reason}; to the disk, since {FROZEN}")

    def take(self, save: Save, moment: Callable[[], Moment], step: int) -> str | None:
        """Copy the state, and queue it, or keep it where it is if it is for the loss of the process alone. The save's
        id. What goes wrong is raised; a save without memory is skipped, and told: None. So is one for memory while the
        frozen weights that it needs are on their way to the disk."""
        if save.reach is Reach.PROCESS and self._frozen != "there":
            return None  # which was told, and `possible` ends it
        began_s = self._clock.monotonic()
        id = new_id(self._clock.now())
        self._emit(PhaseBegan(phase="capture", id=id))
        self.ledger.begun(id, began_s)
        snapshot: Snapshot | None = None
        captured: Captured | None = None
        try:
            captured = self._captured(save)
            if captured is not None:
                snapshot = self._snapshot(id, save, moment, captured, began_s)
        finally:
            if snapshot is None:
                self.ledger.ended(id, self._clock.monotonic(), None)
                if captured is not None:
                    captured.release()
            self._emit(PhaseEnded(phase="capture", id=id, duration_s=self._clock.monotonic() - began_s))
        if snapshot is None or captured is None:
            self._emit(SaveSkipped(step=step, reason="no memory is free: the disk is behind"))
            return None
        full = save.granularity is Granularity.FULL  # a start comes back from nothing less in memory
        if save.reach is Reach.PROCESS and full and not captured.holds_up:
            kept = snapshot
            captured.then(lambda: self._keep(kept))
            return id
        self._background.submit(snapshot)
        if captured.holds_up:
            self._background.drain(DIRECT_WAIT_S)
        return id

    def _keep(self, snapshot: Snapshot) -> None:
        """The copy has ended: if it is sealed, it stays in shared memory until a newer one needs its place. One that
        something overtook is taken again."""
        kept = False
        try:
            torn = snapshot.outcome()
            kept = torn is None and self._holds(snapshot.seq)
        finally:
            if not kept:
                self.ledger.ended(snapshot.id, self._clock.monotonic(), None)
                self._emit(CameToNothing(id=snapshot.id, step=snapshot.step))
            snapshot.release()
        if kept:
            self._tell_kept(snapshot)
        elif torn is not None:
            self._background.take_again(snapshot, torn)
        else:
            there = self._background.stills.proved(snapshot.images) is not None
            self._frozen = "there" if there else "missing"
            why = UNHELD if there else FROZEN
            self._emit(SaveSkipped(step=snapshot.step, reason=f"a snapshot in memory would be of no use: {why}"))

    def _tell_kept(self, snapshot: Snapshot) -> None:
        id, step = snapshot.id, snapshot.step
        blocked_s, snapshot_s = snapshot.stood_still_s, snapshot.snapshot_s
        self._emit(
            SnapshotKept(id=id, step=step, reason=snapshot.save.reason, blocked_s=blocked_s, snapshot_s=snapshot_s)
        )
        cost = Cost(
            id=id,
            step=step,
            blocked_s=blocked_s,
            lost_s=None,
            snapshot_s=snapshot_s,
            durable_s=snapshot_s,
            written=0,
        )
        self.ledger.ended(id, self._clock.monotonic(), cost)

    def wait(self, timeout_s: float) -> bool:
        """Wait for copies under way; False if that takes longer."""
        return self._capture.wait(timeout_s)

    def warm(self) -> None:
        """Make ready for the first save."""
        self._capture.warm(self._components)

    def close(self) -> None:
        # What no disk has taken is kept, but not of a writer that has no say any more.
        self._capture.close(safe_seq=None if self._background.superseded else self._background.saved_seq)

    def _captured(self, save: Save) -> Captured | None:
        unfrozen = self._background.stills.take_unfrozen()
        if unfrozen:
            self._capture.unfreeze(unfrozen)
        background, sure = self._background, save.cause != REPEATED
        captured = self._capture.take(self._components, safe_seq=background.saved_seq, sure=sure)
        if captured is None and (save.reach is Reach.PROCESS or background.saves_in_flight):
            # The newest state is worth more than the one before. For one that no disk will get, the snapshot before it
            # goes first: what waits for the disk, or is written to it, is whole in memory too.
            if save.reach is not Reach.PROCESS:
                background.cancel_waiting(save)
            captured = self._capture.take(self._components, safe_seq=background.given_seq, sure=sure)
        if captured is None and background.cancel_waiting(save):
            captured = self._capture.take(self._components, safe_seq=background.given_seq, sure=sure)
        # No save has the memory: there is none. For the loss of the process alone the loop does not stand still.
        if captured is None and not background.saves_in_flight and save.reach is not Reach.PROCESS:
            captured = self._standing.take(self._components)
            if not self._standing_told:
                self._standing_told = True
                text = "there is no memory for a copy of the state: the loop stands still while it is written"
                self._emit(Note(text=text))
        return captured

    def _snapshot(
        self, id: str, save: Save, moment: Callable[[], Moment], captured: Captured, began_s: float
    ) -> Snapshot:
        now = moment()
        images, components = _parts(save.granularity, captured)
        # What the program may change is encoded now; the rest is rendered on another thread.
        fields = {
            "step": now.step,
            "epoch": now.epoch,
            "components": components,
            "rng": now.rng,
            "iterating": now.iterating,
            "feed": None
            if now.feed is None
            else typed_json.Encoded(data=typed_json.encode(dict(now.feed), path="$.feed")),
            "values": typed_json.Encoded(data=typed_json.encode(dict(now.values), path="$.values")),
        }
        if now.course != Course():
            fields["rollback"] = plain(now.course)
        perceived = now.perceived
        context = Once(lambda: contexts.render(fields if perceived is None else {**fields, "perceived": perceived()}))
        seq, time = self._background.next_seq(), timestamp(self._clock.now())
        snapshot = Snapshot(
            id=id,
            seq=seq,
            step=now.step,
            epoch=now.epoch,
            time=time,
            save=save,
            images=images,
            context=context,
            debug_info=now.recent,
            metrics=now.metrics,
            exactness=now.exactness,
            blocked_s=self._clock.monotonic() - began_s,
            release=captured.release,
            outcome=captured.outcome,
            waited_s=captured.waited_s,
            copied_at_s=captured.copied_at_s,
            began_s=began_s,
        )
        label = Label(id=id, seq=seq, attempt=self._attempt, step=now.step)
        parent = self._background.ancestor  # now: it is sealed when this one is on its way too
        captured.seal(label, lambda: self._head(snapshot, parent))
        return snapshot

    def _head(self, snapshot: Snapshot, parent: str | None) -> bytes | None:
        """What the slot says of its snapshot; None while frozen files that it needs are not durable yet."""
        stills = self._background.stills.proved(snapshot.images)
        if stills is None:
            return None
        if snapshot.save.granularity is not Granularity.FULL:
            return None  # the slot would be taken for one that an exact resume can use
        told = heads.Told(
            task=self._task,
            id=snapshot.id,
            seq=snapshot.seq,
            attempt=self._attempt,
            claim=self._claim,
            parent=parent,
            step=snapshot.step,
            epoch=snapshot.epoch,
            time=snapshot.time,
            save=replace(
                snapshot.save, numbers={**snapshot.save.numbers, "blocked_s": snapshot.stood_still_s}
            ),  # as a manifest has it
            debug_info=snapshot.debug_info,
            metrics=snapshot.metrics,
            exactness=snapshot.exactness,
            versions=self._lasting.versions,
            code=self._lasting.code,
            user=self._lasting.user,
            doubt=self._doubt(),
        )
        layouts = tuple(image.layout for image in snapshot.images)
        held, of, planned = self._planned
        if held != layouts or of != stills:
            planned = heads.render_plan(layouts, stills)
            self._planned = (layouts, stills, planned)
        return heads.render(told, planned, snapshot.context())

    def _doubt(self) -> heads.Doubt | None:
        now = self._background.diagnosis()
        if now.health is Health.CLEAN or now.onset is None:
            return None
        return heads.Doubt(health=now.health, onset=now.onset, why=now.why)


def _parts(granularity: Granularity, captured: Captured) -> tuple[tuple[Image, ...], dict[str, Mapping[str, object]]]:
    """The files and components that a save of this granularity has. Weights and optimizer are all there is but a few
    kilobytes, so such a save has those too; the essentials are among the weights."""
    if granularity not in (Granularity.WEIGHTS, Granularity.ESSENTIALS):
        return captured.images, dict(captured.components)
    images = tuple(image for image in captured.images if image.layout.name.endswith(WEIGHTS_FILE))
    left_out = {placed.component for image in captured.images if image not in images for placed in image.layout.placed}
    return images, {name: held for name, held in captured.components.items() if name not in left_out}
