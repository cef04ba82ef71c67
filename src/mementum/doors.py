"""The front door of a training loop: from arguments to a run that stands where the last attempt stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from mementum.asking import UNSAID, Asked, Unsaid, asked_of
from mementum.assemble import components_of, exactness_of
from mementum.background import Background, Lasting
from mementum.clock import Clock, SystemClock
from mementum.config.loading import Source
from mementum.decide.policy import Policy
from mementum.deciding import Deciding
from mementum.errors import UsageError
from mementum.events import Emit, Emitter, Failed, Note
from mementum.execute import origin
from mementum.execute.capture import BlockingCapture, Capture, Slots
from mementum.execute.overlap import OverlappedCapture
from mementum.execute.plan import RAW
from mementum.execute.structure import Reader
from mementum.format import context as contexts
from mementum.live import feeds
from mementum.live.component import Component
from mementum.opening import Opened, open_task, root_folder
from mementum.perceive.costs import Costs
from mementum.policies import came_late, not_kept
from mementum.quarantine import watch_states
from mementum.ram import Salvaged, claim_of, described, key_of, snapshot_of
from mementum.records import Exactness, Resumed
from mementum.restoring import Beginning
from mementum.returning import Back, begin
from mementum.rolling import Rolling, Wishes
from mementum.run import CLOSE_WAIT_S, Run
from mementum.sensing import expected_size, planned, watchers
from mementum.slotting import ChosenSlots
from mementum.soundness import watch_soundness
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
    emit: Emitter,
) -> Run:
    folder = root_folder(root)
    began_s = clock.monotonic()
    back = begin(opened, folder, components, feed, lasting, resume=asked.resume, fit=asked.fit, clock=clock, emit=emit)
    beginning = back.beginning
    exactness = _exactness(components, feed, emit)
    if beginning.resumed is not None:
        _tell_resumed(beginning.resumed, came_late(asked.settings, clock.monotonic() - began_s), emit)
    background = _background(opened, asked, components, back, lasting, clock, emit)
    wanted, memory = asked.settings.slots, asked.settings.budgets.memory
    slots = ChosenSlots(key_of(folder, opened.task), wanted=wanted, memory=memory, emit=emit)
    capture = _capture(asked, components, slots, clock, emit)
    try:
        capture.note(components)
        deciding = _deciding(asked, components, opened, background, back, capture, slots, clock, emit)
    except BaseException:
        for left in (*back.older, *(() if back.salvaged is None else (back.salvaged.left,))):
            left.release()  # it lies where it lay
        capture.close()
        background.close(CLOSE_WAIT_S)
        raise
    _place(back.salvaged, opened, background, clock)
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
        rolling=_rolling(asked, opened, components, background, lasting, beginning, clock, emit),
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


def _rolling(
    asked: Asked,
    opened: Opened,
    components: Sequence[Component],
    background: Background,
    lasting: Lasting,
    beginning: Beginning,
    clock: Clock,
    emit: Emit,
) -> Rolling:
    """What goes back when the training has diverged, as the settings want it."""
    settings, how = asked.settings, asked.settings.rollback
    return Rolling(
        Wishes(on_divergence=settings.on_divergence, limit=how.limit, lr_scale=how.lr_scale, skip=how.skip),
        opened=opened,
        components=components,
        background=background,
        lasting=lasting,
        fit=asked.fit,
        beginning=beginning,
        clock=clock,
        emit=emit,
    )


def _tell_resumed(resumed: Resumed, late: str | None, emit: Emitter) -> None:
    if late is not None:
        emit(Note(text=late))
    if resumed.left_out:
        emit(Note(text=f"step {resumed.step} was loaded in part: {len(resumed.left_out)} things were left out"))


def _deciding(
    asked: Asked,
    components: Sequence[Component],
    opened: Opened,
    background: Background,
    back: Back,
    capture: Capture,
    slots: ChosenSlots,
    clock: Clock,
    emit: Emitter,
) -> Deciding:
    """What watches the run and decides, on from where the last attempt was."""
    beginning = back.beginning
    for note in asked.notes:
        emit(Note(text=note))
    size = expected_size(capture.size, components)
    watched = watchers(
        asked.settings,
        components,
        opened,
        size=size,
        begun=beginning.step,
        alarm=lambda alarm: deciding.alarm(alarm),
        clock=clock,
        emit=emit,
    )

    def tell(kind: str, step: int | None, values: Mapping[str, Any]) -> None:
        background.tell(kind, step=step, values=values)

    if watched.perception is not None and watched.perception.diagnosis is not None:
        states = watch_states(
            opened,
            background,
            slots,
            beginning.resumed,
            salvaged=None if back.salvaged is None else back.salvaged.loaded.manifest,
            older=[left.stamp for left in back.older if left.stamp is not None],
            charge=watched.perception.taken,
            observes=asked.settings.observe,
            clock=clock,
            emit=emit,
        )
        watched = replace(watched, quarantine=states)
    deciding = Deciding(
        asked.policy, watched, tell=tell, append=background.record, clock=clock, emit=emit, step=beginning.step
    )
    if beginning.perceived is not None:
        deciding.apply(beginning.perceived)
    for sentence in not_kept(asked.settings, Costs(planned(asked.settings, size)).every()):
        emit(Note(text=sentence))
    emit.add(deciding.hear)
    return deciding


def _background(
    opened: Opened,
    asked: Asked,
    components: Sequence[Component],
    back: Back,
    lasting: Lasting,
    clock: Clock,
    emit: Emit,
) -> Background:
    """The background, at work on what the last run has left: slots to give back, a checkpoint to compress."""
    resumed = back.beginning.resumed
    background = Background(
        opened=opened,
        retention=asked.retention,
        write_rate=asked.settings.write_rate,
        settle_with=None if asked.settings.codec == RAW else asked.settings.codec,
        lasting=lasting,
        seq=back.seq,
        saved_seq=back.saved_seq,
        parent=resumed.checkpoint if resumed else None,
        saved_step=resumed.step if resumed and back.salvaged is None else None,
        clock=clock,
        emit=emit,
    )
    if asked.settings.on_divergence != "ignore":
        background.soundness = watch_soundness(
            components, opened.store, resumed=resumed, tell=background.tell, emit=emit
        )
    background.give_back(back.spare)
    background.stills.know(back.stills)
    if back.came_from is not None:
        background.stills.wrote(*back.came_from)
        background.stills.committed()
    background.settle_newest()  # what the last run left as it landed
    return background


def _place(salvaged: Salvaged | None, opened: Opened, background: Background, clock: Clock) -> None:
    """Make the snapshot from which the run came back, or beside which it begins anew, durable before anything else."""
    if salvaged is None:
        return

    def release() -> None:
        """Its memory is given back once it, or a later state, is a checkpoint; else the next start finds it again."""
        if background.saved_seq >= salvaged.headed.told.seq:
            salvaged.left.remove()
        elif background.ending:
            salvaged.left.release()
        else:
            background.at_end.append(release)

    background.stills.know(salvaged.headed.stills)
    snapshot = snapshot_of(salvaged, opened.store, release=release, began_s=clock.monotonic())
    background.submit(snapshot, describe=lambda snapshot, files: described(salvaged, files))


def _capture(asked: Asked, components: Sequence[Component], slots: Slots, clock: Clock, emit: Emit) -> Capture:
    def give_up(why: str) -> None:
        emit(Note(text=f'{why}: from now on the state is copied while the loop waits, as with capture="blocking"'))

    def failed(why: str) -> None:
        emit(Failed(what="finishing a snapshot in memory", error=why, kept="the save, and the checkpoints"))

    if asked.settings.capture == "blocking":
        return BlockingCapture(codec=RAW, slots=slots, reuse_frozen=True)
    capture = OverlappedCapture(
        codec=RAW,
        components=components,
        clock=clock,
        slots=slots,
        reuse_frozen=True,
        verify=asked.settings.verify_capture,
        give_up=give_up,
        failed=failed,
    )
    if capture.unhooked:
        names = ", ".join(capture.unhooked)
        emit(Note(text=f"{names}: its step does not call torch's hooks, so its state is copied while the loop waits"))
    return capture


def _emitter(on_event: Emit | Sequence[Emit]) -> Emitter:
    listeners = (
        (on_event,) if callable(on_event) else tuple(on_event) if isinstance(on_event, list | tuple) else (None,)
    )
    if not all(map(callable, listeners)):
        raise UsageError(f"on_event is a function of an event, or a list of them, got {on_event!r}")
    return Emitter(listeners)
