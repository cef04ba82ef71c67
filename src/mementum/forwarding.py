"""Forwarding: checkpoints go on to the tiers after they are committed, and leave them as each tier's retention says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from mementum.clock import Clock
from mementum.config.tiers import Watermarks
from mementum.displacing import Displacing, Tell
from mementum.errors import MementumError, Superseded
from mementum.events import Emit, Failed, Placed, Swept, Unplaced
from mementum.execute.behind import STOPPED
from mementum.execute.compress import Pause
from mementum.execute.halves import clear_halves
from mementum.execute.placer import PlaceJob, Placer
from mementum.format.levels import level_of
from mementum.lodging import FROZEN
from mementum.mirroring import mirror
from mementum.opening import Opened
from mementum.perceive.sending import Sending
from mementum.places import Site, lose, trouble
from mementum.placing import Copied, Uncopied, place
from mementum.pruning import sweep
from mementum.records import Entry, Manifest, Place, Reach
from mementum.vanishing import find_vanished, tell_vanished
from mementum.watermarks import URGENT, Level, marks_of

LOOK_S = 0.2  # between two looks whether a tier has gone silent, at the end of a run
MIRROR_WAIT_S = 10.0  # at the end, for the last facts: a few small objects
STOP_WAIT_S = 5.0  # for a block on its way; a request that takes longer dies with the process, and is no harm
REACH = "reach"  # in a manifest's decision: the loss that it was saved for


class Forwarding:
    """Brings checkpoints of a task to its tiers. `offer`, `waiting` and `close` may be called on any thread."""

    def __init__(
        self, opened: Opened, *, best_of: str, marks: Watermarks | None, tell: Tell, clock: Clock, emit: Emit
    ) -> None:
        """`best_of`: the metric of each tier's best. `marks`: None where a tier may become full. `tell` queues a
        fact."""
        self._opened, self._tell = opened, tell
        self._clock, self._emit = clock, emit
        self._sending: Sending | None = None
        self._at_s: Callable[[], float] = clock.monotonic
        self._lines: list[Line] = []
        for site in opened.places.sites:
            displacing = Displacing(opened, site, best_of=best_of, tell=tell, clock=clock, emit=emit)
            self._lines.append(Line(site, Placer(emit=emit), displacing, self._level(site, marks)))

    def hold_to(self, sending: Sending, at_s: Callable[[], float]) -> None:
        """Let what goes beyond the machine be counted, and wait for what budgets leave of a day. `at_s`: the time by
        which they count."""
        self._sending, self._at_s = sending, at_s

    def offer(self, id: str | None) -> None:
        """Offer a checkpoint that was just committed to each tier that takes it; None: the newest, which the last run
        perhaps could not bring there."""
        if not any(line.site.lost is None for line in self._lines):
            return
        try:
            entries = [entry for entry in self._opened.catalog.entries(self._opened.home) if entry.damaged is None]
        except MementumError as error:
            self._emit(trouble("looking for a checkpoint to place", error))
            return
        for line in self._lines:
            meant = [entry for entry in entries if line.is_meant(entry)]
            for entry in meant[-1:] if id is None else [entry for entry in meant if entry.manifest.id == id]:
                if line.site.lost is None and line.takes(entry):
                    self._queue(line, entry)

    def _queue(self, line: Line, entry: Entry) -> None:
        manifest, name = entry.manifest, line.site.name
        job = PlaceJob(
            what=f"placing {manifest.id} of step {manifest.step} on {name}",
            id=manifest.id,
            step=manifest.step,
            work=lambda pause: self._work(line, entry, pause),
        )
        replaced = line.placer.offer(job)
        if replaced is not None and replaced is not job:
            self._unplaced(line, replaced, f"step {manifest.step} took its place while {name} was behind")

    def waiting(self) -> Mapping[str, str]:
        """Reasons by id, of what is on its way: it must not be removed before it is there."""
        return {job.id: f"it is on its way to {line.site.name}" for line in self._lines for job in line.placer.pending}

    def drain(self, timeout_s: float) -> bool:
        """Wait for what is on its way. A tier that does not answer is not waited for."""
        until_s = self._clock.monotonic() + timeout_s
        for line in self._lines:
            while line.site.lost is None and self._clock.monotonic() < until_s:
                if line.placer.drain(min(LOOK_S, timeout_s)) or line.site.silent:
                    break
        return not any(line.placer.pending for line in self._lines)

    def close(self) -> None:
        """The last facts go to the tiers that answer; then all ends at the next block. What is not there is told; the
        next start goes on with it."""
        for line in self._lines:
            if line.site.joined and line.site.lost is None and not line.site.silent and not line.placer.pending:
                work = partial(self._mirror_last, line)
                line.placer.offer(PlaceJob(what=f"the last facts to {line.site.name}", id="", step=0, work=work))
        for line in self._lines:
            if not line.site.silent:
                line.placer.drain(MIRROR_WAIT_S)
        for line in self._lines:
            for job in line.placer.cancel():
                if job.id:
                    self._unplaced(line, job, "the run ends; the next start goes on with it")
        self.stop()

    def _unplaced(self, line: Line, job: PlaceJob, reason: str) -> None:
        site = line.site
        self._emit(Unplaced(id=job.id, step=job.step, tier=site.name, reach=site.reach, reason=reason))

    def stop(self) -> None:
        """Begin nothing more, and end what is in work at the next block. Twice is once."""
        for line in self._lines:
            line.site.clock.hurried = True
            line.placer.cancel()
        for line in self._lines:
            line.placer.stop(STOP_WAIT_S)

    def _work(self, line: Line, entry: Entry, pause: Pause) -> None:
        """On the placer's thread."""
        site, manifest = line.site, entry.manifest
        if site.lost is not None:
            return
        site.answered()  # as far as this one knows
        began_s = self._clock.monotonic()
        try:
            self._join(line)
            self._clear(line, manifest.id)
            mirror(self._opened.store, site.store)
            if not self._has_room(line, entry) or not self._may_send(line, entry):
                return
            done = place(
                entry,
                source=self._opened.store,
                target=site.store,
                form=site.form,
                owners=site.owners,
                others=site.entries(self._opened.store),
                require_newest=line.displacing.require_newest,
                pause=pause,
                tell=partial(self._sent, line, manifest.id),
            )
            line.told = False
            if isinstance(done, Uncopied):
                self._not_placed(line, entry, done)
                return
            self._came(line, manifest, done, self._clock.monotonic() - began_s)
            line.displacing.tidy()
            if line.level is not None:
                line.level.after(line.displacing.free)
        except Superseded as superseded:
            lose(site, superseded, self._emit)
            self._not_placed(line, entry, Uncopied(reason=superseded.message))
        except MementumError as error:
            line.placer.failures += 1
            site.failed()
            if not line.told and not line.placer.stopping:  # once, until it works again
                line.told = True
                self._emit(trouble(f"placing {manifest.id} of step {manifest.step} on {site.name}", error))
            self._not_placed(line, entry, Uncopied(reason=STOPPED if line.placer.stopping else error.message))
        finally:
            if self._sending is not None:
                self._sending.end(site.name, manifest.id)

    def _join(self, line: Line) -> None:
        line.join(self._opened)
        tell_vanished(line.site, line.find_vanished(self._opened), self._tell, self._emit)

    def _came(self, line: Line, manifest: Manifest, done: Copied, duration_s: float) -> None:
        site = line.site
        line.newest_step = manifest.step
        line.failed.discard(manifest.id)
        site.catalog.add(site.home, done.manifest, done.folder)
        values = {"tier": site.name, "url": site.url, "generation": done.manifest.generation}
        values |= {"size": done.manifest.size, "levels": list(done.manifest.levels), "sent": done.sent}
        self._tell("placed", manifest.id, manifest.step, values)
        self._emit(
            Placed(
                id=manifest.id,
                step=manifest.step,
                tier=site.name,
                reach=site.reach,
                size=done.manifest.size,
                sent=done.sent,
                duration_s=duration_s,
            )
        )

    def _not_placed(self, line: Line, entry: Entry, why: Uncopied) -> None:
        id, step, site = entry.manifest.id, entry.manifest.step, line.site
        line.failed.add(id)
        if why.reason == STOPPED:  # told at the end, with what waits
            return
        if why.damage is not None:
            self._tell("damaged", id, step, {"what": f"{why.damage.key}: {why.damage.what}"})
            kept = "what lies in its folder, for a repair; older checkpoints"
            self._emit(Failed(what=f"placing {id} of step {step} on {site.name}", error=why.reason, kept=kept))
        self._emit(Unplaced(id=id, step=step, tier=site.name, reach=site.reach, reason=why.reason))

    def _clear(self, line: Line, id: str) -> None:
        """Take away there what nobody will go on with: at first what processes that were killed have left, later half
        copies of ours that another checkpoint has taken the place of."""
        site, waiting = line.site, {id, *(job.id for job in line.placer.pending)}
        if not line.swept:
            line.displacing.require_newest()
            clear_halves(site.store, lambda half: half in waiting)
            sweep(site.store, emit=lambda event: self._emit(event) if isinstance(event, Swept) else None)
            line.swept = True
        elif line.failed - waiting:
            given_up = frozenset(line.failed - waiting)
            clear_halves(site.store, lambda half: half not in given_up)
            line.failed -= given_up

    def _mirror_last(self, line: Line, pause: Pause) -> None:
        try:
            mirror(self._opened.store, line.site.store)
        except MementumError as error:
            line.site.failed()
            self._emit(trouble(f"bringing the last facts to {line.site.name}", error))

    def _level(self, site: Site, marks: Watermarks | None) -> Level | None:
        if marks is None:
            return None
        return Level(
            site.name,
            lambda: site.usage(self._opened.store),
            marks_of(marks, bounded=site.wishes.budget is None),
            next_command=f"give the tier {site.name} room, or less to keep (`keep_last`, `levels`, `codec`)",
            clock=self._clock,
            emit=self._emit,
        )

    def _has_room(self, line: Line, entry: Entry) -> bool:
        """Whether a copy may go there; that it may not was told. What was saved in an emergency goes anyway."""
        if line.level is None:
            return True
        coming = _coming(line.site, entry)
        why = line.level.before(coming, line.displacing.free)
        return why is None or entry.manifest.decision.get("cause") in URGENT

    def _may_send(self, line: Line, entry: Entry) -> bool:
        """Whether what budgets leave of this day is enough for it; that it is not was told, and the next one that fits
        goes. What was saved in an emergency goes anyway."""
        site, sending = line.site, self._sending
        if sending is None or site.reach is not Reach.MACHINE or entry.manifest.decision.get("cause") in URGENT:
            return True
        coming = _coming(site, entry)
        why = sending.begin(self._at_s(), site.name, entry.manifest.id, coming)
        if why is not None:
            self._not_placed(line, entry, Uncopied(reason=why))
        return why is None

    def _sent(self, line: Line, id: str, size: int) -> None:
        if self._sending is not None and line.site.reach is Reach.MACHINE:
            self._sending.sent(self._at_s(), line.site.name, id, size)


