"""Returning: where a run begins, at nothing or at the newest state that can be had, and everything live is put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mementum.background import Lasting
from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, timestamp
from mementum.errors import CheckpointDamaged, MementumError, NothingToResume, StateMismatch, StoreError
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded
from mementum.execute.head import Still
from mementum.execute.leftovers import Left
from mementum.live import feeds, rng
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.opening import Opened
from mementum.ram import Salvaged, salvage
from mementum.records import Entry, Fact, Granularity, Index, Resumed, record
from mementum.resuming import REFUSALS, Found, newest_whole, put_back, versions_that_differ
from mementum.run import Beginning

SHOWN_MAX = 10  # pieces of damage in a message; `mementum doctor` tells all of it


@record
class Back:
    """Where the run begins, the highest sequence number so far, that of the newest durable checkpoint, the snapshot in
    memory that is to be placed, and those whose memory is to be given back."""

    beginning: Beginning
    seq: int
    saved_seq: int
    salvaged: Salvaged | None = None
    spare: tuple[Left, ...] = ()
    came_from: tuple[str, Index] | None = None  # the checkpoint's folder and index, if it lay on a disk
    stills: Mapping[str, Still] = field(default_factory=dict)  # files of frozen tensors that the snapshot named


def begin(
    opened: Opened,
    root: Path,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    *,
    resume: str,
    fit: Fit,
    clock: Clock,
    emit: Emit,
) -> Back:
    """Where the run begins. Everything live is put back on return. A snapshot that outlived its process comes before
    every checkpoint, if it is newer; its slot is held until it is placed."""
    entries = opened.catalog.entries(opened.home)
    seq = max((entry.manifest.seq for entry in entries), default=0)
    exact = (entry.manifest.seq for entry in entries if entry.manifest.granularity is Granularity.FULL)
    saved_seq = max(exact, default=0)
    began_s = clock.monotonic()
    if resume != "never":
        emit(PhaseBegan(phase="resume"))
    spare: list[Left] = []
    salvaged = salvage(
        root, opened.task, store=opened.store, entries=entries, emit=emit, load=resume != "never", spare=spare
    )
    try:
        if salvaged is not None:
            seq = max(seq, salvaged.loaded.manifest.seq)
        if resume == "never":
            nothing = Beginning(values={})
            return Back(beginning=nothing, seq=seq, saved_seq=saved_seq, salvaged=salvaged, spare=tuple(spare))
        found = _found(salvaged) or _from_disk(opened, entries, resume, clock, emit)
        if found is None:
            emit(PhaseEnded(phase="resume", duration_s=clock.monotonic() - began_s))
            return Back(beginning=Beginning(values={}), seq=seq, saved_seq=saved_seq, spare=tuple(spare))
        beginning = _put_back(found, components, feed, lasting, fit, began_s, clock, tier="ram" if salvaged else "ssd")
    except BaseException:
        if salvaged is not None:
            salvaged.left.release()  # it lies where it lay
        for left in spare:
            left.remove()
        raise
    emit(PhaseEnded(phase="resume", id=found.loaded.manifest.id, duration_s=clock.monotonic() - began_s))
    if salvaged is not None and salvaged.durable:
        stills = salvaged.headed.stills
        return Back(beginning=beginning, seq=seq, saved_seq=saved_seq, spare=(*spare, salvaged.left), stills=stills)
    if salvaged is not None:  # its tensors were given away, or copied
        salvaged = replace(salvaged, loaded=replace(salvaged.loaded, tensors={}))
    return Back(
        beginning=beginning,
        seq=seq,
        saved_seq=saved_seq,
        salvaged=salvaged,
        spare=tuple(spare),
        came_from=None if found.loaded.index is None else (found.folder, found.loaded.index),
    )


def _found(salvaged: Salvaged | None) -> Found | None:
    if salvaged is None:
        return None
    return Found(loaded=salvaged.loaded, folder=salvaged.left.path, passed_over=())


def _from_disk(opened: Opened, entries: Sequence[Entry], resume: str, clock: Clock, emit: Emit) -> Found | None:

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
        if resume == "must":
            raise NothingToResume(
                f"task {opened.task!r} has no checkpoint that resumes exactly",
                next_command='begin it with resume="auto", or look with `mementum ls ROOT`',
            )
    return found


def _put_back(
    found: Found,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    fit: Fit,
    began_s: float,
    clock: Clock,
    *,
    tier: str,
) -> Beginning:
    try:
        return _put_all_back(found, components, feed, lasting, fit, began_s, clock, tier)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as cause:
        if isinstance(cause, MementumError):
            raise
        id = found.loaded.manifest.id
        what = f"it is no context of ours: {type(cause).__name__}: {cause}"
        raise CheckpointDamaged(id, [(f"{found.folder}/context", what)], kept="all live objects") from cause


def _put_all_back(
    found: Found,
    components: Sequence[Component],
    feed: feeds.Feed | None,
    lasting: Lasting,
    fit: Fit,
    began_s: float,
    clock: Clock,
    tier: str,
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
        tier=tier,
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
        perceived=context.get("perceived"),
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
