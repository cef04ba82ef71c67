"""The claim: which process start of a task this is, told by a create-only file that its holder keeps locked."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from mementum.clock import Clock, timestamp
from mementum.errors import KeyMissing, KeyTaken, StoreError, TaskInUse
from mementum.records import record
from mementum.storage.store import Hold, Home

KEY = re.compile(r"attempts/(\d{4,})\.json")
TRIES = 50  # another start that is looking at our file holds it for microseconds
PAUSE_S = 0.02
LOOKS = 3  # before our own file is put: enough to tell a holder from somebody who looks as well


@record
class Attempt:
    """One process start of a task, numbered from 1. Its number is greater than that of any earlier start."""

    number: int
    hold: Hold


def key_of(number: int) -> str:
    return f"attempts/{number:04d}.json"


def claim(home: Home, *, task: str, facts: Mapping[str, object], clock: Clock) -> Attempt:
    """Take the next number. TaskInUse if a living process on this host holds an earlier one.

    Of several starts at once at most one gets through: each puts its file, then locks it, then looks at the others.
    Whoever sees a higher number gives way, and whoever sees a lower one waits for its holder to have seen that. A
    lower one that stays held was there first."""
    _require_dead(home, _numbers(home), task, clock, tries=LOOKS)
    number = max(_numbers(home), default=0) + 1
    who = {
        "format": 1,
        "task": task,
        "time": timestamp(clock.now()),
        "host": platform.node(),
        "pid": os.getpid(),
        **facts,
    }
    while True:
        try:
            home.put(key_of(number), [json.dumps({**who, "attempt": number}, indent=1).encode()])
            break
        except KeyTaken:
            number += 1
    hold = _hold(home, key_of(number), clock)
    try:
        others = _numbers(home)
        if others[0] > number:
            _raise_in_use(home, others[0], task)
        _require_dead(home, [other for other in others if other < number], task, clock, tries=TRIES)
    except BaseException:
        try:
            home.delete(key_of(number))  # it never was an attempt, and no holder must ever find it above its own
        finally:
            hold.release()
        raise
    return Attempt(number=number, hold=hold)


def _numbers(home: Home) -> list[int]:
    """Of all starts so far, the newest first."""
    matches = (KEY.fullmatch(stat.key) for stat in home.list("attempts/"))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _require_dead(home: Home, numbers: Sequence[int], task: str, clock: Clock, *, tries: int) -> None:
    for number in numbers:
        left = tries
        while _is_held(home, number):
            left -= 1
            if not left:
                _raise_in_use(home, number, task)
            clock.sleep(PAUSE_S)


def _is_held(home: Home, number: int) -> bool:
    try:
        hold = home.hold(key_of(number))
    except KeyMissing:  # a start that gave way took its file with it
        return False
    if hold is None:
        return True
    hold.release()
    return False


def _raise_in_use(home: Home, number: int, task: str) -> NoReturn:
    try:
        who = json.loads(bytes(home.get(key_of(number))))
        host, pid = str(who["host"]), int(who["pid"])
    except (ValueError, KeyError, TypeError, KeyMissing):
        host, pid = "an unknown host", 0
    raise TaskInUse(task, host=host, pid=pid)


def _hold(home: Home, key: str, clock: Clock) -> Hold:
    for _ in range(TRIES):
        hold = home.hold(key)
        if hold is not None:
            return hold
        clock.sleep(PAUSE_S)
    raise StoreError(key, f"{key} was just made and somebody else holds it", next_command="try again")
