"""One living process at a time holds a task; a killed one lets go, and of starts at once at most one gets through."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mementum.clock import ManualClock
from mementum.errors import StoreError, TaskInUse
from mementum.execute.attempts import key_of
from mementum.execute.claim import CLEARS_S_MAX, Attempt, claim, withdraw
from mementum.execute.identity import identify
from mementum.records import Buffer
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Hold, Stat
from mementum.testing.simdisk import SimDisk

NOBODY = 2**22 + 1  # more than any process id of Linux
IMPORTS = """
import sys
from mementum.clock import SystemClock
from mementum.errors import MementumError
from mementum.execute.claim import claim
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

def take(folder):
    return claim(LocalStore(PosixDisk(), folder), task="t", facts={}, clock=SystemClock())

held = []
"""
HOLDER = """
held.append(take(sys.argv[1]))
print(held[0].number, flush=True)
sys.stdin.read()
"""
CONTENDER = """
print("ready", flush=True)
for line in sys.stdin:
    try:
        held.append(take(line.strip()))
        print("holds", held[-1].number, flush=True)
    except MementumError as error:
        print(type(error).__name__, getattr(error, "pid", 0), flush=True)
"""


def process(program: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", IMPORTS + program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def start(home: LocalStore, **facts: object) -> Attempt:
    return claim(home, task="t", facts=facts, clock=ManualClock())


def on_disk(folder: Path) -> LocalStore:
    return LocalStore(PosixDisk(), str(folder))


def numbers(home: LocalStore) -> list[str]:
    return [stat.key for stat in home.list("attempts/")]


def test_starts_are_numbered_from_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        attempt = start(on_disk(tmp_path))
        assert attempt.number == number
        attempt.hold.release()
    assert numbers(on_disk(tmp_path)) == ["attempts/0001.json", "attempts/0002.json", "attempts/0003.json"]


def test_the_file_says_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    me = identify({}, lease_s=None)
    assert me.boot is not None
    assert me.started is not None
    start(on_disk(tmp_path), versions={"torch": "2"})
    assert json.loads(bytes(on_disk(tmp_path).get("attempts/0001.json"))) == {
        "format": 1,
        "task": "t",
        "attempt": 1,
        "time": "2023-11-14T22:13:20.000000Z",
        "host": platform.node(),
        "pid": os.getpid(),
        "boot": me.boot,
        "started": me.started,
        "versions": {"torch": "2"},
    }


def test_a_held_task_is_refused_with_host_and_pid_and_nothing_is_left(tmp_path: Path) -> None:
    held = start(on_disk(tmp_path))
    with pytest.raises(TaskInUse) as caught:
        start(on_disk(tmp_path))
    assert (caught.value.task, caught.value.host, caught.value.pid) == ("t", platform.node(), os.getpid())
    assert str(os.getpid()) in str(caught.value)
    assert numbers(on_disk(tmp_path)) == ["attempts/0001.json"]
    held.hold.release()
    assert start(on_disk(tmp_path)).number == 2


def test_a_holder_that_cannot_be_read_is_still_a_holder() -> None:
    home = LocalStore(SimDisk(), "root")
    home.put("attempts/0004.json", [b"torn"])
    held = home.hold("attempts/0004.json")
    assert held is not None
    with pytest.raises(TaskInUse, match="an unknown host") as caught:
        start(home)
    assert "kill" not in str(caught.value)  # `kill 0` would end the reader's own processes
    held.release()
    assert start(home).number == 5


def test_a_holder_of_an_older_number_is_found_behind_a_dead_newer_one() -> None:
    """Else a start that gave way would hide the one that it gave way to."""
    home = LocalStore(SimDisk(), "root")
    held = start(home)
    home.put(key_of(2), [json.dumps({"host": "h", "pid": NOBODY}).encode()])
    with pytest.raises(TaskInUse) as caught:
        start(home)
    assert caught.value.pid == os.getpid()
    held.hold.release()
    assert start(home).number == 3


@pytest.mark.parametrize("name", ["0002.json.bak", "x.json", "2.json", "-0002.json", "0009/a.json"])
def test_other_files_are_no_attempts(name: str) -> None:
    home = LocalStore(SimDisk(), "root")
    home.put(f"attempts/{name}", [b""])
    assert start(home).number == 1


def test_more_than_four_digits_are_counted_on() -> None:
    home = LocalStore(SimDisk(), "root")
    home.put("attempts/9999.json", [b""])
    for expected in (10_000, 10_001):
        attempt = start(home)
        assert attempt.number == expected
        attempt.hold.release()


def test_a_passing_look_at_the_new_file_is_waited_for() -> None:
    home = LocalStore(SimDisk(), "root")

    class Looked(LocalStore):
        looks = 3

        def hold(self, key: str) -> Hold | None:
            if key == key_of(1) and self.looks:
                self.looks -= 1
                return None
            return super().hold(key)

    clock = ManualClock()
    assert claim(Looked(home._disk, "root"), task="t", facts={}, clock=clock).number == 1
    assert clock.monotonic() == pytest.approx(0.06)


def test_a_file_that_somebody_else_holds_for_long_is_given_up() -> None:
    class Stolen(LocalStore):
        def hold(self, key: str) -> Hold | None:
            return None

    with pytest.raises(StoreError, match=r"attempts/0001\.json was just made and somebody else holds it"):
        claim(Stolen(SimDisk(), "root"), task="t", facts={}, clock=ManualClock())


class Interrupted(LocalStore):
    """A home that lets something happen before its call number `at`, once."""

    def __init__(self, disk: Any, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(disk, "root")
        self._left, self._meanwhile = at, meanwhile

    @property
    def reached(self) -> bool:
        return self._left < 0

    def _tick(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._meanwhile()

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        self._tick()
        return super().put(key, chunks)

    def list(self, prefix: str = "") -> Any:
        self._tick()
        return super().list(prefix)

    def hold(self, key: str) -> Hold | None:
        self._tick()
        return super().hold(key)


@pytest.mark.parametrize("before", [0, 1])
def test_a_start_between_any_two_steps_of_another_never_makes_two_holders(before: int) -> None:
    """Every interleaving in which the second start runs as one piece inside of the first."""
    for at in itertools.count():
        disk, inner = SimDisk(), []
        for _ in range(before):
            start(LocalStore(disk, "root")).hold.release()

        def meanwhile(disk: SimDisk = disk, inner: list[int] = inner) -> None:
            with contextlib.suppress(TaskInUse):
                inner.append(start(LocalStore(disk, "root")).number)

        home = Interrupted(disk, at, meanwhile)
        try:
            outer = [claim(home, task="t", facts={}, clock=ManualClock()).number]
        except TaskInUse:
            outer = []
        if not home.reached:
            assert at >= 4
            break
        assert len(outer) + len(inner) == 1, f"before step {at}: {outer} and {inner} hold the task"
        keys = numbers(LocalStore(disk, "root"))
        assert keys[-1] == key_of(*outer, *inner), "the holder's number is the highest"


class Clearing(ManualClock):
    """Who has the task lets go while somebody waits."""

    def __init__(self, home: LocalStore, holder: Attempt, after_s: float) -> None:
        super().__init__()
        self.home, self.holder, self.after_s = home, holder, after_s

    def sleep(self, duration_s: float) -> None:
        before_s = self.monotonic()
        super().sleep(duration_s)
        if before_s < self.after_s <= self.monotonic():
            withdraw(self.home, self.holder)


def clearing(home: LocalStore) -> Attempt:
    return claim(home, task="t", facts={}, clock=ManualClock(), clears=True)


def test_who_only_clears_a_task_is_waited_for_and_leaves_no_attempt(tmp_path: Path) -> None:
    home, told = on_disk(tmp_path), []
    start(home).hold.release()
    holder = clearing(home)
    assert (holder.number, json.loads(bytes(home.get(key_of(2))))["clears"]) == (2, True)
    clock = Clearing(home, holder, after_s=5.0)
    attempt = claim(home, task="t", facts={}, clock=clock, emit=told.append)
    assert (attempt.number, numbers(home)) == (2, ["attempts/0001.json", "attempts/0002.json"])
    assert 5.0 <= clock.monotonic() < 6.0
    assert "clears" not in json.loads(bytes(home.get(key_of(2))))
    (note,) = told
    assert note.text == (
        f"task 't' is being cleared by process {os.getpid()} on {platform.node()} (this one): "
        "waiting until it is through"
    )
    with pytest.raises(TaskInUse, match="is being trained"):
        clearing(home)
    attempt.hold.release()


def test_who_clears_a_task_for_too_long_is_told_of(tmp_path: Path) -> None:
    home, clock = on_disk(tmp_path), ManualClock()
    holder = clearing(home)
    with pytest.raises(TaskInUse, match="is being cleared by process") as refused:
        claim(home, task="t", facts={}, clock=clock)
    assert refused.value.clears
    assert "kill" not in str(refused.value)
    assert CLEARS_S_MAX <= clock.monotonic() < CLEARS_S_MAX + 30.0
    assert numbers(home) == ["attempts/0001.json"]
    withdraw(home, holder)
    assert numbers(home) == []


def test_of_processes_at_once_at_most_one_holds_the_task(tmp_path: Path) -> None:
    count = 3
    starters = [process(CONTENDER) for _ in range(count)]
    held = 0
    try:
        for starter in starters:
            assert starter.stdout.readline() == "ready\n"
        for number in range(3):
            folder = tmp_path / str(number)
            for starter in starters:
                starter.stdin.write(f"{folder}\n")
                starter.stdin.flush()
            outcomes = [starter.stdout.readline().split() for starter in starters]
            winners = [outcome for outcome in outcomes if outcome[0] == "holds"]
            losers = [outcome for outcome in outcomes if outcome[0] != "holds"]
            assert len(winners) <= 1, outcomes
            assert all(kind == "TaskInUse" and int(pid) in {s.pid for s in starters} for kind, pid in losers), outcomes
            held += len(winners)
    finally:
        for starter in starters:
            starter.communicate()
    assert held >= 1
    assert start(on_disk(tmp_path / "0")).number >= 1  # they are gone, and what they left holds nothing


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    holder = process(HOLDER, str(tmp_path))
    try:
        assert holder.stdout.readline() == "1\n"
        with pytest.raises(TaskInUse) as caught:
            start(on_disk(tmp_path))
        assert (caught.value.host, caught.value.pid) == (platform.node(), holder.pid)
        assert f"kill {holder.pid}" in str(caught.value)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert start(on_disk(tmp_path)).number == 2


def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    holder = process(HOLDER, str(tmp_path))
    try:
        assert holder.stdout.readline() == "1\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(TaskInUse) as caught:
            claim(on_disk(tmp_path), task="t", facts={}, clock=ManualClock(), shared=True, takeover=True)
        assert caught.value.pid == holder.pid
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    clock = ManualClock()
    attempt = claim(on_disk(tmp_path), task="t", facts={}, clock=clock, shared=True)
    assert (attempt.number, attempt.sure, clock.monotonic()) == (2, True, 0.0)  # killed on this host: at once
    attempt.hold.release()