class Line:
    """A tier and its thread."""

    def __init__(self, site: Site, placer: Placer, displacing: Displacing, level: Level | None) -> None:
        self.site, self.placer, self.displacing, self.level = site, placer, displacing, level
        self.told = False  # that it is in trouble
        self.newest_step: int | None = None  # of the checkpoints that came there
        self.failed: set[str] = set()  # ids, of which it may have half copies of ours
        self.swept = False

    def takes(self, entry: Entry) -> bool:
        """Whether the checkpoint is to go there, and is not there as far as facts know."""
        wishes, manifest = self.site.wishes, entry.manifest
        if any(_is_current(copy, self.site) for copy in entry.places) or not self.is_meant(entry):
            return False
        coming = [job.step for job in self.placer.pending if job.id]
        before = coming[-1] if coming else self.newest_step
        if wishes.every_steps is None or before is None:
            return True
        return not 0 <= manifest.step - before < wishes.every_steps

    def is_meant(self, entry: Entry) -> bool:
        """Whether it was saved for what the tier is there for."""
        return self.site.wishes.take == "all" or _reach(entry) >= self.site.reach

    def join(self, opened: Opened) -> None:
        """Make sure that the tier is ours."""
        self.site.join(opened.store, opened.home, task=opened.task, own=opened.attempt.number)

    def find_vanished(self, opened: Opened) -> tuple[Entry, ...]:
        """What somebody else has taken away there."""
        return find_vanished(
            self.site,
            opened.store,
            opened.home,
            task=opened.task,
            own=opened.attempt.number,
            known=lambda: opened.catalog.entries(opened.home),
        )


def _coming(site: Site, entry: Entry) -> int:
    """Bytes that go there, as they lie in the root. Frozen weights that the root has with another checkpoint go too,
    unless the tier has some already."""
    return sum(
        file.size
        for file in entry.manifest.files
        if level_of(file.name) in site.wishes.levels
        and (not site.owners if file.name.endswith(FROZEN) else file.folder is None)
    )


def _is_current(copy: Place, site: Site) -> bool:
    return copy.tier == site.name and copy.url == site.url


def _reach(entry: Entry) -> Reach:
    """The loss that a checkpoint was saved for; of one that does not say, the next start's."""
    try:
        return Reach[str(entry.manifest.decision.get(REACH, "reboot")).upper()]
    except KeyError:
        return Reach.REBOOT
