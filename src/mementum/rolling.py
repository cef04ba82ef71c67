"""Rolling: a run that has diverged goes back to before its trouble, in the running process, or is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mementum.background import Background, Lasting
from mementum.catalog import plans
from mementum.catalog.plans import Cancelled, Plan
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, timestamp
from mementum.decide.lineage import lineage
from mementum.decide.rollback import Course, Halt, Retreat, course_of, roll_back, trusted
from mementum.errors import MementumError, StoreError, TrainingDiverged
from mementum.events import Emit, Failed, Note, PassedOver, PhaseBegan, PhaseEnded, RolledBack
from mementum.execute.commit import new_id
from mementum.live.component import Component
from mementum.live.feeds import Feed
from mementum.live.fitting import Fit
from mementum.opening import Opened
from mementum.records import Diagnosis, Entry, Fact, Health, record
from mementum.recover.load import Loaded
from mementum.restoring import Beginning, first_lr, restore, rolled_back
from mementum.resuming import Found, read_entry

BEHIND = "a rollback went back behind it"  # why a checkpoint of the branch that was left is not trusted


@record
class Wishes:
    """What is wanted of a run that has diverged. `limit`: rollbacks for one trouble; then it is stopped. `lr_scale`:
    each of them multiplies the learning rates by it. `skip`: whether the batches of the trouble are left out."""

    on_divergence: Literal["keep", "rollback", "stop", "ignore"] = "keep"
    limit: int = 3
    lr_scale: float = 1.0
    skip: bool = True


class Rolling:
    """Goes back, on the training's thread, with no save in flight."""

    def __init__(
        self,
        wishes: Wishes,
        *,
        opened: Opened,
        components: Sequence[Component],
        background: Background,
        lasting: Lasting,
        fit: Fit,
        beginning: Beginning,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.course: Course = beginning.course
        self.rolled_back: tuple[RolledBack, ...] = ()
        self._wishes, self._opened, self._components = wishes, opened, components
        self._background, self._lasting, self._fit = background, lasting, fit
        self._clock, self._emit = clock, emit
        self._unscaled_lr = beginning.unscaled_lr
        self._scaled_lr = first_lr(components) if self._unscaled_lr is not None else None
        self._own_loop_told = False

    @property
    def acts(self) -> bool:
        """Whether something is to be done about a state that is past hope."""
        return self._wishes.on_divergence in ("rollback", "stop")

    def goes_back(self, *, stepped: bool) -> bool:
        """Whether the run goes back, or is stopped. The data of a loop of the program's own goes on by itself, so that
        such a run cannot go back while it runs."""
        wanted = self._wishes.on_divergence == "rollback"
        if wanted and not stepped and not self._own_loop_told:
            self._own_loop_told = True
            text = "the loop is the program's own, so it cannot go back while it runs, and is stopped: use run.steps"
            self._emit(Note(text=text))
        return wanted and stepped

    def stopped(self, diagnosis: Diagnosis, step: int) -> TrainingDiverged:
        """The error that stops a run without going back."""
        kept = next(iter(trusted(self._lineage(), diagnosis)), None)
        return self._error(diagnosis, step, Halt(reason=diagnosis.why, kept=kept))

    def back(self, diagnosis: Diagnosis, step: int, feed: Feed | None) -> Beginning:
        """Put everything back to the best checkpoint from before the trouble, the plan being durable first. One that
        cannot be read or put back is passed over. TrainingDiverged if there is none, or if there were rollbacks enough;
        everything live is then as it was."""
        branch, wishes = list(self._lineage()), self._wishes
        planned = False
        while True:
            chosen = roll_back(diagnosis, branch, self.course, step=step, limit=wishes.limit, skip=wishes.skip)
            if isinstance(chosen, Halt):
                break
            found = self._read(chosen.entry)
            if found is not None:
                plan = self._plan(chosen, found[1], diagnosis, step)
                self._write(plan, self._left_behind(plan), diagnosis, step)
                planned = True
                beginning = self._put_back(chosen.entry, found[0], plan, feed)
                if beginning is not None:
                    self._went_back(plan, beginning)
                    return beginning
            branch.remove(chosen.entry)
        if planned:  # the next start must not try what has just failed
            self._write(Cancelled(attempt=self._opened.attempt.number, time=self._now()), (), diagnosis, step)
        raise self._error(diagnosis, step, chosen)

    def check_rates(self) -> None:
        """After a step: say, once, if the program sets its learning rates itself, and so undoes the scaling."""
        unscaled, scaled, self._unscaled_lr = self._unscaled_lr, self._scaled_lr, None
        lr = first_lr(self._components) if unscaled is not None else None
        if unscaled is None or scaled is None or lr is None or abs(lr - scaled) <= abs(lr - unscaled):
            return
        told = f"the rollback made the learning rate {scaled:g}, and the program has set it to {lr:g}"
        self._emit(Note(text=f"{told}: multiply what it sets by run.lr_scale"))

    def _read(self, entry: Entry) -> tuple[Found, Course] | None:
        """The checkpoint, proved, with the course that led to it; None, and told, where it cannot be had."""
        try:
            result = read_entry(entry, self._opened.store)
            if isinstance(result, Loaded):
                course = course_of(result.context.get("rollback"))
                return Found(loaded=result, folder=entry.folder, passed_over=()), course
            what = f"{result[0].key}: {result[0].what}"
        except MementumError as error:
            what = error.message
        self._emit(PassedOver(id=entry.manifest.id, what=what))
        return None

    def _plan(self, chosen: Retreat, own: Course, diagnosis: Diagnosis, step: int) -> Plan:
        course, back_to = chosen.course, chosen.entry.manifest.step
        return Plan(
            target=chosen.entry.manifest.id,
            step=back_to,
            from_step=step,
            onset=diagnosis.onset,
            seen=course.seen,
            number=course.number,
            skips=tuple(detour for detour in course.detours if detour.at_step > back_to),
            lr_scale=course.lr_scale * self._wishes.lr_scale / own.lr_scale,
            after_seq=self._background.given_seq,
            attempt=self._opened.attempt.number,
            why=chosen.reason,
            time=self._now(),
        )

    def _left_behind(self, plan: Plan) -> tuple[Fact, ...]:
        """What is to be known of the checkpoints that the run goes back behind."""
        values = {"health": str(Health.SUSPECT), "why": BEHIND, "onset": plan.onset}
        return tuple(
            Fact(
                kind="health",
                time=plan.time,
                checkpoint=entry.manifest.id,
                step=entry.manifest.step,
                values={name: value for name, value in values.items() if value is not None},
            )
            for entry in self._lineage()
            if entry.manifest.step > plan.step and entry.health is Health.CLEAN
        )

    def _write(self, plan: Plan | Cancelled, others: Sequence[Fact], diagnosis: Diagnosis, step: int) -> None:
        opened = self._opened
        try:
            plans.write(opened.store, new_id(self._clock.now()), plan, others)
        except StoreError as error:  # what is not durable is not done: a kill in between would leave it half done
            halt = Halt(reason=f"its rollback could not be written down: {error.message}", kept=None)
            raise self._error(diagnosis, step, halt) from error
        try:
            refresh(opened.catalog, opened.home, opened.store)
        except MementumError as error:  # the catalog is a cache; the next start reads the file
            self._emit(Failed(what="reading a rollback into the catalog", error=error.message, kept="the rollback"))

    def _put_back(self, entry: Entry, found: Found, plan: Plan, feed: Feed | None) -> Beginning | None:
        # Names that a rename is about are those of earlier attempts; the rates are those that were stored.
        earlier = entry.manifest.attempt < self._opened.attempt.number
        fit = replace(self._fit, lr_wins="stored", rename=self._fit.rename if earlier else {})
        began_s = self._clock.monotonic()
        self._emit(PhaseBegan(phase="resume", id=plan.target))
        try:
            return restore(
                found,
                self._components,
                feed,
                self._lasting,
                fit,
                began_s=began_s,
                clock=self._clock,
                tier="ssd",
                plan=plan,
            )
        except MementumError as error:
            self._emit(PassedOver(id=plan.target, what=error.message))
            return None
        finally:
            self._emit(PhaseEnded(phase="resume", id=plan.target, duration_s=self._clock.monotonic() - began_s))

    def _went_back(self, plan: Plan, beginning: Beginning) -> None:
        background = self._background
        # What is in memory of the branch that was left is worth nothing: the next save may take its place.
        background.saved_step, background.saved_seq = plan.step, plan.after_seq
        background.parent = background.ancestor = plan.target
        self.course = beginning.course
        self._unscaled_lr, self._scaled_lr = beginning.unscaled_lr, first_lr(self._components)
        told = rolled_back(plan, beginning.course)
        self.rolled_back += (told,)
        self._emit(told)

    def _lineage(self) -> tuple[Entry, ...]:
        opened, newest = self._opened, self._background.parent
        return () if newest is None else lineage(opened.catalog.entries(opened.home), newest)

    def _now(self) -> str:
        return timestamp(self._clock.now())

    def _error(self, diagnosis: Diagnosis, step: int, halt: Halt) -> TrainingDiverged:
        kept = None if halt.kept is None else halt.kept.manifest
        return TrainingDiverged(
            self._opened.task,
            halt.reason,
            step=step,
            onset=diagnosis.onset,
            checkpoint=None if kept is None else kept.id,
            kept_step=None if kept is None else kept.step,
        )
