"""What the stages tell the outside: small frozen records, handed to whoever listens."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Literal

from mementum.records import Alarm, Diagnosis, Health, Notice, Reach, record

logger = logging.getLogger("mementum")

Phase = Literal["resume", "capture", "write", "commit", "remove", "sweep", "place", "fetch"]


@record
class PhaseBegan:
    """A stage starts its work on a checkpoint (`id` is empty where there is none yet)."""

    phase: Phase
    id: str = ""


@record
class PhaseEnded:
    """A stage has finished its work, well or not."""

    phase: Phase
    id: str = ""
    duration_s: float = 0.0


@record
class Committed:
    """A checkpoint is durable and listed."""

    id: str
    step: int
    size: int
    reason: str
    blocked_s: float
    durable_s: float


@record
class SnapshotKept:
    """A snapshot stays in shared memory, where it outlives the process; it is written to no disk."""

    id: str
    step: int
    reason: str
    blocked_s: float
    snapshot_s: float


@record
class CameToNothing:
    """A save that was begun is over, and there is no checkpoint of it; another event says why."""

    id: str
    step: int


@record
class Alarmed:
    """A vital sign is out of its limits, or no step has ended for too long."""

    alarm: Alarm


@record
class Diagnosed:
    """What the vital signs say of the run's state has changed, after this step."""

    step: int
    diagnosis: Diagnosis


@record
class NotFinite:
    """The state that a save has taken at `step` holds NaN, or an infinity that is not meant, in the tensor `name`: its
    checkpoint is marked as diverged. `after_step`: the newest step before it whose state is known to be finite."""

    id: str
    step: int
    name: str
    after_step: int


@record
class Kept:
    """The newest state from before a trouble's `onset` is on the disk, and stays."""

    id: str
    step: int
    onset: int
    reason: str


@record
class Noticed:
    """Somebody has said that the process will be stopped, or has asked for a save."""

    step: int
    notice: Notice


@record
class Settled:
    """A checkpoint that landed raw was compressed; sizes are bytes of all its files. `base`: the checkpoint that it was
    coded against, if it was; `why_no_base`: if the codec has a delta, and it was not."""

    id: str
    step: int
    size_before: int
    size: int
    duration_s: float
    base: str | None = None
    why_no_base: str | None = None


@record
class Withered:
    """Levels of an old checkpoint were dropped; `levels` are left. `size_before` and `size`: bytes of its files."""

    id: str
    step: int
    levels: tuple[int, ...]
    size_before: int
    size: int
    reason: str


@record
class Cost:
    """What a save has cost, known once the training has gone on for a step. `blocked_s`: the loop stood still.
    `lost_s`: in all, slower steps included; None where there were too few steps to compare with. `snapshot_s` is from
    its beginning until the copy was whole, `durable_s` until the checkpoint was. `written`: bytes; what was durable
    already is not written again."""

    id: str
    step: int
    blocked_s: float
    lost_s: float | None
    snapshot_s: float
    durable_s: float
    written: int


@record
class Placed:
    """A checkpoint is whole on a tier too. `size`: bytes that it has there, of which `sent` were not there before."""

    id: str
    step: int
    tier: str
    reach: Reach
    size: int
    sent: int
    duration_s: float


@record
class Unplaced:
    """A checkpoint that was to go to a tier does not get there, or not in this run; it stays in the root."""

    id: str
    step: int
    tier: str
    reach: Reach
    reason: str


@record
class Displaced:
    """The copy of a checkpoint on a tier was taken away there."""

    id: str
    step: int
    tier: str
    reason: str


@record
class Fetched:
    """A checkpoint that the root did not have was brought there from a tier. `size`: bytes."""

    id: str
    step: int
    tier: str
    size: int
    duration_s: float


@record
class Removed:
    """A checkpoint was taken away by retention."""

    id: str
    step: int
    reason: str


@record
class RoomMade:
    """A place was fuller than the watermarks allow, and checkpoints of `freed` bytes were removed there, each of which
    was told. `used`: bytes of its `size` that are used after that, by whomever."""

    place: str
    used: int
    size: int
    freed: int


@record
class NoRoom:
    """A place is fuller than the watermarks allow, and nothing of ours that is left there may go: `missing` bytes are
    wanted, beyond `freed` that came free. `limit`: bytes of its `size` that may be used. `saves`: whether there is room
    for saves all the same; else only those before a stop and for an alarm are tried. Told once, until there is room:
    who listens may give the place more, and that is looked for when the listener returns."""

    place: str
    used: int
    size: int
    limit: int
    freed: int
    missing: int
    saves: bool
    next_command: str


@record
class Swept:
    """Leftovers of dead attempts were removed."""

    keys: tuple[str, ...]


