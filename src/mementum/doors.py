"""The front door of a training loop: from arguments to a run that stands where the last attempt stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mementum.asking import UNSAID, Asked, Unsaid, asked_of
from mementum.assemble import components_of, exactness_of
from mementum.background import Lasting
from mementum.clock import Clock, SystemClock
from mementum.config.loading import Source
from mementum.decide.policy import Policy
from mementum.equipping import background_for, capture_for, deciding_for, place_salvaged, rolling_for
from mementum.errors import UsageError
from mementum.events import Emit, Emitter, Note
from mementum.execute import origin
from mementum.execute.plan import RAW
from mementum.execute.structure import Reader
from mementum.format import context as contexts
from mementum.live import feeds
from mementum.live.component import Component
from mementum.opening import Opened, open_task, root_folder
from mementum.places import Places, open_sites
from mementum.policies import came_late
from mementum.ram import claim_of, key_of
from mementum.records import Exactness, Resumed
from mementum.returning import begin
from mementum.run import CLOSE_WAIT_S, Run
from mementum.slotting import ChosenSlots
from mementum.taking import Taker


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
    config: Source = None,
    every_steps: int | None = None,
    every_s: float | None = None,
    policy: Policy | None = None,
    keep_last: int | Unsaid | None = UNSAID,
    keep_every_steps: int | Unsaid | None = UNSAID,
    codec: str | Unsaid = UNSAID,
    capture: Literal["overlapped", "blocking"] | Unsaid = UNSAID,
    verify_capture: bool | Unsaid = UNSAID,
    slots: Literal[0, 2, 3] | Unsaid = UNSAID,
    write_rate: float | Unsaid | None = UNSAID,
    resume: Literal["auto", "never", "must"] = "auto",
    fit: Literal["strict", "partial"] | Unsaid = UNSAID,
    rename: Mapping[str, str] | None = None,
    lr_wins: Literal["stored", "new"] | Unsaid = UNSAID,
    takeover: bool = False,
    on_error: Literal["tell", "raise"] | Unsaid = UNSAID,
    on_event: Emit | Sequence[Emit] = (),
    user: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Run:
    """Open a training run in the folder `root`, and put everything back to where the last attempt stopped.

    model, optimizer, scheduler, scaler: one object, or a dict of names to objects where there are several.
    data: the loader, so that what it can tell of its position is known before the run.
    state: further things by name: anything with `state_dict()` and `load_state_dict()`, random generators, dicts,
        lists, sets and tensors (restored in place). Plain values live in `run.values`.
    config: a preset's name (`pretrain`, `finetune`, `rlhf`, `inference`), a YAML file or a mapping: see docs/config.md,
        also for what holds where nothing is said. An argument that is given here wins over it.
    every_steps, every_s: save at this interval (both: whichever comes first); or `policy`. Neither: when what would be
        lost on average has grown to what a save costs. A notice that the process will be stopped saves in any case.
    keep_last: how many of the newest checkpoints stay (None: all); keep_every_steps: multiples of it
        stay too.
    codec: of optimizer state on disk: `raw`, `zstd:1`, `planes+zstd:1`, `delta+planes+zstd:1`. A checkpoint lands raw;
        it is compressed later, when the processor has nothing else to do. Weights are always raw.
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
    asked = asked_of(
        config,
        {
            "keep_last": keep_last,
            "keep_every_steps": keep_every_steps,
            "codec": codec,
            "capture": capture,
            "verify_capture": verify_capture,
            "slots": slots,
            "write_rate": write_rate,
            "fit": fit,
            "lr_wins": lr_wins,
            "on_error": on_error,
        },
        every_steps=every_steps,
        every_s=every_s,
        policy=policy,
        resume=resume,
        rename=rename,
        takeover=takeover,
        user=user,
    )
    emitter = _emitter(on_event)
    components = components_of(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, state=state)
    return _open(root, task, asked, components, data, clock or SystemClock(), emitter)


