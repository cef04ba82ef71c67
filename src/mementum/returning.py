"""Returning: where a run begins, at nothing or at the newest state that can be had, and everything live is put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from shlex import quote

from mementum.background import Lasting
from mementum.catalog import facts, plans
from mementum.catalog.plans import Plan
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, timestamp
from mementum.errors import CheckpointDamaged, NothingToResume, StoreError
from mementum.events import Emit, Failed, Note, PhaseBegan, PhaseEnded
from mementum.execute.claim import require_newest
from mementum.execute.halves import clear_halves
from mementum.execute.head import Still
from mementum.execute.leftovers import Left
from mementum.fetching import bring_best, bring_this, tell_unread
from mementum.live import feeds
from mementum.live.component import Component
from mementum.live.fitting import Fit
from mementum.mending import Mending, mend_at_start, tell_at_start
from mementum.opening import Opened
from mementum.ram import Salvaged, salvage, still_wanted
from mementum.records import Damage, Entry, Fact, Granularity, Index, record
from mementum.recover.load import Loaded
from mementum.restoring import Beginning, restore, rolled_back
from mementum.resuming import Found, newest_whole, read_entry
from mementum.rolling import BEGINS_AGAIN
from mementum.timeline import mark_left_behind

SHOWN_MAX = 10  # pieces of damage in a message; `mementum doctor` tells all of it


@record
class Back:
    """Where the run begins, the highest sequence number so far, that of the newest durable checkpoint, the snapshot in
    memory that is to be placed, those whose memory is to be given back, and those that a later diagnosis may need."""

    beginning: Beginning
    seq: int
    saved_seq: int
    salvaged: Salvaged | None = None
    spare: tuple[Left, ...] = ()
    older: tuple[Left, ...] = ()  # newest first
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
    every checkpoint, if it is newer; its slot is held until it is placed. What a tier alone has is fetched first."""
    fetched = dict(_brought_home(opened, resume, clock, emit))
    entries = opened.catalog.entries(opened.home)
    everywhere = (*entries, *opened.places.entries(opened.store))
    seq, saved_seq = _newest_numbers(entries, everywhere)
    began_s = clock.monotonic()
    if resume != "never":
        emit(PhaseBegan(phase="resume"))
    spare: list[Left] = []
    load = resume != "never"
    salvaged = salvage(
        root, opened.task, store=opened.store, entries=entries, clock=clock, emit=emit, load=load, spare=spare
    )
    try:
        if salvaged is not None:
            seq = max(seq, salvaged.loaded.manifest.seq)
        if resume == "never":
            nothing = Beginning(values={})
            return Back(beginning=nothing, seq=seq, saved_seq=saved_seq, salvaged=salvaged, spare=tuple(spare))
        found, plan, leaves = _chosen(opened, everywhere, salvaged, resume, fetched, clock, emit)
        if found is None:
            emit(PhaseEnded(phase="resume", duration_s=clock.monotonic() - began_s))
            return Back(beginning=Beginning(values={}), seq=seq, saved_seq=saved_seq, spare=tuple(spare))
        tier = "ram" if salvaged and not leaves else fetched.get(found.loaded.manifest.id, "ssd")
        beginning = restore(found, components, feed, lasting, fit, began_s=began_s, clock=clock, tier=tier, plan=plan)
        lefts = [*spare, *(() if salvaged is None else (salvaged.left,))]
        older = still_wanted(lefts, found.loaded.manifest, task=opened.task, store=opened.store, entries=entries)
    except BaseException:
        _let_lie(salvaged, spare)
        raise
    emit(PhaseEnded(phase="resume", id=found.loaded.manifest.id, duration_s=clock.monotonic() - began_s))
    if plan is not None and leaves:
        mark_left_behind(opened, plan, entries, clock=clock, emit=emit)
        _given_up(salvaged, spare, emit)
        salvaged = None
    _tell_planned(plan, beginning, feed, emit)
    back = Back(
        beginning=beginning,
        seq=seq,
        saved_seq=saved_seq,
        spare=tuple(left for left in spare if left not in older),
        older=older,
    )
    return _with_memory(back, salvaged, found)