@record
class RolledBack:
    """The run has gone back to a checkpoint of an earlier step. `skipped`: steps whose batches are left out from there
    on; `lr_scale`: what the learning rates are multiplied by by now, in all; `number`: of one trouble's rollbacks."""

    checkpoint: str
    step: int
    from_step: int | None  # None where the plan was made by hand
    onset: int | None
    skipped: int
    lr_scale: float
    number: int
    why: str


@record
class SaveSkipped:
    """A save that was decided did not happen; `reason` says why."""

    step: int
    reason: str


@record
class Failed:
    """Something of ours failed and training goes on; `kept` says what is still safe."""

    what: str
    error: str
    kept: str


@record
class PassedOver:
    """A checkpoint was found damaged and an older one is tried."""

    id: str
    what: str


@record
class Note:
    """Something a person should know once."""

    text: str


Event = (
    PhaseBegan
    | PhaseEnded
    | Committed
    | Cost
    | SnapshotKept
    | CameToNothing
    | Alarmed
    | Diagnosed
    | NotFinite
    | Kept
    | Noticed
    | Settled
    | Withered
    | Placed
    | Unplaced
    | Displaced
    | Fetched
    | Removed
    | RoomMade
    | NoRoom
    | Swept
    | SaveSkipped
    | Failed
    | PassedOver
    | RolledBack
    | Note
)
Emit = Callable[[Event], None]


class Emitter:
    """Hands every event to the listeners and to the log. A listener that raises is dropped and named."""

    def __init__(self, listeners: tuple[Emit, ...] = ()) -> None:
        self._listeners = list(listeners)

    def add(self, listener: Emit) -> None:
        """One more listener, who is told first."""
        self._listeners.insert(0, listener)

    def __call__(self, event: Event) -> None:
        _log(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # A listener is the user's code at our thread's border: it must not stop a save.
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                    raise  # the program itself wants to end
                with contextlib.suppress(ValueError):  # it raised on another thread too, or inside of itself
                    self._listeners.remove(listener)
                logger.exception("a listener raised on %r and is not called again", event)


def _log(event: Event) -> None:
    match event:
        case Failed():
            logger.error("%s failed: %s (kept: %s)", event.what, event.error, event.kept)
        case PassedOver():
            logger.warning("checkpoint %s is passed over: %s", event.id, event.what)
        case SaveSkipped():
            logger.warning("no save at step %d: %s", event.step, event.reason)
        case Note():
            logger.warning("%s", event.text)
        case Alarmed():
            logger.warning("alarm at step %d: %s", event.alarm.step, event.alarm.text)
        case Diagnosed(step=step, diagnosis=told) if told.health is not Health.CLEAN:
            logger.warning("%s from step %s on, seen at step %d: %s", told.health.value, told.onset, step, told.why)
        case Diagnosed():
            logger.warning("clean again at step %d", event.step)
        case NotFinite():
            logger.warning("step %d: %s is not finite: its checkpoint is diverged", event.step, event.name)
        case Kept():
            logger.warning("checkpoint %s of step %d is kept: %s", event.id, event.step, event.reason)
        case Noticed():
            logger.warning("%s at step %d", event.notice.source, event.step)
        case RolledBack():
            logger.warning("back to step %d, checkpoint %s: %s", event.step, event.checkpoint, event.why)
        case Committed():
            logger.info("step %d saved as %s (%s)", event.step, event.id, event.reason)
        case Settled():
            logger.info("checkpoint %s settled: %d bytes became %d", event.id, event.size_before, event.size)
        case Placed():
            logger.info("checkpoint %s of step %d is on %s", event.id, event.step, event.tier)
        case Unplaced():
            logger.warning("step %d is not on %s: %s", event.step, event.tier, event.reason)
        case Displaced():
            logger.info("checkpoint %s of step %d left %s: %s", event.id, event.step, event.tier, event.reason)
        case Fetched():
            logger.warning("checkpoint %s of step %d was fetched from %s", event.id, event.step, event.tier)
        case Removed():
            logger.info("checkpoint %s of step %d removed: %s", event.id, event.step, event.reason)
        case RoomMade():
            share = event.used / max(event.size, 1)
            logger.info("%d bytes came free on %s, used to %.0f %% now", event.freed, event.place, 100 * share)
        case NoRoom():
            goes_on = "saves go on" if event.saves else "only saves before a stop and for an alarm are tried"
            text = "%s is used to %.0f %%, and nothing of ours in it may go: %s; next: %s"
            share = event.used / max(event.size, 1)
            logger.warning(text, event.place, 100 * share, goes_on, event.next_command)
        case Swept():
            logger.info("%d leftovers removed", len(event.keys))
        case _:
            logger.debug("%r", event)
