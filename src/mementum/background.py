"""Background: what happens to a snapshot, and to facts, on the worker's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import psutil

from mementum.assemble import number
from mementum.clock import Clock
from mementum.compressing import Compressing
from mementum.config.tiers import Watermarks
from mementum.decide.retain import Retention
from mementum.errors import StoreError, Superseded
from mementum.events import CameToNothing, Committed, Cost, Emit, Failed, Note, SaveSkipped
from mementum.execute.attempts import key_of
from mementum.execute.claim import let_go, require_newest
from mementum.execute.ledger import Ledger
from mementum.execute.leftovers import Left
from mementum.execute.snapshot import Snapshot
from mementum.execute.stills import Stills, Unsteady
from mementum.execute.worker import SaveJob, Worker, rank_of
from mementum.forwarding import REACH, Forwarding
from mementum.journal import Journal
from mementum.landing import Landing, level_of
from mementum.opening import Opened
from mementum.perceive.budgets import KEPT
from mementum.records import Diagnosis, Granularity, Health, Manifest, Save, StoredFile, record
from mementum.saving import Describe
from mementum.soundness import Soundness
from mementum.storage.pace import Pace
from mementum.tidying import Tidying

# What such an attempt still commits before it sees us continues its own numbers, and must sort before all of ours: the
# one manifest between its look and its put, those of a list that was stale, and numbers that failed puts used up.
SEQ_LEAP = 1000

BEHIND = "the queue is full: the disk is behind"

HealthOf = Callable[[str, int], Health]  # a state's id and step; asked on any thread


@record
class Lasting:
    """What every manifest of an attempt says."""

    versions: Mapping[str, str]
    code: Mapping[str, Any]
    user: Mapping[str, Any]


class Background:
    """Makes checkpoints of snapshots, one after the other, and takes away what retention does not keep."""

    def __init__(
        self,
        *,
        opened: Opened,
        retention: Retention,
        settle_with: str | None = None,
        best_of: str = "loss",
        write_rate: float | None = None,
        marks: Watermarks | None = None,
        lasting: Lasting,
        seq: int,
        saved_seq: int,
        parent: str | None,
        saved_step: int | None,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.saved_step = saved_step  # the step of the newest durable checkpoint
        self.parent = parent  # the id of that checkpoint, or of the one that the run came back from
        self.given_seq = seq if opened.attempt.sure else seq + SEQ_LEAP  # the newest number that a snapshot has
        self.saved_seq = saved_seq  # that of the newest durable checkpoint
        self._parent_seq = 0
        self.ancestor = parent  # the id of the newest snapshot that is on its way to the disk, or there
        self.at_end: list[Callable[[], None]] = []  # what is to be given back when no save is in flight any more
        self.ending = False
        self.ledger = Ledger(self._tell_cost)
        self.stills = Stills()
        self.health_of: HealthOf = lambda id, step: Health.CLEAN  # what is known of a state, for its manifest
        self.diagnosis: Callable[[], Diagnosis] = Diagnosis  # what is known of the run, for a slot; on any thread
        self.memory_seen: Callable[[], Mapping[str, int]] = dict  # what was last seen of it; on any thread
        self.soundness: Soundness | None = None  # looks at each state before it is written
        self._opened, self._lasting, self._clock, self._emit = opened, lasting, clock, emit
        level = None if marks is None else level_of(opened, marks, clock=clock, emit=emit)
        self._compressing = Compressing(
            opened, codec=settle_with, require_newest=self._require_newest, level=level, clock=clock, emit=emit
        )
        self.turn = self._compressing.turn  # held by whoever removes or rewrites checkpoints of the task
        self._vanished = self._refused_told = False
        self._superseded: Superseded | None = None
        self._torn_save: Save | None = None  # of the newest copy that something overtook
        self._skip_told = self._relisting = False
        self._journal = Journal(opened.store, opened.attempt.number, clock=clock, emit=emit)
        self.tidying = Tidying(
            home=opened.home,
            store=opened.store,
            catalog=opened.catalog,
            retention=retention,
            journal=self._journal,
            turn=self.turn,
            sure=opened.attempt.sure,
            level=level,
            clock=clock,
            emit=emit,
        )
        pace = None if write_rate is None else Pace(write_rate, clock)
        self._landing = Landing(opened, self.tidying, self.stills, pace, self._require_newest, emit)
        self._worker = Worker(emit=emit)
        self._forwarding = Forwarding(opened, best_of=best_of, marks=marks, tell=self._note, clock=clock, emit=emit)
        self.tidying.waiting = self._forwarding.waiting
        self.hold_sending_to = self._forwarding.hold_to

    @property
    def saves_in_flight(self) -> int:
        return self._worker.saves_in_flight

    @property
    def superseded(self) -> bool:
        """Whether a later attempt has the task."""
        return self._superseded is not None

    def next_seq(self) -> int:
        """The sequence number of the next snapshot. Those of saves that come to nothing are used up."""
        self.given_seq += 1
        return self.given_seq

    def take_failure(self) -> Exception | None:
        """The newest failure that nobody has taken yet."""
        failure, self._worker.failure = self._worker.failure, None
        return failure

    def take_torn(self) -> Save | None:
        """The save whose copy was of no use, and which is to be made again, if nobody has taken it yet."""
        save, self._torn_save = self._torn_save, None
        return save

    def take_again(self, snapshot: Snapshot, torn: str) -> None:
        """Its copy is of no use: `torn` says why."""
        self._emit(SaveSkipped(step=snapshot.step, reason=f"{torn}: it is taken again after the next step"))
        self._torn_save = snapshot.save

    def submit(self, snapshot: Snapshot, *, describe: Describe | None = None) -> None:
        """Queue a snapshot; it takes the place of one that still waits. Once superseded, it is let go of. `describe`
        makes the manifest of one that another attempt has taken."""
        if self._superseded is not None:
            self._skip(snapshot, self._superseded)
        else:
            if describe is None:
                self.ancestor = snapshot.id
            self._worker.submit(self._job(snapshot, describe or self._describe))

    def keep(self, snapshot: Snapshot, *, describe: Describe) -> None:
        """Queue a snapshot whose place no other takes, and that takes nobody's."""
        if self._superseded is not None:
            self._skip(snapshot, self._superseded)
        else:
            self._worker.keep(self._job(snapshot, describe))

    def keep_waiting(self, id: str) -> None:
        """Let no newer save take the place of the one with this id, if it waits."""
        self._worker.keep_waiting(id)

    def _job(self, snapshot: Snapshot, describe: Describe) -> SaveJob:
        return SaveJob(
            what=f"the save of step {snapshot.step}",
            id=snapshot.id,
            work=partial(self._save, snapshot, describe),
            cancel=partial(self._cancelled, snapshot),
            rank=rank_of(snapshot.save),
        )

    def cancel_waiting(self, save: Save) -> bool:
        """Give up the snapshot that waits for this save's sake; False if none waits, or one that is worth more."""
        return self._worker.cancel_waiting(rank_of(save))

    def tell(
        self, kind: str, *, step: int | None = None, checkpoint: str | None = None, values: Mapping[str, Any]
    ) -> None:
        """Queue a fact for the journal."""
        plain = {name: number(value) for name, value in values.items()}
        if not self._worker.submit_fact(partial(self._append, kind, checkpoint, step, plain)):
            self._emit(Failed(what=f"a fact ({kind})", error=BEHIND, kept="the saves"))

    def record(self, chunk: bytes, written: Callable[[bool], None]) -> bool:
        """Queue a chunk of recorded vitals; `written` is told what became of it. False if the queue is full."""
        return self._worker.submit_fact(partial(self._journal.record, chunk, written))

    def tidy(self) -> None:
        """Queue the removal that follows a save: where a kill cut the last one short, no further save repeats it."""
        self._worker.submit_fact(self._tidy)

    def give_back(self, spare: Sequence[Left]) -> None:
        """Queue the removal of slots that nobody needs: it takes a while, and nothing waits for it."""
        for left in spare:
            if not self._worker.submit_fact(left.remove):
                left.remove()

    def drain(self, timeout_s: float) -> bool:
        return self._worker.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        self._forwarding.drain(timeout_s)  # while facts are still taken, so that it is known what is where
        ended = self._worker.close(timeout_s)
        self._compressing.stop()
        self._forwarding.close()
        self.ending = True
        for give_back in self.at_end:
            give_back()
        return ended

    def _tell_cost(self, cost: Cost) -> None:
        self._emit(cost)
        values = {
            "blocked_s": cost.blocked_s,
            "lost_s": cost.lost_s,
            "snapshot_s": cost.snapshot_s,
            "durable_s": cost.durable_s,
            "bytes": cost.written,
        }
        known = {name: value for name, value in values.items() if value is not None}
        self.tell("cost", checkpoint=cost.id, step=cost.step, values=known)

    def _let_go(self, snapshot: Snapshot) -> None:
        """Nothing came of it."""
        snapshot.release()
        self.ledger.ended(snapshot.id, self._clock.monotonic(), None)
        self._emit(CameToNothing(id=snapshot.id, step=snapshot.step))

    def _cancelled(self, snapshot: Snapshot) -> None:
        self._let_go(snapshot)
        self._emit(SaveSkipped(step=snapshot.step, reason="another save took its place while the disk was behind"))

    def _skip(self, snapshot: Snapshot, superseded: Superseded) -> None:
        self._let_go(snapshot)
        if not self._skip_told:
            self._skip_told = True
            reason = f"attempt {superseded.by} has the task; this process saves nothing more"
            self._emit(SaveSkipped(step=snapshot.step, reason=reason))

    def _require_newest(self) -> None:
        opened = self._opened
        require_newest(opened.store, opened.attempt.number, task=opened.task, clock=self._clock)

    def _step_back(self, superseded: Superseded) -> None:
        """Save and remove nothing from now on, and let go of the task. The journal is ours alone, and is written on."""
        self._superseded = superseded
        self._compressing.stop()
        self._forwarding.stop()
        self._append("superseded", None, None, {"by": superseded.by, "host": superseded.host})
        let_go(self._opened.attempt)

    def _save(self, snapshot: Snapshot, describe: Describe) -> None:
        if self._superseded is not None:
            self._skip(snapshot, self._superseded)
            return
        self._look_for_home()
        manifest: Manifest | None = None
        try:
            torn = snapshot.outcome()
            if torn is not None:
                self.take_again(snapshot, torn)
                return
            if self.soundness is not None:
                describe = self.soundness.look(snapshot, describe)
            manifest = self._landing.save(snapshot, describe)
            if manifest is None:
                return
        except Superseded as superseded:
            self._step_back(superseded)
            raise
        except Unsteady as changed:
            self._emit(SaveSkipped(step=snapshot.step, reason=changed.message))
            return
        finally:
            if manifest is None:
                self._let_go(snapshot)
        self._committed(snapshot, manifest)

    def _committed(self, snapshot: Snapshot, manifest: Manifest) -> None:
        now_s = self._clock.monotonic()
        ours = manifest.attempt == self._opened.attempt.number  # else the run comes from it already, or not at all
        if ours and manifest.seq >= self._parent_seq:  # one that was kept may be older than what has been saved since
            self.parent, self._parent_seq = manifest.id, manifest.seq
        exact = manifest.granularity is Granularity.FULL  # from less, no exact resume goes on
        if exact and manifest.seq >= self.saved_seq:
            self.saved_seq = manifest.seq
            if ours or manifest.id == self.parent:
                self.saved_step = manifest.step
        snapshot.release()
        cost = Cost(
            id=manifest.id,
            step=manifest.step,
            blocked_s=snapshot.stood_still_s,
            lost_s=None,
            snapshot_s=snapshot.snapshot_s,
            durable_s=now_s - snapshot.began_s,
            written=manifest.size - self.stills.linked,
        )
        id, step, size, reason = manifest.id, manifest.step, manifest.size, manifest.reason
        told = Committed(id=id, step=step, size=size, reason=reason, blocked_s=cost.blocked_s, durable_s=cost.durable_s)
        self._emit(told)
        if snapshot.save.cause == KEPT:  # the steps beside it are not compared: it may be written in a trouble
            self._tell_cost(cost)
        else:
            self.ledger.ended(manifest.id, now_s, cost)
        self._tell_refused()
        self.forward(manifest.id)  # first, so that nothing on its way is taken away
        self._tidy()
        self.settle_newest()

    def _tell_refused(self) -> None:
        refused = self._opened.store.refused_direct
        if refused is not None and not self._refused_told:
            self._refused_told = True
            text = "this file system takes no direct writes: files go through the page cache, at more processor time"
            self._emit(Note(text=f"{refused}: {text}"))

    def settle_newest(self) -> None:
        """Have the newest checkpoint compressed when the processor has nothing else to do."""
        if self._superseded is None:
            self._compressing.newest()

    def forward(self, id: str | None) -> None:
        """Have a checkpoint, or the newest, brought to the tiers that take it."""
        if self._superseded is None:
            self._forwarding.offer(id)

    def _note(self, kind: str, checkpoint: str, step: int, values: Mapping[str, Any]) -> None:
        """Queue a fact of ours, whose values are plain."""
        if not self._worker.submit_fact(partial(self._append, kind, checkpoint, step, values)):
            self._emit(Failed(what=f"a fact ({kind})", error=BEHIND, kept="the copies"))

    def _look_for_home(self) -> None:
        """Tell once that the task's folder was taken away under the run. Saving goes on in one that is made anew: it is
        all that is left then, and a folder that was moved can be brought together with it by hand."""
        try:
            gone = not self._opened.store.taken(key_of(self._opened.attempt.number))
        except StoreError:
            return  # the save itself will say what is wrong with this disk
        if gone and not self._vanished:
            error = f"{self._opened.home} was removed, moved or unmounted while the run was under way"
            self._emit(Failed(what="finding the task's folder", error=error, kept="the training, and new checkpoints"))
        self._vanished = gone

    def _tidy(self) -> None:
        if self._superseded is not None:
            return
        try:
            self.tidying.tidy(self._require_newest)
        except Superseded as superseded:
            self._step_back(superseded)
            self._worker.failure = superseded
            self._emit(Failed(what="holding the task", error=superseded.message, kept="all checkpoints"))

    def _describe(self, snapshot: Snapshot, files: Sequence[StoredFile]) -> Manifest:
        return Manifest(
            id=snapshot.id,
            seq=snapshot.seq,
            task=self._opened.task,
            attempt=self._opened.attempt.number,
            parent=self.parent,
            step=snapshot.step,
            epoch=snapshot.epoch,
            time=snapshot.time,
            reason=snapshot.save.reason,
            granularity=snapshot.save.granularity,
            health=self.health_of(snapshot.id, snapshot.step),
            files=tuple(files),
            decision={
                **snapshot.save.numbers,
                "cause": snapshot.save.cause,
                REACH: snapshot.save.reach.name.lower(),
                "blocked_s": snapshot.stood_still_s,
            },
            metrics=snapshot.metrics,
            memory={"rss": psutil.Process().memory_info().rss, **self.memory_seen()},
            debug_info=snapshot.debug_info,
            exactness=snapshot.exactness,
            versions=self._lasting.versions,
            code=self._lasting.code,
            user=self._lasting.user,
        )

    def _append(self, kind: str, checkpoint: str | None, step: int | None, values: Mapping[str, Any]) -> None:
        self._journal.append(kind, checkpoint, step, values)
        if self._journal.unlearnt and not self._relisting:  # once, after all that stands in the queue with it
            self._relisting = self._worker.submit_fact(self._relist)

    def _relist(self) -> None:
        self._relisting = False
        self.tidying.relist()
