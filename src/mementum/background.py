"""Background: what happens to a snapshot, and to facts, on the worker's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psutil

from mementum.assemble import number
from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, timestamp
from mementum.decide.retain import Retention, retain
from mementum.errors import MementumError, StoreError, Superseded
from mementum.events import Committed, Emit, Failed, SaveSkipped
from mementum.execute.attempts import key_of
from mementum.execute.claim import let_go, require_newest
from mementum.execute.snapshot import Snapshot
from mementum.execute.worker import SaveJob, Worker
from mementum.opening import Opened
from mementum.pruning import prune, sweep
from mementum.records import Fact, Health, Manifest, StoredFile, record
from mementum.saving import save_checkpoint

# After a takeover from an attempt that may live, its leftovers stay for so long: within it an attempt that lives comes
# to a commit, sees that it was superseded and stops. One that stands still for longer loses a save that nobody needs.
SWEEP_AFTER_S = 600.0
# What such an attempt still commits before it sees us continues its own numbers, and must sort before all of ours: the
# one manifest between its look and its put, those of a list that was stale, and numbers that failed puts used up.
SEQ_LEAP = 1000


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
        lasting: Lasting,
        seq: int,
        parent: str | None,
        saved_step: int | None,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.saved_step = saved_step  # the step of the newest durable checkpoint
        self._opened, self._retention, self._lasting = opened, retention, lasting
        self._seq, self._parent = seq if opened.attempt.sure else seq + SEQ_LEAP, parent
        self._clock, self._emit = clock, emit
        self._torn = False
        self._vanished = False
        self._superseded: Superseded | None = None
        self._skip_told = False
        self._sweep_at_s = None if opened.attempt.sure else clock.monotonic() + SWEEP_AFTER_S
        self._worker = Worker(emit=emit)

    @property
    def saves_in_flight(self) -> int:
        return self._worker.saves_in_flight

    def take_failure(self) -> Exception | None:
        """The newest failure that nobody has taken yet."""
        failure, self._worker.failure = self._worker.failure, None
        return failure

    def submit(self, snapshot: Snapshot) -> None:
        """Queue a snapshot; it takes the place of one that still waits. Once superseded, it is let go of."""
        if self._superseded is not None:
            self._skip(snapshot, self._superseded)
            return
        self._worker.submit(
            SaveJob(
                what=f"the save of step {snapshot.step}",
                work=partial(self._save, snapshot),
                cancel=partial(self._cancelled, snapshot),
            )
        )

    def cancel_waiting(self) -> bool:
        """Give up the snapshot that waits, so that its memory is free; False if none waits."""
        return self._worker.cancel_waiting()

    def tell(self, kind: str, *, step: int | None = None, values: Mapping[str, Any]) -> None:
        """Queue a fact for the journal."""
        plain = {name: number(value) for name, value in values.items()}
        if not self._worker.submit_fact(partial(self._append, kind, None, step, plain)):
            self._emit(Failed(what=f"a fact ({kind})", error="the queue is full: the disk is behind", kept="the saves"))

    def tidy(self) -> None:
        """Queue the removal that follows a save: where a kill cut the last one short, no further save repeats it."""
        self._worker.submit_fact(self._tidy)

    def drain(self, timeout_s: float) -> bool:
        return self._worker.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        return self._worker.close(timeout_s)

    def _cancelled(self, snapshot: Snapshot) -> None:
        snapshot.release()
        self._emit(SaveSkipped(step=snapshot.step, reason="a newer save took its place while the disk was behind"))

    def _skip(self, snapshot: Snapshot, superseded: Superseded) -> None:
        snapshot.release()
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
        self._append("superseded", None, None, {"by": superseded.by, "host": superseded.host})
        let_go(self._opened.attempt)

    def _save(self, snapshot: Snapshot) -> None:
        if self._superseded is not None:
            self._skip(snapshot, self._superseded)
            return
        began_s = self._clock.monotonic()
        opened = self._opened
        self._look_for_home()
        try:
            torn = snapshot.outcome()
            if torn is not None:
                self._emit(SaveSkipped(step=snapshot.step, reason=torn))
                return
            manifest = save_checkpoint(
                snapshot,
                home=opened.home,
                store=opened.store,
                catalog=opened.catalog,
                describe=self._describe,
                emit=self._emit,
                require_newest=self._require_newest,
            )
        except Superseded as superseded:
            self._step_back(superseded)
            raise
        finally:
            snapshot.release()
        self._parent, self.saved_step = manifest.id, manifest.step
        durable_s = self._clock.monotonic() - began_s
        self._emit(
            Committed(
                id=manifest.id,
                step=manifest.step,
                size=manifest.size,
                reason=manifest.reason,
                blocked_s=snapshot.stood_still_s,
                durable_s=durable_s,
            )
        )
        costs = {"blocked_s": snapshot.stood_still_s, "durable_s": durable_s, "bytes": manifest.size}
        self._append("cost", manifest.id, manifest.step, costs)
        self._tidy()

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
            self._require_newest()
            self._prune()
            self._sweep_when_due()
        except Superseded as superseded:
            self._step_back(superseded)
            self._worker.failure = superseded
            self._emit(Failed(what="holding the task", error=superseded.message, kept="all checkpoints"))
        except MementumError as error:  # what is kept is safe, and the next save tries again
            self._emit(Failed(what="removing old checkpoints", error=error.message, kept="all that retention keeps"))
            self._relist()

    def _relist(self) -> None:
        """Enter again what a removal has taken out of the catalog and could not take off the disk."""
        try:
            refresh(self._opened.catalog, self._opened.home, self._opened.store)
        except MementumError as error:
            self._emit(Failed(what="reading the checkpoints anew", error=error.message, kept="all checkpoints"))

    def _prune(self) -> None:
        opened = self._opened
        entries = opened.catalog.entries(opened.home)
        verdicts = retain(entries, self._retention)
        for verdict in verdicts:
            if not verdict.keep:
                self._append("removed", verdict.id, None, {"reason": verdict.reason})
        prune(verdicts, entries, home=opened.home, store=opened.store, catalog=opened.catalog, emit=self._emit)

    def _sweep_when_due(self) -> None:
        """What an attempt left that may have lived when we began; this thread saves, so that no save is in flight."""
        if self._sweep_at_s is not None and self._clock.monotonic() >= self._sweep_at_s:
            sweep(self._opened.store, emit=self._emit)
            self._sweep_at_s = None

    def _describe(self, snapshot: Snapshot, files: Sequence[StoredFile]) -> Manifest:
        self._seq += 1
        return Manifest(
            id=snapshot.id,
            seq=self._seq,
            task=self._opened.task,
            attempt=self._opened.attempt.number,
            parent=self._parent,
            step=snapshot.step,
            epoch=snapshot.epoch,
            time=snapshot.time,
            reason=snapshot.save.reason,
            granularity=snapshot.save.granularity,
            health=Health.CLEAN,
            files=tuple(files),
            decision={**snapshot.save.numbers, "blocked_s": snapshot.stood_still_s},
            metrics=snapshot.metrics,
            memory={"rss": psutil.Process().memory_info().rss},
            debug_info=snapshot.debug_info,
            exactness=snapshot.exactness,
            versions=self._lasting.versions,
            code=self._lasting.code,
            user=self._lasting.user,
        )

    def _append(self, kind: str, checkpoint: str | None, step: int | None, values: Mapping[str, Any]) -> None:
        """Write a fact. One that cannot be written is told and given up: it must not stand in the way of a save."""
        fact = Fact(kind=kind, time=timestamp(self._clock.now()), checkpoint=checkpoint, step=step, values=values)
        line = facts.render(fact)
        try:
            # After a failed append the file may end in half a line, which the new one must not continue.
            self._opened.store.append(self._opened.journal, b"\n" + line if self._torn else line)
            self._torn = False
        except StoreError as error:
            self._torn = True
            self._emit(Failed(what=f"a fact ({kind})", error=error.message, kept="the checkpoints"))
