"""Equipping: what a run works with, made as the settings want it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mementum.asking import Asked
from mementum.background import Background, Lasting
from mementum.clock import Clock
from mementum.deciding import Deciding
from mementum.events import Emit, Emitter, Event, Failed, Note, Placed, Unplaced
from mementum.execute.capture import BlockingCapture, Capture, Slots
from mementum.execute.claim import require_newest
from mementum.execute.overlap import OverlappedCapture
from mementum.execute.plan import RAW
from mementum.live.component import Component
from mementum.mending import Mending
from mementum.opening import Opened
from mementum.perceive.costs import Costs
from mementum.perceive.onward import Onward
from mementum.policies import not_kept
from mementum.quarantine import watch_states
from mementum.ram import Salvaged, described, snapshot_of
from mementum.records import Reach
from mementum.restoring import Beginning
from mementum.returning import Back
from mementum.rolling import Rolling, Wishes
from mementum.sensing import expected_size, planned, watchers
from mementum.slotting import ChosenSlots
from mementum.soundness import watch_soundness
from mementum.tending import Tending


def rolling_for(
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


def deciding_for(
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
    if watched.memory is not None:
        background.memory_seen = watched.memory.percents
    perception = watched.perception
    if perception is not None:
        if watched.sending is not None:
            background.hold_sending_to(watched.sending, lambda: perception.at_s)
        emit.add(partial(_told_onward, perception.onward))
    return deciding


def _told_onward(onward: Onward, event: Event) -> None:
    """What becomes of copies on tiers that outlive the machine."""
    if isinstance(event, Placed | Unplaced) and event.reach is Reach.MACHINE:
        onward.told(event.id, there=isinstance(event, Placed))


def background_for(
    opened: Opened,
    asked: Asked,
    components: Sequence[Component],
    back: Back,
    lasting: Lasting,
    clock: Clock,
    emit: Emit,
) -> Background:
    """The background, at work on what the last run has left: slots to give back, checkpoints to compress and place."""
    resumed = back.beginning.resumed
    background = Background(
        opened=opened,
        retention=asked.retention,
        write_rate=asked.settings.write_rate,
        marks=asked.settings.watermarks,
        settle_with=None if asked.settings.codec == RAW else asked.settings.codec,
        best_of=asked.settings.keep_best_of,
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
    if not asked.settings.observe:
        background.forward(None)  # and what it could not bring to the tiers
        _tend(background, opened, asked, clock, emit)
    if resumed is not None:
        values = {"seconds": resumed.duration_s, "tier": resumed.tier}
        background.tell("restored", checkpoint=resumed.checkpoint, step=resumed.step, values=values)
    return background


def _tend(background: Background, opened: Opened, asked: Asked, clock: Clock, emit: Emit) -> None:
    """Have checkpoints read back, and mended, while the training goes on."""
    if asked.settings.scrub is None:
        return

    def tell(kind: str, id: str, step: int, values: Mapping[str, Any]) -> None:
        background.tell(kind, checkpoint=id, step=step, values=values)

    look = partial(require_newest, opened.store, opened.attempt.number, task=opened.task, clock=clock)
    mending = Mending(opened, tell=tell, require_newest=look, turn=background.turn, emit=emit)
    tending = Tending(
        opened, asked.settings.scrub, mending, tell=tell, over=lambda: background.superseded, clock=clock, emit=emit
    )
    background.at_end.append(tending.stop)
    tending.start()


def place_salvaged(salvaged: Salvaged | None, opened: Opened, background: Background, clock: Clock) -> None:
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


def capture_for(asked: Asked, components: Sequence[Component], slots: Slots, clock: Clock, emit: Emit) -> Capture:
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
