"""Branches: the stretches of a task's history, each from a start or a rollback to the next, with what it has saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from mementum.branching import pending
from mementum.catalog import plans
from mementum.catalog.plans import Plan
from mementum.catalog.tasks import TaskHome
from mementum.cli.reading import Contents, Held
from mementum.cli.recalling import facts_in, journals
from mementum.cli.scanning import attempt as read_attempt
from mementum.errors import MementumError
from mementum.execute import attempts
from mementum.records import Fact, record
from mementum.rooting import part_of
from mementum.storage.store import Store

Began = Literal["anew", "resumed", "rolled back", "by hand", "unknown"]


@record
class Stretch:
    """What one start has done, up to its first rollback, or from a rollback of its own to the next one.

    `source` is the checkpoint from which it went on, as it lies there now, and `source_id` its id, also where it was
    removed since. `plan` says why it went back. `until`: the step at which it ended, and `ended` how, as far as known.
    `held`: its checkpoints that are still there, in the order in which they were saved."""

    attempt: int
    number: int = 0  # of the rollback, within the attempt
    time: str | None = None
    began: Began
    source: Held | None = None
    source_id: str | None = None
    plan: Plan | None = None
    until: int | None = None
    ended: str | None = None
    held: tuple[Held, ...] = ()


@record
class History:
    """All stretches of a task, oldest first, and the plan that its next start does."""

    task: str
    stretches: tuple[Stretch, ...]
    pending: Plan | None


def history(contents: Contents, home: TaskHome) -> History:
    """The history of one task, from the files of its attempts, its journals, plans and manifests."""
    store = part_of(contents.root, home.home)
    held = sorted((one for one in contents.held if one.home == home.home), key=lambda one: one.entry.order)
    made = plans.plans(store)
    numbers = sorted({*attempts.numbers(store), *(one.entry.manifest.attempt for one in held)})
    told = journals(store)
    stretches: list[Stretch] = []
    for number in numbers:
        of_attempt = [one for one in held if one.entry.manifest.attempt == number]
        stretches += _of_attempt(store, number, of_attempt, held, made, told.get(number, ()))
    return History(task=home.task, stretches=tuple(stretches), pending=pending(store, [one.entry for one in held]))


def _of_attempt(
    store: Store,
    number: int,
    of_attempt: Sequence[Held],
    held: Sequence[Held],
    made: Sequence[Plan | plans.Cancelled],
    keys: Sequence[str],
) -> Iterator[Stretch]:
    earlier = [one for one in held if one.entry.manifest.attempt < number]
    own = [plan for plan in made if isinstance(plan, Plan) and not plan.by_hand and plan.attempt == number]
    time = read_attempt(store, attempts.key_of(number)).get("time")
    told = _told(store, keys)
    until, ended = _end(told)
    there = {one.id for one in held}
    gone = {fact.checkpoint for fact in told if fact.kind == "cost"} - there  # of this start, and removed since
    for place in range(len(own) + 1):
        mine = tuple(one for one in of_attempt if place == sum(one.entry.manifest.seq > plan.after_seq for plan in own))
        plan = own[place - 1] if place else _done_by(number, mine, held, made)
        follows = own[place] if place < len(own) else None
        source_id = plan.target if plan is not None else mine[0].entry.manifest.parent if mine else None
        first = plan is None and source_id in gone
        source = _source(source_id, held if place else earlier, before=mine[0] if mine else None)
        yield Stretch(
            attempt=number,
            number=place,
            time=time if place == 0 and isinstance(time, str) else plan.time if place and plan is not None else None,
            began="anew" if first and source is None else _began(plan, source_id, mine),
            source=source,
            source_id=None if first else source_id,
            plan=plan,
            until=follows.from_step if follows is not None else until,
            ended="it went back" if follows is not None else ended,
            held=mine,
        )


def _began(plan: Plan | None, source_id: str | None, mine: Sequence[Held]) -> Began:
    if plan is not None:
        return "by hand" if plan.by_hand else "rolled back"
    if not mine:
        return "unknown"
    return "anew" if source_id is None else "resumed"


def _done_by(
    number: int, mine: Sequence[Held], held: Sequence[Held], made: Sequence[Plan | plans.Cancelled]
) -> Plan | None:
    """The plan by which an attempt began: the newest that was there for it, unless an earlier one had done it. What the
    attempt has saved first says for certain from where it came, as long as that is there."""
    plan = plans.newest_of(one for one in made if one.attempt < number)
    if plan is None:
        return None
    source_id = mine[0].entry.manifest.parent if mine else plan.target
    if source_id != plan.target and (source_id is None or any(one.id == source_id for one in held)):
        return None
    earlier = (one.entry.manifest for one in held if one.entry.manifest.attempt < number)
    return plan if plans.is_pending(plan, ((one.seq, one.attempt) for one in earlier)) else None


def _source(id: str | None, held: Sequence[Held], *, before: Held | None) -> Held | None:
    """The checkpoint of that id; where it was removed the newest that is older than it: ids sort by time."""
    if id is None:
        return None
    found = next((one for one in held if one.id == id), None)
    if found is not None:
        return found
    older = [one for one in held if one.id < id and (before is None or one.entry.order < before.entry.order)]
    return older[-1] if older else None


def _told(store: Store, keys: Sequence[str]) -> tuple[Fact, ...]:
    """Nothing where no journal was written."""
    try:
        return facts_in(store, keys)
    except MementumError:  # this user may not read it
        return ()


def _end(told: Sequence[Fact]) -> tuple[int | None, str | None]:
    """The last step that the journal knows of, and how the attempt ended, if it told that."""
    steps = [fact.step for fact in told if fact.step is not None and fact.kind != "metrics"]
    end = next((fact for fact in reversed(told) if fact.kind == "ended"), None)
    if end is not None:
        return end.step, str(end.values.get("why", "finished"))
    return max(steps, default=None), None


@record
class Lines:
    """Which stretches stand one after the other: those that no checkpoint is the branch point of, and by the id of a
    checkpoint that is there those that went on from it aside of what came after it."""

    first: tuple[Stretch, ...]
    aside: Mapping[str, tuple[Stretch, ...]]


def lines(found: History) -> Lines:
    """A start that went on from the newest checkpoint of a stretch is no branch: it is the same line, one start later.
    One that came to nothing is where the start before it is."""
    owner = {held.id: one for one in found.stretches for held in one.held}
    first: list[Stretch] = []
    aside: dict[str, list[Stretch]] = {}
    line_of: dict[tuple[int, int], list[Stretch]] = {}
    line = first
    for one in found.stretches:
        if one.source is not None:
            before = owner[one.source.id]
            goes_on = one.plan is None and one.source is before.held[-1]
            if goes_on:
                line = line_of.get((before.attempt, before.number), first)
            else:
                line = aside.setdefault(one.source.id, [])
        elif one.began != "unknown":
            line = first
        line.append(one)
        line_of[one.attempt, one.number] = line
    return Lines(first=tuple(first), aside={id: tuple(some) for id, some in aside.items()})
