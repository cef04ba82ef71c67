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
from mementum.decide.rollback import Course, Halt, Retreat, course_of, roll_back, trusted
from mementum.errors import MementumError, StoreError, Superseded, TrainingDiverged
from mementum.events import Emit, Failed, Note, PassedOver, PhaseBegan, PhaseEnded, RolledBack
from mementum.execute.claim import require_newest
from mementum.execute.commit import new_id
from mementum.live.component import Component
from mementum.live.feeds import Feed, tells_place
from mementum.live.fitting import Fit
from mementum.live.shortage import is_out_of_memory
from mementum.opening import Opened
from mementum.records import Diagnosis, Entry, record
from mementum.recover.load import Loaded
from mementum.restoring import Beginning, drop_gradients, first_lr, restore, rolled_back
from mementum.resuming import Found, read_entry
from mementum.timeline import entries_of, mark_left_behind, states_of

UNREADABLE = "all checkpoints, none of which can be read now"
IN_FLIGHT = "its saves have not ended, so that it could not go back"
BEGINS_AGAIN = "the data cannot tell its place: its epoch begins again, and no batches are left out"


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
        # The checkpoint from which this timeline goes on, and the newest number that was given before that.
        self._base = beginning.resumed.checkpoint if beginning.resumed is not None else None
        self._after_seq = background.given_seq

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

    def stopped(self, diagnosis: Diagnosis, step: int, why: str | None = None) -> TrainingDiverged:
        """The error that stops a run without going back. `why`: what forbids it, if it was wanted."""
        kept = next(iter(trusted(self._states(diagnosis, step), diagnosis)), None)
        return self._error(diagnosis, step, Halt(reason=why or diagnosis.why, kept=kept))

    def back(self, diagnosis: Diagnosis, step: int, feed: Feed | None) -> Beginning:
        """Put everything back to the best checkpoint from before the trouble, the plan being durable first. One that
        cannot be read or put back is passed over. TrainingDiverged if there is none, or if there were rollbacks enough,
        or no memory; everything live is then as it was."""
        wishes, states = self._wishes, self._states(diagnosis, step)
        left, failed = list(states), list[tuple[Entry, str, bool]]()  # which, why, and whether it can be read
        skip = wishes.skip and (feed is None or tells_place(feed))
        planned = False
        while True:
            chosen = roll_back(diagnosis, left, self.course, step=step, limit=wishes.limit, skip=skip)
            if isinstance(chosen, Halt):
                break
            found = self._read(chosen.entry)
            if isinstance(found, Halt):
                chosen = found
                break
            if not isinstance(found, str):
                plan = self._plan(chosen, found[1], diagnosis, step, states)
                self._write(plan, chosen.entry, diagnosis, step)
                planned = True
                beginning = self._put_back(chosen.entry, found[0], plan, feed, diagnosis, step)
                if isinstance(beginning, Beginning):
                    mark_left_behind(self._opened, plan, states, clock=self._clock, emit=self._emit)
                    self._went_back(plan, beginning, feed)
                    return beginning
                failed.append((chosen.entry, beginning, True))
            else:
                failed.append((chosen.entry, found, False))
            left.remove(chosen.entry)
        if planned:  # the next start must not try what has just failed
            self._write(Cancelled(attempt=self._opened.attempt.number, time=self._now()), None, diagnosis, step)
        if failed and chosen.kept is None:
            reason = (
                f"none of its clean checkpoints could be put back: step {failed[0][0].manifest.step}: {failed[0][1]}"
            )
            chosen = Halt(reason=reason, kept=next((entry for entry, _, readable in failed if readable), None))
        raise self._error(diagnosis, step, chosen)

    def check_rates(self) -> None:
        """After a step: say, once, if the program sets its learning rates itself, and so undoes the scaling."""
        unscaled, scaled, self._unscaled_lr = self._unscaled_lr, self._scaled_lr, None
        lr = first_lr(self._components) if unscaled is not None else None
        if unscaled is None or scaled is None or lr is None or abs(lr - scaled) <= abs(lr - unscaled):
            return
        told = f"the rollback made the learning rate {scaled:g}, and the program has set it to {lr:g}"
        self._emit(Note(text=f"{told}: multiply what it sets by run.lr_scale"))

    def _read(self, entry: Entry) -> tuple[Found, Course] | str | Halt:
        """The checkpoint, proved, with the course that led to it; in words, and told, why it cannot be had. Without
        memory there is no sense in trying another."""
        try:
            result = read_entry(entry, self._opened.store)
            if isinstance(result, Loaded):
                course = course_of(result.context.get("rollback"))
                return Found(loaded=result, folder=entry.folder, passed_over=()), course
            what = f"{result[0].key}: {result[0].what}"
        except (MementumError, MemoryError) as error:
            if is_out_of_memory(error):
                return Halt(reason=f"there is no memory to read step {entry.manifest.step}", kept=entry)
            what = str(getattr(error, "message", error))
        self._emit(PassedOver(id=entry.manifest.id, what=what))
        return what

    def _plan(self, chosen: Retreat, own: Course, diagnosis: Diagnosis, step: int, states: Sequence[Entry]) -> Plan:
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
            behind=tuple(one.manifest.id for one in states if one.manifest.step > back_to),
            why=chosen.reason,
            time=self._now(),
        )

    def _write(self, plan: Plan | Cancelled, target: Entry | None, diagnosis: Diagnosis, step: int) -> None:
        opened = self._opened
        try:
            require_newest(opened.store, opened.attempt.number, task=opened.task, clock=self._clock)
            plans.write(opened.store, new_id(self._clock.now()), plan)
        except (StoreError, Superseded) as error:  # what is not durable is not done: a kill would leave it half done
            halt = Halt(reason=f"its rollback could not be written down: {error.message}", kept=target)
            raise self._error(diagnosis, step, halt) from error
        try:
            refresh(opened.catalog, opened.home, opened.store)
        except MementumError as error:  # the catalog is a cache; the next start reads the file
            self._emit(Failed(what="reading a rollback into the catalog", error=error.message, kept="the rollback"))

    def _put_back(
        self, entry: Entry, found: Found, plan: Plan, feed: Feed | None, diagnosis: Diagnosis, step: int
    ) -> Beginning | str:
        """Where the run begins again; in words, and told, why it cannot. Without memory no other one would do better:
        then the plan stays, and the next start, which has all of it, does it."""
        # Names that a rename is about are those of earlier attempts; the rates are those that were stored. What the
        # checkpoint lacks would stay as the wreck has it.
        earlier = entry.manifest.attempt < self._opened.attempt.number
        fit = replace(self._fit, partial=False, lr_wins="stored", rename=self._fit.rename if earlier else {})
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
                subset=self._fit.partial,
            )
        except (MementumError, MemoryError) as error:
            if is_out_of_memory(error):
                halt = Halt(reason=f"there is no memory to put step {plan.step} back: the next start does", kept=entry)
                raise self._error(diagnosis, step, halt) from error
            what = str(getattr(error, "message", error))
            self._emit(PassedOver(id=plan.target, what=what))
            return what
        finally:
            self._emit(PhaseEnded(phase="resume", id=plan.target, duration_s=self._clock.monotonic() - began_s))

    def _went_back(self, plan: Plan, beginning: Beginning, feed: Feed | None) -> None:
        background = self._background
        drop_gradients(self._components)
        # What is in memory of the branch that was left is worth nothing: the next save may take its place.
        background.saved_step, background.saved_seq = plan.step, plan.after_seq
        background.parent = background.ancestor = plan.target
        self._base, self._after_seq = plan.target, plan.after_seq
        self.course = beginning.course
        self._unscaled_lr, self._scaled_lr = beginning.unscaled_lr, first_lr(self._components)
        told = rolled_back(plan, beginning.course)
        self.rolled_back += (told,)
        self._emit(told)
        if feed is not None and not tells_place(feed):
            self._emit(Note(text=BEGINS_AGAIN))

    def _states(self, diagnosis: Diagnosis, step: int) -> tuple[Entry, ...]:
        """The checkpoints of the timeline that this process is on, newest step first: what it has saved since it began,
        or has gone back, and where that began."""
        opened = self._opened
        try:
            entries = entries_of(opened, emit=self._emit)
            mine = (entry for entry in entries if entry.manifest.attempt == opened.attempt.number)
            own = [entry for entry in mine if entry.manifest.seq > self._after_seq]
            return states_of(opened.store, entries, self._base, own)
        except MementumError as error:
            halt = Halt(reason=f"its checkpoints cannot be read: {error.message}", kept=None)
            raise self._error(diagnosis, step, halt, kept=UNREADABLE) from error

    def _now(self) -> str:
        return timestamp(self._clock.now())

    def _error(self, diagnosis: Diagnosis, step: int, halt: Halt, *, kept: str | None = None) -> TrainingDiverged:
        found = None if halt.kept is None else halt.kept.manifest
        return TrainingDiverged(
            self._opened.task,
            halt.reason,
            step=step,
            onset=diagnosis.onset,
            checkpoint=None if found is None else found.id,
            kept_step=None if found is None else found.step,
            kept=kept,
        )