def _open(
    root: str | os.PathLike[str],
    task: str,
    asked: Asked,
    components: Sequence[Component],
    data: Any,
    clock: Clock,
    emit: Emitter,
) -> Run:
    feed = feeds.feed_for(data) if data is not None else None
    trees = Reader(codec=RAW).read(components).components
    contexts.render({"components": trees, "user": asked.user})  # what cannot be saved is said now
    lasting = Lasting(versions=origin.versions(), code=origin.code(), user=asked.user)
    about = {"versions": lasting.versions, "code": lasting.code}
    settings, folder = asked.settings, root_folder(root)
    sites = open_sites(settings.tiers, folder, clock=clock, network=settings.budgets.network)  # nothing is written yet
    places = Places(sites, emit=emit)
    opened = open_task(
        root,
        task,
        about=about,
        clock=clock,
        emit=emit,
        takeover=asked.takeover,
        share_with=settings.catalog,
        places=places,
    )
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
    emit: Emitter,
) -> Run:
    folder = root_folder(root)
    began_s = clock.monotonic()
    back = begin(opened, folder, components, feed, lasting, resume=asked.resume, fit=asked.fit, clock=clock, emit=emit)
    beginning = back.beginning
    exactness = _exactness(components, feed, emit)
    if beginning.resumed is not None:
        _tell_resumed(beginning.resumed, came_late(asked.settings, clock.monotonic() - began_s), emit)
    background = background_for(opened, asked, components, back, lasting, clock, emit)
    wanted, memory = asked.settings.slots, asked.settings.budgets.memory
    slots = ChosenSlots(key_of(folder, opened.task), wanted=wanted, memory=memory, emit=emit)
    capture = capture_for(asked, components, slots, clock, emit)
    try:
        capture.note(components)
        deciding = deciding_for(asked, components, opened, background, back, capture, slots, clock, emit)
    except BaseException:
        for left in (*back.older, *(() if back.salvaged is None else (back.salvaged.left,))):
            left.release()  # it lies where it lay
        capture.close()
        background.close(CLOSE_WAIT_S)
        raise
    place_salvaged(back.salvaged, opened, background, clock)
    looks = asked.settings.on_divergence != "ignore" and not asked.settings.observe
    background.give_back(slots.adopt(back.older) if looks else back.older)
    taker = Taker(
        capture=capture,
        components=components,
        background=background,
        holds=slots.holds,
        lasting=lasting,
        task=opened.task,
        attempt=opened.attempt.number,
        claim=claim_of(opened.store, opened.attempt.number),
        clock=clock,
        emit=emit,
    )
    run = Run(
        opened=opened,
        feed=feed,
        exactness=exactness,
        taker=taker,
        deciding=deciding,
        background=background,
        rolling=rolling_for(asked, opened, components, background, lasting, beginning, clock, emit),
        beginning=beginning,
        raise_failures=asked.settings.on_error == "raise",
        clock=clock,
        emit=emit,
    )
    deciding.begin()
    return run


def _exactness(components: Sequence[Component], feed: feeds.Feed | None, emit: Emit) -> Exactness:
    exactness = exactness_of(components, feed.exactness if feed is not None else None)
    if feed is not None and exactness.reasons:
        emit(Note(text=f"a resume will be {exactness}"))
    return exactness


def _tell_resumed(resumed: Resumed, late: str | None, emit: Emitter) -> None:
    if late is not None:
        emit(Note(text=late))
    if resumed.left_out:
        emit(Note(text=f"step {resumed.step} was loaded in part: {len(resumed.left_out)} things were left out"))


def _emitter(on_event: Emit | Sequence[Emit]) -> Emitter:
    listeners = (
        (on_event,) if callable(on_event) else tuple(on_event) if isinstance(on_event, list | tuple) else (None,)
    )
    if not all(map(callable, listeners)):
        raise UsageError(f"on_event is a function of an event, or a list of them, got {on_event!r}")
    return Emitter(listeners)
