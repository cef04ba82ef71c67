"""The past: how the attempts of a task before this one have ended, from their files and journals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from mementum.catalog import facts
from mementum.errors import MementumError
from mementum.execute.attempts import key_of, numbers
from mementum.execute.identity import Identity, parse
from mementum.perceive.hazards import Ended, How
from mementum.records import Fact, record
from mementum.storage.store import Store

ATTEMPTS_MAX = 50  # whose ends tell the failure rate: of older ones, bench/policies.py gains nothing and loses a little


@record
class Began:
    """An attempt, as its file says: who it was, and when it began, in seconds since 1970."""

    who: Identity
    at_s: float


def ended_before(store: Store, attempt: int) -> tuple[Ended, ...]:
    """How attempts before this one have ended, the newest first. One that cannot be read is left out.

    An attempt that told nothing has ended with the last fact in its journal, as far as anybody knows."""
    found: list[Ended] = []
    after = _began(store, attempt)
    earlier = [number for number in numbers(store) if number < attempt]
    for number in earlier[:ATTEMPTS_MAX]:
        began, told = _began(store, number), _told(store, number)
        if began is not None and told:
            ended_s = _seconds(told[-1].time)
            duration_s = 0.0 if ended_s is None else max(0.0, ended_s - began.at_s)
            found.append(Ended(duration_s=duration_s, how=_how(told, began, after)))
        after = began
    return tuple(found)


def _how(told: Sequence[Fact], began: Began, after: Began | None) -> How:
    if any(fact.kind == "ended" for fact in told):
        stopped = any(fact.kind == "notice" and fact.values.get("stops") is True for fact in told)
        return "preempted" if stopped else "finished"
    if after is None or began.who.host == after.who.host:
        rebooted = after is not None and None not in (began.who.boot, after.who.boot)
        return "rebooted" if rebooted and after is not None and began.who.boot != after.who.boot else "killed"
    return "moved"


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
