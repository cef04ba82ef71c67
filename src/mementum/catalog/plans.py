"""Plans: where a run is to go back to, as facts that are durable before anything is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mementum.catalog import facts
from mementum.errors import KeyMissing
from mementum.records import Detour, Fact, record
from mementum.storage.store import Store

FOLDER = "facts/"  # what is written outside of a journal, which has one writer only
KIND = "rollback"
CANCELLED = "rollback-cancelled"
MARK = KIND.encode()  # in every line that matters here; journals are long, and few of their lines do


@record
class Plan:
    """A rollback that was decided: go back to checkpoint `target` of step `step`, and go on from there.

    `skips` are all the detours after that step, and `lr_scale` multiplies the learning rates that were stored there.
    `number`: how many rollbacks of one trouble this one makes. Checkpoints with a sequence number above `after_seq`
    were saved when it was done. `attempt`: the newest one when the plan was made; it does the plan itself, unless it
    was made `by_hand`, for the next one. `behind`: ids of the checkpoints that are left behind, which are marked when
    it is done."""

    target: str
    step: int
    from_step: int | None = None  # the step that the run was at; None: by hand, and nothing was saved after `step`
    onset: int | None = None
    seen: int | None = None
    number: int = 1
    skips: tuple[Detour, ...] = ()
    lr_scale: float = 1.0
    after_seq: int
    attempt: int
    by_hand: bool = False
    behind: tuple[str, ...] = ()
    why: str
    time: str


@record
class Cancelled:
    """The plans before it are not to be done: those `by_hand`, or those of processes."""

    attempt: int
    by_hand: bool = False
    time: str


def write(store: Store, id: str, plan: Plan | Cancelled, others: Sequence[Fact] = ()) -> None:
    """Make a plan durable, and with it, at once or not at all, what else follows from it. `id`: new, sorts by time.

    KeyTaken if there is one of that id; StoreError if the disk refuses."""
    store.put(f"{FOLDER}{id}.json", [facts.render(fact) for fact in (_fact(plan), *others)])


def plans(store: Store) -> tuple[Plan | Cancelled, ...]:
    """All plans of a task and what took them back, oldest first."""
    found = [(plan.attempt, plan.time, key, number, plan) for key, number, plan in _read(store)]
    return tuple(plan for *_, plan in sorted(found, key=lambda one: one[:4]))


def newest(store: Store) -> Plan | None:
    """The plan that holds now, done or not; None if there is none, or all were taken back."""
    return newest_of(plans(store))


def newest_of(told: Iterable[Plan | Cancelled]) -> Plan | None:
    """Of plans and what took them back, oldest first, the one that holds. One by hand is for the attempt after those
    that were there when it was made: whatever plan one of these makes of its own meanwhile, it holds."""
    standing: dict[bool, Plan] = {}
    for one in told:
        if isinstance(one, Plan):
            standing[one.by_hand] = one
        else:
            standing.pop(one.by_hand, None)
    return max(standing.values(), key=lambda plan: (plan.attempt, plan.by_hand), default=None)


def is_pending(plan: Plan, saved: Iterable[tuple[int, int]]) -> bool:
    """Whether a plan is still to be done: nothing exact was saved since it was. `saved`: the sequence number and
    attempt of every exact checkpoint, and of every whole snapshot in memory."""
    return not any(
        seq > plan.after_seq and (attempt > plan.attempt or (attempt == plan.attempt and not plan.by_hand))
        for seq, attempt in saved
    )


def _fact(plan: Plan | Cancelled) -> Fact:
    if isinstance(plan, Cancelled):
        return Fact(kind=CANCELLED, time=plan.time, values={"attempt": plan.attempt, "by_hand": plan.by_hand})
    known = {"from_step": plan.from_step, "onset": plan.onset, "seen": plan.seen}
    values: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    values |= {
        "number": plan.number,
        "skips": [[detour.at_step, detour.groups] for detour in plan.skips],
        "lr_scale": plan.lr_scale,
        "after_seq": plan.after_seq,
        "attempt": plan.attempt,
        "by_hand": plan.by_hand,
        "behind": list(plan.behind),
        "why": plan.why,
    }
    return Fact(kind=KIND, time=plan.time, checkpoint=plan.target, step=plan.step, values=values)


def _read(store: Store) -> Iterator[tuple[str, int, Plan | Cancelled]]:
    """Every plan with the key and the line where it stands."""
    for stat in tuple(store.list(FOLDER)):
        try:
            data = bytes(store.get(stat.key))
        except KeyMissing:
            continue  # somebody tidied up since it was listed
        if MARK in data:
            for number, fact in enumerate(facts.parse(data)):
                plan = plan_of(fact)
                if plan is not None:
                    yield stat.key, number, plan


def plan_of(fact: Fact) -> Plan | Cancelled | None:
    """What a fact says of a plan; None for another fact, and for one that is not what `write` makes."""
    values = fact.values
    attempt = _whole(values, "attempt")
    if fact.kind == CANCELLED and attempt is not None:
        return Cancelled(attempt=attempt, by_hand=values.get("by_hand") is True, time=fact.time)
    number, after_seq = _whole(values, "number"), _whole(values, "after_seq")
    skips, lr_scale = _detours(values.get("skips")), _factor(values.get("lr_scale"))
    if fact.kind != KIND or fact.checkpoint is None or fact.step is None or fact.step < 0:
        return None
    if attempt is None or number is None or after_seq is None or skips is None or lr_scale is None:
        return None
    return Plan(
        target=fact.checkpoint,
        step=fact.step,
        from_step=_whole(values, "from_step"),
        onset=_whole(values, "onset"),
        seen=_whole(values, "seen"),
        number=number,
        skips=skips,
        lr_scale=lr_scale,
        after_seq=after_seq,
        attempt=attempt,
        by_hand=values.get("by_hand") is True,
        behind=_ids(values.get("behind")),
        why=str(values.get("why", "")),
        time=fact.time,
    )


def _factor(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else None


def _detours(value: object) -> tuple[Detour, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    found: list[Detour] = []
    for pair in value:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(_is_count(one) for one in pair)):
            return None
        found.append(Detour(at_step=pair[0], groups=pair[1]))
    return tuple(found)


def _ids(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def _whole(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if _is_count(value) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < facts.STEP_END
