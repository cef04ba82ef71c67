"""A run: one training loop that is saved while it runs, and brought back where it stopped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from mementum.assemble import NO_DATA, OWN_LOOP, held, is_text, number, require_count, step_number
from mementum.background import Background
from mementum.batches import Batches
from mementum.belated import Belated
from mementum.clock import Clock
from mementum.decide.policy import both
from mementum.deciding import Deciding
from mementum.errors import SaveFailed, UsageError
from mementum.events import Emit, Failed, Note, RolledBack, SaveSkipped
from mementum.live.feeds import Feed
from mementum.opening import Opened
from mementum.perceive.situation import Told
from mementum.records import Exactness, Health, Save
from mementum.restoring import Beginning
from mementum.rolling import BEGINS_AGAIN, IN_FLIGHT, Rolling
from mementum.taking import Moment, Taker

RECENT = 10  # steps whose metrics go into a manifest as `debug_info`
NOTICE = "notice"  # the cause of a save before the process is stopped
LEAVING = ("SystemExit", "KeyboardInterrupt")  # how a program leaves the loop, once it was told to stop
CLOSE_WAIT_S = 600.0  # for the last save to become durable; a disk that needs longer is reported, not waited for


class Run:
    """A training loop under watch. Made by `mementum.open_run`; use it in a `with` block.

    `step` is the number of completed steps, and in the loop the number of the step that is being done, from 1.
    `values` is a dict for plain values (counters, best loss): it is saved and comes back. `resumed` says from what
    the run came back, None at a first start. `exactness` says what would not come back bit for bit.
    """

    def __init__(
        self,
        *,
        opened: Opened,
        feed: Feed | None,
        exactness: Exactness,
        taker: Taker,
        deciding: Deciding,
        background: Background,
        rolling: Rolling,
        beginning: Beginning,
        raise_failures: bool,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self.step = beginning.step
        self._values: dict[str, Any] = dict(beginning.values)
        self.resumed = beginning.resumed
        self.exactness = exactness
        self._opened, self._taker, self._deciding = opened, taker, deciding
        self._rolling, self._batches = rolling, Batches(feed, beginning)
        self._background, self._clock, self._emit = background, clock, emit
        self._raise_failures = raise_failures
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._pending: Save | None = None
        self._in_body = False
        self._stepped = False  # whether `steps` is used, which counts the batches
        self._left = False  # whether the loop was left in a step's body
        self._unusable: set[str] = set()  # names of metrics that were told to be no numbers
        self._recorded_step: int | None = None
        self._events: list[str] = []  # that the program told in this step
        self._belated = Belated(background.tell, resumed=beginning.resumed)
        self._total: int | None = None
        self._closed = False
        self._pid = os.getpid()  # a fork copies the run, and leaves its worker and its lock behind
        if feed is not None:
            deciding.shield(feed.source)

    @property
    def values(self) -> dict[str, Any]:
        """Plain values of the program's own, by name: saved, and there again after a resume."""
        return self._values

    @property
    def rolled_back(self) -> tuple[RolledBack, ...]:
        """The rollbacks of this attempt, oldest first."""
        return self._rolling.rolled_back

    @property
    def lr_scale(self) -> float:
        """What rollbacks have multiplied the learning rates by, 1.0 if nothing: for a program that sets its own."""
        return self._rolling.course.lr_scale

    # The loop.

    @property
    def epoch(self) -> int:
        """The number of the epoch that the loop is in, from 0."""
        return self._batches.epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether the present batch is the last of its epoch, as far as the data can tell."""
        return self._batches.ends_epoch

    def steps(
        self, data: Any, total: int | None = None, *, epochs: int | None = None, accumulate: int = 1
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, batch) from where the run stands until `total` steps or `epochs` epochs are done in all.

        With `accumulate` > 1 a step takes a list of that many batches (fewer at an epoch's end). What the body of
        the loop does, all of it, belongs to its step: a save decided by `record` is taken when the body has ended, and
        so is a rollback, after which the steps come again from the one after the checkpoint's.
        """
        if (total is None) == (epochs is None):
            raise UsageError("give run.steps either total (steps in all) or epochs")
        require_count("total", total, least=0)
        require_count("epochs", epochs, least=0)
        require_count("accumulate", accumulate)
        self._stepped, self._total = True, total
        kept = tuple(reason for reason in self.exactness.reasons if reason != OWN_LOOP)
        self.exactness = replace(self.exactness, reasons=kept)
        self._attach(data)
        return self._steps(total, epochs, accumulate)

    def _steps(self, total: int | None, epochs: int | None, accumulate: int) -> Iterator[tuple[int, Any]]:
        while total is None or self.step < total:
            group = self._batches.take(self.step + 1, accumulate=accumulate, epochs=epochs)
            if group is None:
                return
            self.step += 1
            self._in_body, self._left = True, False
            try:
                yield self.step, group[0] if accumulate == 1 else group
            except GeneratorExit:  # a `break`, or an exception in the body
                self._in_body, self._left = False, True
                raise
            self._in_body = False
            self._end_step()
            if self._closed:  # as a notice wanted it
                return

    def _attach(self, data: Any) -> None:
        """Step over this data, and tell what of its place would not come back."""
        feed = self._batches.attach(data)
        if feed is None:
            return
        self._deciding.shield(data)
        self.exactness = Exactness(
            reasons=(*(reason for reason in self.exactness.reasons if reason != NO_DATA), *feed.exactness.reasons),
            conditions=(*self.exactness.conditions, *feed.exactness.conditions),
        )
        if feed.exactness.reasons:
            self._emit(Note(text=f"a resume will be {self.exactness}"))
        if self._batches.cannot_skip:
            self._emit(Note(text=BEGINS_AGAIN))

    # What the loop tells.

    def record(self, *, step: int | None = None, **metrics: Any) -> None:
        """Tell what this step gave (`loss=loss`), once per optimizer step. Decides, and saves at the body's end.

        Values are numbers, words, or tensors of one element, which are read when a save needs them. Outside of
        `steps` every call counts as one step, or says its number by `step`, and saves at once.
        """
        self._require_open()
        self._taker.ledger.stepped(self._clock.monotonic())
        failure = self._background.take_failure() if self._raise_failures else None
        if failure is not None:
            raise SaveFailed("a save in the background failed", kept="older checkpoints") from failure
        if not self._in_body:
            self.step = self.step + 1 if step is None else step_number(step)
            self._batches.drew()  # a loop of the user's own draws from the generators as they are
            if self._batches.feed is not None and not self._stepped and OWN_LOOP not in self.exactness.reasons:
                self.exactness = replace(self.exactness, reasons=(*self.exactness.reasons, OWN_LOOP))
                self._emit(Note(text=f"a resume will be {self.exactness}"))
        first, self._recorded_step = self._recorded_step is None, self.step
        row = {name: held(value) for name, value in metrics.items()}
        self._recent.append({"step": self.step, **row})
        decided = self._deciding.after_step(self._told(row))
        self._pending = both(both(decided, self._pending), self._background.take_torn())
        if first and self._pending is None and not self._deciding.observes:
            self._warm_up()
        if not self._in_body:
            self._end_step()

    def event(self, name: str) -> None:
        """Tell that something has happened in this step (`run.event("new best")`), for policies that save then."""
        self._require_open()
        if not (isinstance(name, str) and name and is_text(name)):
            raise UsageError(f"an event has a name, got {name!r}")
        self._events.append(name)

    def save(self, reason: str = "asked by the program") -> None:
        """Save at the end of this step's body, or at once outside of `steps`."""
        self._require_open()
        if not (isinstance(reason, str) and is_text(reason)):
            raise UsageError(f"a reason is a text, got {reason!r}")
        self._pending = Save(reason=reason, cause="asked")
        if not self._in_body:
            self._save_if_pending()

    def metrics(self, step: int, **values: Any) -> None:
        """Tell metrics of an earlier step that came late (an evaluation). They go to the journal, not to a manifest."""
        self._require_open()
        plain = self._plain(values)
        self._belated.told(step_number(step), plain, done=self.step - self._in_body)
        self._deciding.evaluated(plain)

    def wait(self, timeout_s: float = CLOSE_WAIT_S) -> bool:
        """Wait until every save so far is durable or has failed; False if that takes longer."""
        self._require_own()
        return self._taker.wait(timeout_s) and self._background.drain(timeout_s)

    def _require_open(self) -> None:
        self._require_own()
        if self._closed:
            raise UsageError(f"the run of task {self._opened.task!r} is closed", kept="what was saved before")

    def _require_own(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"the run of task {self._opened.task!r} belongs to process {self._pid}, and this is a fork of it",
                kept="the run, which goes on in its own process",
                next_command="record, save and wait in the process that opened the run",
            )

    def _told(self, metrics: Mapping[str, Any]) -> Told:
        events, self._events = tuple(self._events), []
        in_flight = self._background.saves_in_flight
        return replace(self._now(), saves_in_flight=in_flight, metrics=metrics, total_steps=self._total, events=events)

    def _now(self) -> Told:
        return Told(step=self.step, epoch=self.epoch, ends_epoch=self.ends_epoch)

    # Saving.

    def _warm_up(self) -> None:
        try:
            self._taker.warm()
        except Exception as error:  # the border: the first save will take longer, or say what is wrong
            self._fault("making ready for the first save", error)

    def _end_step(self) -> None:
        """A step is over. Save what is decided; if the process is to be stopped, a save has come before that."""
        if self._deciding.is_stopping and (self._pending is None or self._pending.cause != NOTICE):
            self._pending = both(self._deciding.urgent(self._now()), self._pending)
        if self._is_lost and not self._deciding.is_stopping:  # who is told to stop saves; the next start begins clean
            self._go_back()
            return
        self._rolling.check_rates()
        self._save_if_pending()
        self._belated.stepped(self.step)
        if self._deciding.has_put_off:  # also by a signal that came while the state was copied
            self._save_before_stop()
            self.close(why="told to stop")

    @property
    def _is_lost(self) -> bool:
        """Whether this step has shown that the state is past hope, and something is to be done about it."""
        if not self._rolling.acts or self._deciding.observes or self._recorded_step != self.step:
            return False
        return self._deciding.diagnosis.health is Health.DIVERGED

    def _go_back(self) -> None:
        """To before the trouble, with everything; TrainingDiverged where that is not wanted, or cannot be."""
        diagnosis = self._deciding.diagnosis
        self._belated.stepped()
        ended = self.wait()
        self._background.take_torn()  # of the wreck, as is
        self._pending = self._recorded_step = None  # what else was to be saved, now or at the end
        if not self._rolling.goes_back(stepped=self._stepped):
            raise self._rolling.stopped(diagnosis, self.step)
        if not ended:  # a save under way would be taken for one of the new branch
            raise self._rolling.stopped(diagnosis, self.step, IN_FLIGHT)
        beginning = self._rolling.back(diagnosis, self.step, self._batches.feed)
        self._batches.rewound(beginning)
        self.step = self._recorded_step = beginning.step
        self._belated.rewound(beginning.resumed)
        self._values.clear()
        self._values.update(beginning.values)
        self._recent.clear()
        self._events.clear()
        self._deciding.rewound(beginning.perceived, beginning.step)

    def _save_before_stop(self) -> None:
        """The state of now once more, where nothing has come of the save of it, or the newest is of an earlier step."""
        self._background.drain(CLOSE_WAIT_S)  # which gives memory back too
        if not self._deciding.observes and self._background.saved_step != self.step:
            self._pending = Save(reason="told to stop", cause=NOTICE)
            self._save_if_pending()

    def _save_if_pending(self) -> None:
        save, self._pending = self._pending, None
        if save is None:
            return
        if self._deciding.observes:
            self._deciding.would(save, self._now())
            return
        save = self._taker.possible(save)
        try:
            id = self._taker.take(save, self._moment, self.step)
            if id is not None:
                self._deciding.taken(id, save, self.step)
                self._belated.taken(id, save)
            else:
                self._deciding.not_taken(save)
        except Exception as error:  # the same border: a state that cannot be captured must not end the training
            self._fault(f"the capture of step {self.step}", error)
            if self._raise_failures:
                raise SaveFailed(f"step {self.step} could not be captured", kept="older checkpoints") from error

    def _moment(self) -> Moment:
        return Moment(
            step=self.step,
            epoch=self.epoch,
            values=self.values,
            rng=self._batches.generators(),
            iterating=self._batches.iterating,
            feed=self._batches.place(),
            recent=tuple(self._plain(row) for row in self._recent),
            exactness=self.exactness.reasons,
            perceived=self._deciding.remembered(),
            course=replace(self._rolling.course, thrown=self._batches.thrown),
        )

    def _plain(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of metrics without those that are neither numbers nor words: they must not stand in a save's way."""
        plain: dict[str, Any] = {}
        for name, value in row.items():
            try:
                plain[name] = number(value)
            except (RuntimeError, TypeError, ValueError) as error:
                if name not in self._unusable:
                    self._unusable.add(name)
                    self._emit(Note(text=f"the metric {name!r} is left out of checkpoints: {error}"))
        return plain

    def _fault(self, what: str, error: Exception) -> None:
        kept = "the training and older checkpoints"
        self._emit(Failed(what=what, error=f"{type(error).__name__}: {error}", kept=kept))

    # The end.

    def close(self, *, why: str = "finished") -> None:
        """Save what is not saved yet, wait until it is durable, and let go of the task. Twice is once, and in a fork
        of the process nothing is done."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            if why == "finished" or (why in LEAVING and self._deciding.is_stopping):
                self._save_last()
                if not self._deciding.observes:
                    self._background.tidy()
            self._belated.stepped()
            self._background.drain(CLOSE_WAIT_S)
            self._deciding.close()
            self._taker.ledger.close()
            self._background.tell("ended", step=self.step, values={"why": why})
            if not self._background.close(CLOSE_WAIT_S):
                late = f"still writing after {CLOSE_WAIT_S:.0f} s"
                self._emit(Failed(what="closing", error=late, kept="older checkpoints"))
        finally:
            self._deciding.close()
            self._taker.close()
            self._opened.close()
            self._deciding.let_go()  # what a signal would have done
        failure = self._background.take_failure() if self._raise_failures else None
        if failure is not None:
            raise SaveFailed("a save in the background failed", kept="older checkpoints") from failure

    def _save_last(self) -> None:
        self._background.drain(CLOSE_WAIT_S)
        begun = (self._in_body or self._left) and self._recorded_step != self.step  # a `break` before the step was done
        self._in_body = False
        if self._pending is None and self._recorded_step is not None and self._background.saved_step != self.step:
            if begun:
                self._emit(SaveSkipped(step=self.step, reason="the loop was left in a step that was not recorded"))
                return
            self._pending = Save(reason="the run ended", cause="end")
        self._save_if_pending()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(why="finished" if kind is None else kind.__name__)
