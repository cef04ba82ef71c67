"""Other processes, forks, signals and clocks that jump: none of them touches a run."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TASK, damage_of, folders_of, things, tiny_run, train_once, unfinished

import mementum
from disks import WAIT_S, GatedDisk
from mementum.clock import ManualClock
from mementum.errors import TaskInUse, UsageError
from mementum.events import Committed, Failed
from mementum.format import manifest as manifests
from trips import Told

DAY_S = 86_400.0


def in_a_fork(work: Callable[[], object]) -> int:
    """Do it in a forked child that exits at once, whatever happens; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Two processes.


def test_a_task_that_another_process_trains_is_refused_until_that_is_dead(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run = mementum.open_run(tmp_path, task=TASK, every_steps=1, **things(1))
            run.record()
            run.wait()
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x"
        with pytest.raises(TaskInUse) as caught:
            mementum.open_run(tmp_path, task=TASK, **things(1))
        assert caught.value.pid == child
        assert tiny_run(tmp_path, task="another").of(Committed)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    with mementum.open_run(tmp_path, task=TASK, resume="must", **things(1)) as run:
        assert run.step == 1


# Forks.


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedDisk]:
    made = GatedDisk()
    monkeypatch.setattr("mementum.opening.PosixDisk", lambda: made)
    yield made
    made.gate.set()


def refused(run: Any) -> None:
    for act in (run.record, run.save, run.wait, lambda: run.metrics(1, loss=1.0)):
        with pytest.raises(UsageError, match="belongs to process"):
            act()
    run.close()  # as at the end of a `with` block that the child leaves


@pytest.mark.parametrize("work", [refused, lambda run: None, lambda run: run.close()], ids=["told", "exits", "closes"])
def test_a_fork_in_the_middle_of_a_save_damages_nothing(
    tmp_path: Path, disk: GatedDisk, work: Callable[[Any], object]
) -> None:
    told, given = Told(), things(1)
    with mementum.open_run(tmp_path, task=TASK, every_steps=1, on_event=told, **given) as run:
        train_once(given)
        run.record()
        assert disk.reached.wait(WAIT_S)
        for _ in range(3):
            assert in_a_fork(lambda: work(run)) == 0
        with pytest.raises(TaskInUse):  # the child let go of nothing
            mementum.open_run(tmp_path, task=TASK, **things(2))
        disk.gate.set()
        assert run.wait()
        train_once(given)
        run.record()
    assert [event.step for event in told.of(Committed)] == [1, 2]
    assert told.of(Failed) == []
    assert [damage_of(folder) for folder in folders_of(tmp_path)] == [(), ()]
    assert unfinished(tmp_path) == []


def test_a_fork_that_leaves_the_with_block_ends_at_once(tmp_path: Path, disk: GatedDisk) -> None:
    class Left(Exception):
        pass

    parent = os.getpid()
    try:
        with mementum.open_run(tmp_path, task=TASK, every_steps=1, **things(1)) as run:
            run.record()
            assert disk.reached.wait(WAIT_S)
            child = os.fork()
            if child == 0:
                raise Left
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            disk.gate.set()
    except Left:
        assert os.getpid() != parent
        os._exit(7)
    assert [damage_of(folder) for folder in folders_of(tmp_path)] == [()]


def test_a_child_may_open_a_run_of_its_own(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task=TASK, every_steps=1, **things(1)) as run:
        run.record()
        assert in_a_fork(lambda: tiny_run(tmp_path, 2, task="child")) == 0
        run.record()
    names = sorted(manifests.parse((folder / "meta.json").read_bytes()).task for folder in folders_of(tmp_path))
    assert names == ["child", "child", TASK, TASK]


# Signals.