def _mending(opened: Opened, clock: Clock, emit: Emit) -> Mending:
    tell = tell_at_start(opened, clock=clock, emit=emit)
    look = partial(require_newest, opened.store, opened.attempt.number, task=opened.task, clock=clock)
    return Mending(opened, tell=tell, require_newest=look, emit=emit)


def _brought_home(opened: Opened, resume: str, clock: Clock, emit: Emit) -> Mapping[str, str]:
    """The tiers by the ids of what was fetched from them, after what is damaged here was put right; and half copies
    that nobody goes on with are taken away."""
    fetched: Mapping[str, str] = {}
    if resume != "never":
        mend_at_start(opened, _mending(opened, clock, emit))
        entries = opened.catalog.entries(opened.home)
        plan = _pending(opened, (*entries, *opened.places.entries(opened.store)), None)
        if plan is None:
            tell_unread(opened, emit)
            fetched = bring_best(opened, entries, clock=clock, emit=emit)
        else:
            fetched = bring_this(opened, plan.target, entries, clock=clock, emit=emit)
    try:
        clear_halves(opened.store, lambda id: False)
    except StoreError as error:  # they take room, and harm nothing
        emit(Failed(what="clearing half copies", error=error.message, kept="all checkpoints"))
    return fetched


def _newest_numbers(entries: Sequence[Entry], everywhere: Sequence[Entry]) -> tuple[int, int]:
    """The highest sequence number of all, also of what a tier keeps, since what is saved from now on comes after it;
    and that of what is exact here."""
    exact = (entry.manifest.seq for entry in entries if entry.manifest.granularity is Granularity.FULL)
    return max((entry.manifest.seq for entry in everywhere), default=0), max(exact, default=0)


def _chosen(
    opened: Opened,
    everywhere: Sequence[Entry],
    salvaged: Salvaged | None,
    resume: str,
    fetched: dict[str, str],
    clock: Clock,
    emit: Emit,
) -> tuple[Found | None, Plan | None, bool]:
    """From what the run goes on, by which plan, and whether that plan leaves a branch now. `everywhere`: what is in the
    root and on tiers: a plan that was followed there is done."""
    plan = _pending(opened, everywhere, salvaged)
    entries = opened.catalog.entries(opened.home)
    found = (
        _of_plan(plan, opened, entries) or _found(salvaged) or _from_disk(opened, entries, resume, fetched, clock, emit)
    )
    return (found, _done_before(found, opened), False) if plan is None else (found, plan, True)


def _with_memory(back: Back, salvaged: Salvaged | None, found: Found) -> Back:
    """With what is to become of the snapshot in memory, if there is one, and where frozen tensors lie."""
    if salvaged is not None and salvaged.durable:
        return replace(back, spare=(*back.spare, salvaged.left), stills=salvaged.headed.stills)
    if salvaged is not None:  # its tensors were given away, or copied
        salvaged = replace(salvaged, loaded=replace(salvaged.loaded, tensors={}))
    came_from = None if found.loaded.index is None else (found.folder, found.loaded.index)
    return replace(back, salvaged=salvaged, came_from=came_from)


def _let_lie(salvaged: Salvaged | None, spare: Sequence[Left]) -> None:
    """This start has failed: the next one finds all whole snapshots where they were."""
    if salvaged is not None:
        salvaged.left.release()
    for left in spare:
        if left.stamp is None:
            left.remove()
        else:
            left.release()


def _found(salvaged: Salvaged | None) -> Found | None:
    if salvaged is None:
        return None
    return Found(loaded=salvaged.loaded, folder=salvaged.left.path, passed_over=())


