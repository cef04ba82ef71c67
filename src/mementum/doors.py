"""The front door of a training loop: from arguments to a run that stands where the last attempt stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mementum.assemble import components_of, exactness_of, fit_of, plain_fields, policy_of, retention_of
from mementum.background import Background, Lasting
from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, SystemClock, timestamp
from mementum.decide.policy import Policy
from mementum.decide.retain import Retention
from mementum.errors import CheckpointDamaged, MementumError, NothingToResume, StateMismatch, StoreError, UsageError
from mementum.events import Emit, Emitter, Failed, Note, PhaseBegan, PhaseEnded
from mementum.execute import origin
from mementum.execute.capture import BlockingCapture
from mementum.execute.overlap import OverlappedCapture
from mementum.format import codec as codecs
from mementum.format import context as contexts
from mementum.live import feeds, rng
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.opening import Opened, open_task
from mementum.records import Fact, Resumed, record
from mementum.resuming import REFUSALS, Found, newest_whole, put_back, versions_that_differ
from mementum.run import Beginning, Run

SHOWN_MAX = 10  # pieces of damage in a message; `mementum doctor` tells all of it
KEEP_LAST = 10  # checkpoints; enough to go back behind a divergence that was seen late, and the disk does not fill


@record
class Asked:
    """What the caller wants, checked."""

    policy: Policy
    retention: Retention
    codec: str
    capture: str
    verify_capture: bool
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
    codec: of optimizer state on disk: `raw`, `zstd:1`, `planes+zstd:1`. Weights are always raw.
    capture: `overlapped` copies beside the next step's forward and backward pass; `blocking` copies before it goes on.
        verify_capture: compare the whole copy with the live state afterwards, not a sample of every tensor.
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
    asked = Asked(
        policy=policy_of(policy, every_steps, every_s),
        retention=retention_of(keep_last, keep_every_steps),
        codec=codecs.check(codec),
        capture=capture,
        verify_capture=verify_capture,
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
    whole = BlockingCapture(codec=asked.codec)
    contexts.render({"components": whole.check(components), "user": asked.user})  # what cannot be saved is said now
    lasting = Lasting(versions=origin.versions(), code=origin.code(), user=asked.user)
    about = {"versions": lasting.versions, "code": lasting.code}
    opened = open_task(root, task, about=about, clock=clock, emit=emit, takeover=asked.takeover)
    try:
        return _run(opened, asked, components, feed, whole, lasting, clock, emit)
    except BaseException:
        opened.close()
        raise


def _run(
    opened: Opened,
    asked: Asked,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    whole: BlockingCapture,
    lasting: Lasting,
    clock: Clock,
    emit: Emit,
) -> Run:
    beginning, seq = _begin(opened, components, feed, lasting, asked, clock=clock, emit=emit)
    exactness = exactness_of(components, feed.exactness if feed is not None else None)
    if feed is not None and exactness.reasons:
        emit(Note(text=f"a resume will be {exactness}"))
    resumed = beginning.resumed
    if resumed is not None and resumed.left_out:
        emit(Note(text=f"step {resumed.step} was loaded in part: {len(resumed.left_out)} things were left out"))
    background = Background(
        opened=opened,
        retention=asked.retention,
        lasting=lasting,
        seq=seq,
        parent=resumed.checkpoint if resumed else None,
        saved_step=resumed.step if resumed else None,
        clock=clock,
        emit=emit,
    )
    return Run(
        opened=opened,
        components=components,
        feed=feed,
        exactness=exactness,
        capture=_overlapped(asked, components, clock, emit) if asked.capture == "overlapped" else whole,
        policy=asked.policy,
        background=background,
        beginning=beginning,
        raise_failures=asked.raise_failures,
        clock=clock,
        emit=emit,
    )


def _overlapped(asked: Asked, components: Sequence[Component], clock: Clock, emit: Emit) -> OverlappedCapture:
    def give_up(why: str) -> None:
        emit(Note(text=f'{why}: from now on the state is copied while the loop waits, as with capture="blocking"'))

    capture = OverlappedCapture(
        codec=asked.codec, components=components, clock=clock, verify=asked.verify_capture, give_up=give_up
    )
    if capture.unhooked:
        names = ", ".join(capture.unhooked)
        emit(Note(text=f"{names}: its step does not call torch's hooks, so its state is copied while the loop waits"))
    return capture


def _begin(
    opened: Opened,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    asked: Asked,
    *,
    clock: Clock,
    emit: Emit,
) -> tuple[Beginning, int]:
    """Where the run begins, and the highest sequence number so far. Everything live is put back on return."""
    entries = opened.catalog.entries(opened.home)
    seq = max((entry.manifest.seq for entry in entries), default=0)
    if asked.resume == "never":
        return Beginning(values={}), seq
    began_s = clock.monotonic()
    emit(PhaseBegan(phase="resume"))

    def mark(id: str, what: str) -> None:
        fact = Fact(kind="damaged", time=timestamp(clock.now()), checkpoint=id, values={"what": what})
        try:
            opened.store.append(opened.journal, facts.render(fact))
            refresh(opened.catalog, opened.home, opened.store)
        except StoreError as error:  # a full disk must not keep a run from coming back from an older checkpoint
            emit(Failed(what=f"marking {id} as damaged", error=error.message, kept="all checkpoints"))

    found = newest_whole(entries, opened.store, emit=emit, mark=mark)
    if found is None:
        if opened.unreadable:  # beginning anew would hide that there was something to go on from
            raise NothingToResume(
                f"task {opened.task!r} has checkpoints, and no manifest can be read:\n"
                + "\n".join(f"  {damage.key}: {damage.what}" for damage in opened.unreadable[:SHOWN_MAX]),
                kept="all of them, as they are",
                next_command='mementum doctor ROOT; resume="never" begins anew beside them',
            )
        if asked.resume == "must":
            raise NothingToResume(
                f"task {opened.task!r} has no checkpoint that resumes exactly",
                next_command='begin it with resume="auto", or look with `mementum ls ROOT`',
            )
        emit(PhaseEnded(phase="resume", duration_s=clock.monotonic() - began_s))
        return Beginning(values={}), seq
    try:
        beginning = _put_back(found, components, feed, lasting, asked.fit, began_s, clock)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as cause:
        if isinstance(cause, MementumError):
            raise
        id = found.loaded.manifest.id
        what = f"it is no context of ours: {type(cause).__name__}: {cause}"
        raise CheckpointDamaged(id, [(f"{found.folder}/context", what)], kept="all live objects") from cause
    emit(PhaseEnded(phase="resume", id=found.loaded.manifest.id, duration_s=clock.monotonic() - began_s))
    return beginning, seq


def _put_back(
    found: Found,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    fit: Fit,
    began_s: float,
    clock: Clock,
) -> Beginning:
    manifest, context = found.loaded.manifest, found.loaded.context
    place = context["feed"] if feed is not None else None
    unfit = feeds.check(feed, place) if feed is not None and place is not None else []
    bring_back = feeds.remember(feed) if feed is not None else None
    generators = rng.read()
    try:
        if context["rng"] is not None:
            rng.apply(context["rng"])
        if feed is not None and place is not None and not unfit:
            _move(feed, place, manifest.id)
        result = put_back(found.loaded, components, fit=fit, also=() if fit.partial else unfit)
    except BaseException:
        if bring_back is not None:
            bring_back()
        rng.apply(generators)
        raise
    if context["rng"] is not None:  # again: an object's own load may have drawn from them
        rng.apply(context["rng"])
    resumed = Resumed(
        checkpoint=manifest.id,
        step=manifest.step,
        epoch=manifest.epoch,
        reason=manifest.reason,
        passed_over=found.passed_over,
        rung="exact" if not (result.left_out or unfit) else "partial",
        differs=(
            *versions_that_differ(manifest.versions, lasting.versions),
            *rng.inexact(context["rng"]),
            *result.besides,
        ),
        left_out=(*result.left_out, *unfit),
        duration_s=clock.monotonic() - began_s,
    )
    return Beginning(
        resumed=resumed,
        step=manifest.step,
        rng=context["rng"],
        feed=context["feed"],
        iterating=context["iterating"],
        partial=fit.partial,
        values=context["values"],
    )


def _move(feed: feeds.Feed, place: Mapping[str, Any], id: str) -> None:
    try:
        feeds.apply(feed, place)
    except REFUSALS as cause:
        raise StateMismatch(
            id,
            [f"the data refused its place: {type(cause).__name__}: {cause}"],
            kept="the checkpoint and all live objects, as they were",
            next_command="mend load_state_dict of the loader, or give the data that was stored",
        ) from cause


def _require(**choices: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _emitter(on_event: Emit | Sequence[Emit]) -> Emitter:
    listeners = (
        (on_event,) if callable(on_event) else tuple(on_event) if isinstance(on_event, list | tuple) else (None,)
    )
    if not all(map(callable, listeners)):
        raise UsageError(f"on_event is a function of an event, or a list of them, got {on_event!r}")
    return Emitter(listeners)
