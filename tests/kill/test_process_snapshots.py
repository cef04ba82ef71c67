"""Trainings whose saves mostly stay in memory, killed at random instants, lose no more than an interval and a copy.

kill -9 proves process death only, never power loss: shared memory ends with the machine.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ram_trainer import EVERY_STEPS, STEPS, TASK
from snapshot_trainer import DISK_STEPS
from starts import HERE, THREADS, WARNINGS
from test_ram_kill import STEP_S, Attempt, Server, assert_few_late, slots_of, steps_lost

from mementum import ram
from mementum.execute.leftovers import leftovers

KILLS = 10


class SnapshotServer(Server):
    """Forks trainers that keep their snapshots in memory."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, *WARNINGS, str(HERE / "snapshot_trainer.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **THREADS},
        )
        self._rest = b""
        self._trainer: int | None = None


@pytest.fixture(scope="module")
def serving() -> Iterator[Server]:
    made = SnapshotServer()
    yield made
    made.close()


@pytest.fixture
def server(serving: Server) -> Iterator[Server]:
    yield serving
    serving.clear()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for place in (tmp_path, *tmp_path.iterdir()):
        for left in leftovers(ram.FOLDER, ram.key_of(place.resolve(), TASK)):
            left.remove()


def steps_on_disk(root: Path) -> list[int]:
    return [int(path.parent.name[5:15]) for path in sorted(root.rglob("meta.json"))]


def test_ten_kills_lose_no_more_than_an_interval_and_a_copy(
    server: Server, root: Path, rng: random.Random, seed: int
) -> None:
    straight = Attempt(server, root / "straight").finish()
    kills, number = 0, 0
    tiers: list[str] = []
    lost: list[int] = []
    print(f"\nseed {seed}")
    while kills < KILLS:
        number += 1
        place = root / str(number)
        place.mkdir()
        before, reached = None, 0
        while (aim := reached + rng.randrange(1, 10)) < STEPS:
            held_from = rng.choice((None, reached + 1))
            attempt = Attempt(server, place, held_from)
            assert attempt.until(lambda words, aim=aim: words == ("step", str(aim)))
            delay_s = rng.random() * STEP_S
            time.sleep(delay_s)
            attempt.kill()
            kills += 1
            tiers.append(attempt.began[1])
            print(f"from {attempt.began}, disk held from {held_from}, killed at {attempt.step} + {delay_s:.4f} s")
            lost.append(steps_lost(attempt, before))
            before, reached = attempt, attempt.step
        attempt = Attempt(server, place)
        assert attempt.finish() == straight
        tiers.append(attempt.began[1])
        lost.append(steps_lost(attempt, before))
        assert slots_of(place) == []
    assert tiers.count("ram") >= KILLS // 2
    print(f"lost: {lost}")
    assert_few_late(lost)


def test_with_a_dead_disk_all_is_in_memory(server: Server, root: Path) -> None:
    attempt = Attempt(server, root, DISK_STEPS)
    assert attempt.until(lambda words: words == ("kept", str(2 * DISK_STEPS - EVERY_STEPS)))
    attempt.kill()
    assert attempt.all("committed") == []
    assert steps_on_disk(root) == []
    again = Attempt(server, root)
    again.finish()
    assert again.began[1] == "ram"
    assert again.began[0] >= 2 * DISK_STEPS - EVERY_STEPS
    assert slots_of(root) == []