def _pending(opened: Opened, everywhere: Sequence[Entry], salvaged: Salvaged | None) -> Plan | None:
    """The rollback that was decided and not done, if any: that of a process that died, or one by hand."""
    plan = plans.newest(opened.store)
    saved = [entry.manifest for entry in everywhere if entry.manifest.granularity is Granularity.FULL]
    if salvaged is not None:
        saved.append(salvaged.loaded.manifest)
    if plan is None or not plans.is_pending(plan, ((manifest.seq, manifest.attempt) for manifest in saved)):
        return None
    return plan


def _of_plan(plan: Plan | None, opened: Opened, entries: Sequence[Entry]) -> Found | None:
    """The checkpoint that a plan, if there is one, goes back to. NothingToResume or CheckpointDamaged if it cannot be
    had: another one would not be what was decided."""
    if plan is None:
        return None
    kept = "all checkpoints and the plan, as they are; nothing was changed"
    next_command = f"mementum rollback ROOT {quote(opened.task)} --to another one, or --cancel"
    entry = next((entry for entry in entries if entry.manifest.id == plan.target), None)
    if entry is None:
        told = f"task {opened.task!r} is to go back to checkpoint {plan.target} of step {plan.step} ({plan.why})"
        raise NothingToResume(f"{told}, which is not there any more", kept=kept, next_command=next_command)
    result = read_entry(entry, opened.store)
    if not isinstance(result, Loaded):
        damage: Sequence[Damage] = result
        found = [(one.key, f"{one.what}; a rollback is to go back to it") for one in damage]
        raise CheckpointDamaged(plan.target, found, kept=kept, next_command=next_command)
    return Found(loaded=result, folder=entry.folder, passed_over=())


def _done_before(found: Found | None, opened: Opened) -> Plan | None:
    """The plan by which an earlier attempt went on from this same checkpoint, if one did. What has come of that is not
    clean, or gone: without the plan it would all come again."""
    plan = None if found is None else plans.newest(opened.store)
    return plan if plan is not None and found is not None and plan.target == found.loaded.manifest.id else None


def _tell_planned(plan: Plan | None, beginning: Beginning, feed: feeds.Feed | None, emit: Emit) -> None:
    if plan is None:
        return
    emit(rolled_back(plan, beginning.course))
    if plan.skips and feed is not None and not feeds.tells_place(feed):
        emit(Note(text=BEGINS_AGAIN))


def _given_up(salvaged: Salvaged | None, spare: list[Left], emit: Emit) -> None:
    """A snapshot in memory is of the branch that a plan has left: nothing of it stays, its memory is given back."""
    if salvaged is not None:
        spare.append(salvaged.left)
        if not salvaged.durable:
            step = salvaged.loaded.manifest.step
            emit(Note(text=f"a snapshot of step {step} in memory is of the branch that was left, and is given up"))


def _from_disk(
    opened: Opened, entries: Sequence[Entry], resume: str, fetched: dict[str, str], clock: Clock, emit: Emit
) -> Found | None:

    def mark(id: str, what: str) -> None:
        fact = Fact(kind="damaged", time=timestamp(clock.now()), checkpoint=id, values={"what": what})
        try:
            opened.store.append(opened.journal, facts.render(fact))
            refresh(opened.catalog, opened.home, opened.store)
        except StoreError as error:  # a full disk must not keep a run from coming back from an older checkpoint
            emit(Failed(what=f"marking {id} as damaged", error=error.message, kept="all checkpoints"))

    mending = _mending(opened, clock, emit)

    def mend(entry: Entry) -> Entry | None:
        """It, put right, or what tiers have now that is better than all that is left here."""
        mended = mending.mend_here(entry)
        if mended is not None:
            return mended
        known = [replace(one, damaged="read") if one.manifest.id == entry.manifest.id else one for one in there()]
        more = bring_best(opened, known, clock=clock, emit=emit)
        fetched.update(more)
        return next((one for one in there() if one.manifest.id in more), None)

    def there() -> Sequence[Entry]:
        return opened.catalog.entries(opened.home)

    found = newest_whole(entries, opened.store, emit=emit, mark=mark, mend=mend)
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
