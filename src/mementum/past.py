"""The past: how the attempts of a task before this one have ended, and which alarms foretold it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime

from mementum.catalog import facts
from mementum.errors import MementumError
from mementum.execute.attempts import key_of, numbers
from mementum.execute.identity import Identity, parse
from mementum.format import vitals
from mementum.perceive.calibration import Seen
from mementum.perceive.hazards import Ended, How
from mementum.records import Fact, Reach, Trouble, record
from mementum.storage.store import Store

ATTEMPTS_MAX = 50  # that are looked at: older ones have faded to half a per cent (`perceive.hazards.FADES`)
FAILED = frozenset({"killed", "rebooted", "moved"})
OF_ITS_OWN = frozenset({"finished", "told to stop", "KeyboardInterrupt", "SystemExit"})  # ends that are no failures


@record
class Past:
    """Attempts that have ended, the oldest first, and by trouble how many warnings they had, and how many of them were
    right."""

    ended: tuple[Ended, ...] = ()
    seen: Mapping[Trouble, Seen] = field(default_factory=dict)


@record
class Began:
    """An attempt, as its file says: who it was, and when it began, in seconds since 1970."""

    who: Identity
    at_s: float


def past_of(store: Store, attempt: int) -> Past:
    """What the attempts before this one tell. One that cannot be read is left out.

    An attempt that told nothing has ended with the last fact in its journal, as far as anybody knows. An alarm was
    right if the process then failed before its horizon had passed; the last recorded vital signs say how long it
    lived."""
    found: list[Ended] = []
    seen: dict[Trouble, Seen] = {}
    after = _began(store, attempt)
    earlier = [number for number in numbers(store) if number < attempt]
    for number in earlier[:ATTEMPTS_MAX]:
        began, told = _began(store, number), _told(store, number)
        if began is not None and told:
            ended_s = _seconds(told[-1].time)
            duration_s = 0.0 if ended_s is None else max(0.0, ended_s - began.at_s)
            how = _how(told, began, after)
            found.append(Ended(duration_s=duration_s, how=how))
            _count(seen, store, number, told, failed=how in FAILED)
        after = began
    return Past(ended=tuple(reversed(found)), seen=seen)


def written_before(
    store: Store, attempt: int, *, since_s: float, far: Collection[str] = ()
) -> tuple[tuple[float, Reach, float], ...]:
    """When, in seconds since 1970, and how many bytes the attempts before this one have written to the ssd since then
    (REBOOT), and sent to tiers that outlive the machine (MACHINE), whose names are `far`."""
    found: list[tuple[float, Reach, float]] = []
    for number in (one for one in numbers(store) if one < attempt):
        told = _told(store, number)
        ended_s = _seconds(told[-1].time) if told else None
        if ended_s is not None and ended_s < since_s:
            break  # those before it have ended earlier
        for fact in told:
            at_s, taken = _seconds(fact.time), _taken(fact, far)
            if taken is not None and at_s is not None and at_s >= since_s:
                found.append((at_s, *taken))
    return tuple(sorted(found))


def _taken(fact: Fact, far: Collection[str]) -> tuple[Reach, float] | None:
    """The place to which bytes went, and how many."""
    reach, size = Reach.REBOOT, fact.values.get("bytes")
    if fact.kind == "placed" and fact.values.get("tier") in far:
        reach, size = Reach.MACHINE, fact.values.get("sent", fact.values.get("size"))
    elif fact.kind != "cost":
        return None
    return (reach, float(size)) if isinstance(size, int | float) and size > 0 else None


def _how(told: Sequence[Fact], began: Began, after: Began | None) -> How:
    end = next((fact for fact in reversed(told) if fact.kind == "ended"), None)
    if end is not None:
        if any(fact.kind == "notice" and fact.values.get("stops") is True for fact in told):
            return "preempted"
        return "finished" if end.values.get("why", "finished") in OF_ITS_OWN else "killed"  # by an exception
    if after is None or began.who.host == after.who.host:
        rebooted = after is not None and None not in (began.who.boot, after.who.boot)
        return "rebooted" if rebooted and after is not None and began.who.boot != after.who.boot else "killed"
    return "moved"


def _count(seen: dict[Trouble, Seen], store: Store, number: int, told: Sequence[Fact], *, failed: bool) -> None:
    """Add an attempt's alarms of troubles that can end a process."""
    lived: vitals.Rows | None = None
    for trouble, fact in _warnings(told):
        right = failed and _lasted_s(fact, told[-1]) <= _horizon_s(fact)
        if right:  # as far as the journal knows, in which minutes can pass without a fact
            lived = _rows(store, number) if lived is None else lived
            right = _lived_s(fact, lived) <= _horizon_s(fact)
        before = seen.get(trouble, Seen())
        seen[trouble] = Seen(raised=before.raised + 1, right=before.right + right)


def _warnings(told: Sequence[Fact]) -> list[tuple[Trouble, Fact]]:
    """Alarms, of those that are one warning the one that counts, as `Calibration` does."""
    found: list[tuple[Trouble, Fact]] = []
    newest: dict[Trouble, int] = {}
    for fact in told:
        trouble = _trouble(fact)
        if trouble is None:
            continue
        place = newest.get(trouble)
        if place is not None and _lasted_s(found[place][1], fact) <= _horizon_s(found[place][1]):
            if _claimed(fact) > _claimed(found[place][1]):
                found[place] = (trouble, fact)
        else:
            newest[trouble] = len(found)
            found.append((trouble, fact))
    return found


def _trouble(fact: Fact) -> Trouble | None:
    """What an alarm that claimed a chance was about; None for any other fact."""
    if fact.kind != "alarm" or not _horizon_s(fact) > 0:
        return None
    name = fact.values.get("trouble")
    return next((one for one in Trouble if one == name and one.is_crash), None)


def _horizon_s(fact: Fact) -> float:
    value = fact.values.get("horizon_s")
    return float(value) if isinstance(value, int | float) else 0.0


def _claimed(fact: Fact) -> float:
    value = fact.values.get("claimed")
    return float(value) if isinstance(value, int | float) else 0.0


def _lasted_s(alarm: Fact, later: Fact) -> float:
    raised_s, later_s = _seconds(alarm.time), _seconds(later.time)
    return 0.0 if raised_s is None or later_s is None else later_s - raised_s


def _lived_s(alarm: Fact, rows: vitals.Rows) -> float:
    """From the alarm's step to the last step that was recorded."""
    after = [step for step in rows if alarm.step is not None and step >= alarm.step]
    return rows[max(after)].at_s - rows[min(after)].at_s if after else 0.0


def _rows(store: Store, number: int) -> vitals.Rows:
    try:
        return vitals.parse(store.get(vitals.key(number))).rows
    except MementumError:
        return vitals.Rows()


def _began(store: Store, number: int) -> Began | None:
    try:
        fields = json.loads(bytes(store.get(key_of(number))))
        who, at_s = parse(fields), _seconds(fields["time"])
    except (ValueError, TypeError, KeyError, RecursionError, MementumError):
        return None
    return None if who is None or at_s is None else Began(who=who, at_s=at_s)


def _told(store: Store, number: int) -> tuple[Fact, ...]:
    try:
        return facts.parse(store.get(facts.journal_key(number)))
    except MementumError:
        return ()


def _seconds(time: object) -> float | None:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return None
