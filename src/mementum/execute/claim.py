"""The claim: which process start of a task this is, told by a create-only file that its holder keeps locked."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping

from mementum.clock import Clock, timestamp
from mementum.errors import KeyTaken, StoreError, TaskInUse
from mementum.records import record
from mementum.storage.store import Hold, Home

KEY = re.compile(r"attempts/(\d{4,})\.json")
TRIES = 50  # another start that is looking at our file holds it for microseconds
PAUSE_S = 0.02


@record
class Attempt:
    """One process start of a task, numbered from 1. Its number is greater than that of any earlier start."""

    number: int
    hold: Hold


def key_of(number: int) -> str:
    return f"attempts/{number:04d}.json"


def claim(home: Home, *, task: str, facts: Mapping[str, object], clock: Clock) -> Attempt:
    """Take the next number. TaskInUse if a living process on this host holds the newest one."""
    newest = _newest(home)
    if newest:
        _require_dead(home, newest, task)
    number = newest + 1
    who = {
        "format": 1,
        "task": task,
        "attempt": number,
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
    if _newest(home) > number:  # two starts at once: the higher number goes on
        hold.release()
        _require_dead(home, _newest(home), task)
        raise StoreError(key_of(number), f"another start of task {task!r} overtook this one", next_command="try again")
    return Attempt(number=number, hold=hold)


def _newest(home: Home) -> int:
    numbers = [int(match[1]) for stat in home.list("attempts/") if (match := KEY.fullmatch(stat.key))]
    return max(numbers, default=0)


def _require_dead(home: Home, number: int, task: str) -> None:
    hold = home.hold(key_of(number))
    if hold is not None:
        hold.release()
        return
    try:
        who = json.loads(bytes(home.get(key_of(number))))
        host, pid = str(who["host"]), int(who["pid"])
    except (ValueError, KeyError, TypeError):
        host, pid = "an unknown host", 0
    raise TaskInUse(task, host=host, pid=pid)


def _hold(home: Home, key: str, clock: Clock) -> Hold:
    for _ in range(TRIES):
        hold = home.hold(key)
        if hold is not None:
            return hold
        clock.sleep(PAUSE_S)
    raise StoreError(key, f"{key} was just made and somebody else holds it", next_command="try again")