def test_signal_handlers_are_the_programs_own_again_after_the_run(tmp_path: Path) -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError(number)

    def handlers() -> dict[int, object]:
        return {number: signal.getsignal(number) for number in signal.valid_signals()}

    kept = signal.signal(signal.SIGTERM, mine)
    try:
        before = handlers()
        given = things(1)
        with mementum.open_run(tmp_path, task=TASK, every_steps=1, **given) as run:
            ours = {number for number, handler in handlers().items() if handler is not before[number]}
            run.record()
            run.wait()
            assert ours <= {signal.SIGTERM, signal.SIGUSR1}
            assert signal.SIGTERM in ours
        assert handlers() == before
        assert before[signal.SIGTERM] is mine
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_a32_a_sigterm_reaches_the_programs_handler_and_a_save_completes(tmp_path: Path) -> None:
    """The program's own handler is called, and what it asks for is durable at the end."""
    called: list[int] = []
    kept = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    try:
        with mementum.open_run(tmp_path, task=TASK, every_steps=1000, **things(1)) as run:
            for step, _ in run.steps([0] * 10, total=10):
                if step == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                run.record()
                if called:
                    run.save("SIGTERM")
                    break
        assert called == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, kept)
    with mementum.open_run(tmp_path, task=TASK, resume="must", **things(2)) as run:
        assert (run.step, run.resumed and run.resumed.reason) == (4, "SIGTERM")


# Clocks.


class Jumping(ManualClock):
    """Its wall time can be set, as by an administrator or at the end of a battery; its monotonic time cannot."""

    def jump(self, duration_s: float) -> None:
        self._now_s += duration_s


def test_a_wall_clock_that_jumps_changes_neither_order_nor_intervals(tmp_path: Path) -> None:
    clock, told, given = Jumping(), Told(), things(1)
    with mementum.open_run(tmp_path, task=TASK, every_s=10.0, on_event=told, clock=clock, **given) as run:
        for jump_s in (0.0, -DAY_S, 0.0, 400 * DAY_S, -DAY_S, -1000 * DAY_S, 0.0):
            clock.jump(jump_s)
            for _ in range(5):
                clock.advance(4.0)
                run.record()
                assert run.wait()
    steps = [event.step for event in told.of(Committed)]
    assert all(2 <= later - earlier <= 3 for earlier, later in itertools.pairwise(steps)), steps
    assert steps[-1] == 35
    with mementum.open_run(tmp_path, task=TASK, clock=clock, **things(2)) as run:
        assert run.step == 35
        entries = run._opened.catalog.entries(run._opened.home)
    assert [entry.manifest.seq for entry in entries] == sorted(entry.manifest.seq for entry in entries)
    assert [entry.manifest.step for entry in entries][-10:] == steps[-10:]
    assert [entry.manifest.time for entry in entries] != sorted(entry.manifest.time for entry in entries)


def test_attempts_of_ever_earlier_days_go_on_with_one_another(tmp_path: Path) -> None:
    clock = Jumping()
    for attempt in (1, 2, 3):
        clock.jump(-3 * DAY_S)
        with mementum.open_run(tmp_path, task=TASK, clock=clock, keep_last=2, every_steps=1, **things(1)) as run:
            assert (run.step, run._opened.attempt.number) == (attempt - 1, attempt)
            run.record()
    assert len(list(tmp_path.glob("????????/*_*"))) == 1
    assert [path.name for path in folders_of(tmp_path)] == ["step_0000000002", "step_0000000003"]


@pytest.mark.parametrize("now_s", [0.0, 1.0, 4_102_444_800.0, 32_503_680_000.0], ids=["1970", "soon", "2100", "3000"])
def test_a_clock_without_a_battery_is_no_reason_not_to_save(tmp_path: Path, now_s: float) -> None:
    for step in (0, 1):
        with mementum.open_run(tmp_path, task=TASK, clock=ManualClock(now_s), every_steps=1, **things(1)) as run:
            assert run.step == step
            run.record()
    assert [damage_of(folder) for folder in folders_of(tmp_path)] == [(), ()]
