"""The past of a task: how its attempts ended, and which of their alarms foretold it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import facts
from mementum.execute.attempts import key_of
from mementum.format import vitals
from mementum.past import ATTEMPTS_MAX, past_of
from mementum.perceive.calibration import Seen
from mementum.records import Fact, Trouble, Vitals
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

HERE = {"host": "here", "boot": "b1"}
T0 = datetime(2026, 11, 30, tzinfo=UTC)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat()


class Task:
    """Attempts that are written down as a run would have."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(PosixDisk(), str(folder))
        self.attempts = 0

    def attempt(self, began_s: float, *told: tuple[float, str, dict[str, Any]], **who: str) -> None:
        self.attempts += 1
        fields = {"pid": 7, "started": 1, "time": at(began_s), **HERE, **who}
        self.store.put(key_of(self.attempts), [json.dumps(fields).encode()])
        for time_s, kind, values in told:
            fact = Fact(kind=kind, time=at(time_s), step=int(time_s - began_s), values=values)
            self.store.append(facts.journal_key(self.attempts), facts.render(fact))

    def saw(self, *steps: int) -> None:
        """Vital signs of the newest attempt, whose steps take a second."""
        rows = [vitals.row(Vitals(step=step, at_s=float(step))) for step in steps]
        self.store.append(vitals.key(self.attempts), vitals.begin() + vitals.chunk(rows))

    @property
    def ends(self) -> list[tuple[str, float]]:
        return [(one.how, one.duration_s) for one in past_of(self.store, self.attempts).ended]

    @property
    def seen(self) -> dict[Trouble, Seen]:
        return dict(past_of(self.store, self.attempts).seen)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def alarm(at_s: float, *, trouble: str = "memory", claimed: float = 0.5) -> tuple[float, str, dict[str, Any]]:
    return (at_s, "alarm", {"trouble": trouble, "claimed": claimed, "chance": 0.4, "horizon_s": 100.0})


def test_ends_come_oldest_first_by_how_they_ended(task: Task) -> None:
    task.attempt(0, (500, "cost", {}), (900, "ended", {"why": "finished"}))
    task.attempt(1000, (1400, "cost", {}))
    task.attempt(2000, (2300, "cost", {}))
    task.attempt(3000, (3200, "cost", {}), boot="b2")
    task.attempt(4000, (4010, "notice", {"stops": True}), (4100, "ended", {"why": "told to stop"}), host="there")
    task.attempt(5000, (5001, "ended", {"why": "OutOfMemoryError"}), host="there")
    task.attempt(6000, (6002, "ended", {"why": "KeyboardInterrupt"}), host="there")
    task.attempt(7000, host="there")
    assert task.ends == [
        ("finished", 900.0),
        ("killed", 400.0),
        ("rebooted", 300.0),
        ("moved", 200.0),
        ("preempted", 100.0),
        ("killed", 1.0),
        ("finished", 2.0),
    ]


def test_alarms_before_an_end_were_right_and_others_were_not(task: Task) -> None:
    task.attempt(0, alarm(300), alarm(900), (950, "cost", {}))
    task.attempt(2000, alarm(2100), (2150, "ended", {"why": "finished"}))
    task.attempt(3000, alarm(3100), (3150, "ended", {"why": "OutOfMemoryError"}))
    task.attempt(4000, alarm(4100, trouble="hardware"), alarm(4110, trouble="loss spike"))
    task.attempt(5000)
    assert task.seen == {Trouble.MEMORY: Seen(raised=4, right=2), Trouble.HARDWARE: Seen(raised=1, right=1)}


def test_vital_signs_tell_that_a_process_lived_on(task: Task) -> None:
    """Its last fact is the alarm, and its last step came later than the horizon."""
    task.attempt(0, alarm(300))
    task.saw(*range(290, 401))
    task.attempt(1000, alarm(1300))
    task.saw(*range(290, 402))
    task.attempt(2000)
    assert task.seen == {Trouble.MEMORY: Seen(raised=2, right=1)}


def test_alarms_that_follow_one_another_are_one_warning(task: Task) -> None:
    rising = ((100, 0.01), (190, 0.1), (280, 0.5), (370, 0.9))
    task.attempt(0, *(alarm(at_s, claimed=claimed) for at_s, claimed in rising), (400, "cost", {}))
    task.attempt(1000)
    assert task.seen == {Trouble.MEMORY: Seen(raised=1, right=1)}


def test_an_alarm_that_rings_all_the_time_is_right_once(task: Task) -> None:
    task.attempt(0, *(alarm(at_s) for at_s in range(0, 1000, 10)))
    task.attempt(2000)
    assert task.seen == {Trouble.MEMORY: Seen(raised=10, right=1)}  # at 0, 110, 220, ... 990


def test_what_cannot_be_read_is_left_out(task: Task) -> None:
    task.attempt(0, alarm(100))
    task.store.append(vitals.key(1), b"no vital signs")
    task.attempt(500, (510, "alarm", {"trouble": 3, "horizon_s": "x"}), (520, "alarm", {}))
    task.attempt(1000)
    task.store.put(key_of(4), [b"{"])
    task.attempts += 1
    task.attempt(2000)
    assert [how for how, _ in task.ends] == ["killed", "killed"]
    assert task.seen == {Trouble.MEMORY: Seen(raised=1, right=1)}


def test_the_newest_attempts_are_looked_at(task: Task) -> None:
    for number in range(ATTEMPTS_MAX + 5):
        task.attempt(number * 1000, (number * 1000 + number, "cost", {}))
    task.attempt(10**6)
    assert [duration_s for _, duration_s in task.ends] == [float(number) for number in range(5, ATTEMPTS_MAX + 5)]
