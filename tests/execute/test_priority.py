"""A thread that steps back does so alone, and what is not allowed changes nothing."""

from __future__ import annotations

import errno
import os
import sys
import threading

import pytest

from mementum.execute import priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux")


def inside(*calls: object) -> tuple[int, int]:
    """The nice value and the scheduler of a thread that made the calls."""
    found: list[tuple[int, int]] = []

    def run() -> None:
        for call in calls:
            assert callable(call)
            call()
        found.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_only_the_calling_thread_steps_back():
    before = inside()
    assert inside(priority.lower) == (priority.LOWEST, before[1])
    assert inside(lambda: priority.lower(before[0] + 1)) == (before[0] + 1, before[1])
    assert inside(priority.idle) == (priority.LOWEST, os.SCHED_IDLE)
    assert inside() == before


def test_where_it_is_not_allowed_the_thread_stays_as_it_is(monkeypatch):
    def forbidden(*arguments: object) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    before = inside()
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert inside(priority.idle) == (priority.LOWEST, before[1])
    monkeypatch.setattr(os, "setpriority", forbidden)
    assert inside(priority.idle, priority.lower) == before
