"""A call beside the caller gives back what it returned or raised, also where there is no thread for it."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from mementum.execute.beside import Beside
from mementum.testing.simdisk import PowerCut


def test_the_call_runs_beside_and_its_result_comes_back():
    go = threading.Event()

    def call() -> tuple[str, bool]:
        assert go.wait(10)
        return threading.current_thread().name, threading.current_thread().daemon

    under_way = Beside(call, name="beside-test")
    go.set()  # nobody would come here if the call were made by this thread
    assert under_way.outcome() == ("beside-test", True)
    assert under_way.outcome() == ("beside-test", True)


@pytest.mark.parametrize("error", [ValueError, OSError, PowerCut])
def test_what_it_raises_is_raised_by_the_outcome(error):
    def call() -> None:
        raise error("broken")

    under_way = Beside(call, name="beside-test")
    under_way.wait()
    with pytest.raises(error, match="broken"):
        under_way.outcome()


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_the_call_is_made_at_once_at_the_priority_of_the_caller(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    under_way = Beside(threading.get_ident, name="beside-test", nice=before + 1)
    assert under_way.outcome() == threading.get_ident()
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux")
def test_the_thread_may_step_back():
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = nice()
    assert Beside(nice, name="beside-test", nice=before + 1).outcome() == before + 1
    assert Beside(nice, name="beside-test").outcome() == nice() == before
