"""The front door of a training loop: from arguments to a run that stands where the last attempt stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mementum.assemble import components_of, exactness_of, fit_of, plain_fields, policy_of, retention_of
from mementum.background import Background, Lasting
from mementum.clock import Clock, SystemClock
from mementum.decide.policy import Policy
from mementum.decide.retain import Retention
from mementum.errors import UsageError
from mementum.events import Emit, Emitter, Failed, Note
from mementum.execute import origin
from mementum.execute.capture import BlockingCapture, Capture, Slots
from mementum.execute.overlap import OverlappedCapture
from mementum.execute.plan import RAW
from mementum.execute.structure import Reader
from mementum.format import codec as codecs
from mementum.format import context as contexts
from mementum.live import feeds
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.opening import Opened, open_task, root_folder
from mementum.ram import ChosenSlots, Salvaged, claim_of, describe, key_of, snapshot_of
from mementum.records import record
from mementum.returning import Back, begin
from mementum.run import Run
from mementum.taking import Taker

KEEP_LAST = 10  # checkpoints; enough to go back behind a divergence that was seen late, and the disk does not fill


@record
class Asked:
    """What the caller wants, checked."""

    policy: Policy
    retention: Retention
    codec: str
    capture: str
    verify_capture: bool
    slots: int
    write_rate: float | None
    resume: str
    raise_failures: bool
    user: Mapping[str, Any]
    fit: Fit
    takeover: bool


def open_run(
    root: str | os.PathLike[str],
    *,
    task: str,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    data: Any = None,
    state: Mapping[str, Any] | None = None,
    every_steps: int | None = None,
    every_s: float | None = None,
    policy: Policy | None = None,
    keep_last: int | None = KEEP_LAST,
    keep_every_steps: int | None = None,
    codec: str = "raw",
    capture: Literal["overlapped", "blocking"] = "overlapped",
    verify_capture: bool = False,
    slots: Literal[0, 2, 3] = 3,
    write_rate: float | None = None,
    resume: Literal["auto", "never", "must"] = "auto",
    fit: Literal["strict", "partial"] = "strict",
    rename: Mapping[str, str] | None = None,
    lr_wins: Literal["stored", "new"] = "stored",
    takeover: bool = False,
    on_error: Literal["tell", "raise"] = "tell",
    on_event: Emit | Sequence[Emit] = (),
    user: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Run:
    """Open a training run in the folder `root`, and put everything back to where the last attempt stopped.

    model, optimizer, scheduler, scaler: one object, or a dict of names to objects where there are several.
    data: the loader, so that what it can tell of its position is known before the run.
    state: further things by name: anything with `state_dict()` and `load_state_dict()`, random generators, dicts,
        lists, sets and tensors (restored in place). Plain values live in `run.values`.
    every_steps, every_s: save at this interval (both: whichever comes first; neither: ten minutes); or `policy`.
    keep_last: how many of the newest checkpoints stay (None: all); keep_every_steps: multiples of it stay too.
    codec: of optimizer state on disk: `raw`, `zstd:1`, `planes+zstd:1`. A checkpoint lands raw; it is compressed later,
        when the processor has nothing else to do. Weights are always raw.
    capture: `overlapped` copies beside the next step's forward and backward pass; `blocking` copies before it goes on.
        verify_capture: compare all of the copy with a digest taken before it, not a sample of every tensor; the digest
        is taken while the loop waits.
    slots: how many snapshots shared memory keeps, as far as there is room, where they outlive the process; 0 keeps them
        in the process. `mementum plan` says what fits.
    write_rate: bytes a second that saves may write at most, where others need the disk; None: as fast as it goes.
    resume: `auto` resumes if there is a checkpoint, `must` insists on one, `never` begins anew beside them.
    fit: `strict` resumes only if everything fits; `partial` loads what fits by name, shape and dtype, and lists the
        rest in `run.resumed.left_out`. rename: stored names to new ones, `{"model.old.": "model.new."}`.
    lr_wins: after a resume the `stored` learning rates hold, or those of the program (`new`).
    takeover: do not wait for the lease of a process on another host that is surely gone.
    on_error: `tell` keeps a failed save out of training (event and log); `raise` raises it at the next `record`.
    on_event: called with every event of `mementum.events`, on the thread where it happens.
    user: fields of your own for the manifests (a logger's path, a sweep's id).

    Raises UsageError or UnsupportedState before anything is written; TaskInUse if a living process trains the task;
    NothingToResume; StateMismatch if what was stored does not fit (nothing is changed then).
    """
    _require(resume=(resume, ("auto", "never", "must")), on_error=(on_error, ("tell", "raise")))
    _require(capture=(capture, ("overlapped", "blocking")))
    _require_plain(verify_capture, write_rate, slots)
    asked = Asked(
        policy=policy_of(policy, every_steps, every_s),
        retention=retention_of(keep_last, keep_every_steps),
        codec=codecs.check(codec),
        capture=capture,
        verify_capture=verify_capture,
        slots=slots,
        write_rate=write_rate,
        resume=resume,
        raise_failures=on_error == "raise",
        user=plain_fields(user),
        fit=fit_of(fit, rename, lr_wins),
        takeover=takeover,
    )
    components = components_of(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, state=state)
    return _open(root, task, asked, components, data, clock or SystemClock(), _emitter(on_event))


def _open(
    root: str | os.PathLike[str],
    task: str,
    asked: Asked,
    components: Sequence[Component],
    data: Any,
    clock: Clock,
    emit: Emit,
) -> Run:
    feed = feeds.feed_for(data) if data is not None else None
    trees = Reader(codec=RAW).read(components).components
    contexts.render({"components": trees, "user": asked.user})  # what cannot be saved is said now
    lasting = Lasting(versions=origin.versions(), code=origin.code(), user=asked.user)
    about = {"versions": lasting.versions, "code": lasting.code}
    opened = open_task(root, task, about=about, clock=clock, emit=emit, takeover=asked.takeover)
    try:
        return _run(root, opened, asked, components, feed, lasting, clock, emit)
    except BaseException:
        opened.close()
        raise


def _run(
    root: str | os.PathLike[str],
    opened: Opened,
    asked: Asked,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    clock: Clock,
    emit: Emit,
) -> Run:
    folder = root_folder(root)
    back = begin(opened, folder, components, feed, lasting, resume=asked.resume, fit=asked.fit, clock=clock, emit=emit)
    beginning = back.beginning
    exactness = exactness_of(components, feed.exactness if feed is not None else None)
    if feed is not None and exactness.reasons:
        emit(Note(text=f"a resume will be {exactness}"))
    resumed = beginning.resumed
    if resumed is not None and resumed.left_out:
        emit(Note(text=f"step {resumed.step} was loaded in part: {len(resumed.left_out)} things were left out"))
    background = _background(opened, asked, back, lasting, clock, emit)
    slots = ChosenSlots(key_of(folder, opened.task), wanted=asked.slots, emit=emit)
    capture = _capture(asked, components, slots, clock, emit)
    capture.note(components)
    taker = Taker(
        capture=capture,
        components=components,
        background=background,
        lasting=lasting,
        task=opened.task,
        attempt=opened.attempt.number,
        claim=claim_of(opened.store, opened.attempt.number),
        clock=clock,
        emit=emit,
    )
    return Run(
        opened=opened,
        feed=feed,
        exactness=exactness,
        taker=taker,
        policy=asked.policy,
        background=background,
        beginning=beginning,
        raise_failures=asked.raise_failures,
        clock=clock,
        emit=emit,
    )


def _background(opened: Opened, asked: Asked, back: Back, lasting: Lasting, clock: Clock, emit: Emit) -> Background:
    """The background, at work on what the last run has left: slots to give back, a checkpoint to compress, a snapshot
    to place."""
    resumed = back.beginning.resumed
    background = Background(
        opened=opened,
        retention=asked.retention,
        write_rate=asked.write_rate,
        settle_with=None if asked.codec == RAW else asked.codec,
        lasting=lasting,
        seq=back.seq,
        saved_seq=back.saved_seq,
        parent=resumed.checkpoint if resumed else None,
        saved_step=resumed.step if resumed and back.salvaged is None else None,
        clock=clock,
        emit=emit,
    )
    background.give_back(back.spare)
    background.stills.know(back.stills)
    if back.came_from is not None:
        background.stills.wrote(*back.came_from)
        background.stills.committed()
    background.settle_newest()  # what the last run left as it landed
    if back.salvaged is not None:
        _place(back.salvaged, opened, background)
    return background


def _place(salvaged: Salvaged, opened: Opened, background: Background) -> None:
    """Make the snapshot from which the run came back, or beside which it begins anew, durable before anything else."""

    def release() -> None:
        """Its memory is given back once it, or a later state, is a checkpoint; else the next start finds it again."""
        if background.saved_seq >= salvaged.headed.told.seq:
            salvaged.left.remove()
        elif background.ending:
            salvaged.left.release()
        else:
            background.at_end.append(release)

    background.stills.know(salvaged.headed.stills)
    snapshot = snapshot_of(salvaged, opened.store, release=release)
    background.submit(snapshot, describe=lambda snapshot, files: describe(salvaged.headed, files))


def _capture(asked: Asked, components: Sequence[Component], slots: Slots, clock: Clock, emit: Emit) -> Capture:
    def give_up(why: str) -> None:
        emit(Note(text=f'{why}: from now on the state is copied while the loop waits, as with capture="blocking"'))

    def failed(why: str) -> None:
        emit(Failed(what="finishing a snapshot in memory", error=why, kept="the save, and the checkpoints"))

    if asked.capture == "blocking":
        return BlockingCapture(codec=RAW, slots=slots, reuse_frozen=True)
    capture = OverlappedCapture(
        codec=RAW,
        components=components,
        clock=clock,
        slots=slots,
        reuse_frozen=True,
        verify=asked.verify_capture,
        give_up=give_up,
        failed=failed,
    )
    if capture.unhooked:
        names = ", ".join(capture.unhooked)
        emit(Note(text=f"{names}: its step does not call torch's hooks, so its state is copied while the loop waits"))
    return capture


def _require(**choices: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _require_plain(verify_capture: Any, write_rate: Any, slots: Any) -> None:
    if not isinstance(verify_capture, bool):
        raise UsageError(f"verify_capture is True or False, got {verify_capture!r}")
    if write_rate is not None and (type(write_rate) not in (int, float) or not write_rate > 0):
        raise UsageError(f"write_rate is a number of bytes a second, got {write_rate!r}")
    if type(slots) is not int or slots not in (0, 2, 3):
        raise UsageError(f"slots must be 3, 2 or 0, got {slots!r}")


def _emitter(on_event: Emit | Sequence[Emit]) -> Emitter:
    listeners = (
        (on_event,) if callable(on_event) else tuple(on_event) if isinstance(on_event, list | tuple) else (None,)
    )
    if not all(map(callable, listeners)):
        raise UsageError(f"on_event is a function of an event, or a list of them, got {on_event!r}")
    return Emitter(listeners)
