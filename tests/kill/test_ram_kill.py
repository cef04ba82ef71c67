"""Trainings killed at random instants lose no more than their snapshots' interval and a copy, and end bit for bit.

kill -9 proves process death only, never power loss: shared memory ends with the machine.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ram_trainer import EVERY_STEPS, STEPS, TASK
from starts import HERE, THREADS, WARNINGS

from mementum import ram
from mementum.execute.leftovers import leftovers

KILLS = 20
COPY_STEPS = 1  # a copy that was begun at a step's end has ended when the next step changes anything
SEAL_STEPS = 1  # what follows the copy, on its thread, beside a step
STEP_S = 0.006  # about what a step takes: how far behind a step's end a kill may come
QUIET_S = 60.0  # without a word; only a broken trainer is silent for so long


class Server:
    """Forks trainers, one at a time, and hears what they tell."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, *WARNINGS, str(HERE / "ram_trainer.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **THREADS},
        )
        self._rest = b""

    def close(self) -> None:
        self._process.communicate(timeout=QUIET_S)

    def start(self, root: Path, held_from: int | None, held_part: str) -> None:
        assert self._process.stdin is not None
        order = {"root": str(root), "held_from": held_from, "held_part": held_part}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> tuple[str, ...]:
        """The next line, in words."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], QUIET_S)
            assert ready, f"nothing was heard for {QUIET_S:.0f} s"
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, "the server is gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return tuple(line.decode().split(" "))


class Attempt:
    """One trainer from its start to its end, and what it told."""

    def __init__(self, server: Server, root: Path, held_from: int | None = None, held_part: str = "") -> None:
        self._server = server
        self._pid = 0
        self.told: list[tuple[str, ...]] = []
        server.start(root, held_from, held_part)

    def until(self, enough: Callable[[tuple[str, ...]], bool]) -> bool:
        """Whether it told such a thing before its end."""
        while not self.told or self.told[-1][0] != "exit":
            words = self._server.hear()
            if words[0] == "pid":
                self._pid = int(words[1])
            self.told.append(words)
            assert words[0] != "trouble", self.told
            if enough(words):
                return words[0] != "exit"
        return False

    def kill(self) -> None:
        while not self._pid:
            self.until(lambda words: words[0] == "pid")
        os.kill(self._pid, signal.SIGKILL)
        self.until(lambda words: words[0] == "exit")
        assert self.told[-1] in (("exit", "-9"), ("exit", "0")), self.told

    def finish(self) -> str:
        """Let it come to its end; the digest of what it then has."""
        self.until(lambda words: words[0] == "exit")
        assert self.told[-1] == ("exit", "0"), self.told
        (digest,) = self.all("live")
        return digest[0]

    def all(self, kind: str) -> list[tuple[str, ...]]:
        return [words[1:] for words in self.told if words[0] == kind]

    @property
    def step(self) -> int:
        """The newest step of which it told."""
        return max((int(step) for step, in self.all("step")), default=self.began[0])

    @property
    def began(self) -> tuple[int, str]:
        opened = self.all("opened")
        return (int(opened[0][0]), opened[0][1]) if opened else (0, "")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def straight(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return Attempt(server, tmp_path_factory.mktemp("straight")).finish()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for left in leftovers(ram.FOLDER, ram.key_of(tmp_path.resolve(), TASK)):
        left.remove()


def slots_of(root: Path) -> list[Path]:
    return list(Path(ram.FOLDER).glob(f"*{ram.key_of(root.resolve(), TASK)}*"))


def test_twenty_kills_lose_no_more_than_an_interval_and_a_copy(
    server: Server, straight: str, root: Path, rng: random.Random, seed: int
) -> None:
    kills, number, tiers = 0, 0, []
    print(f"\nseed {seed}")
    while kills < KILLS:
        number += 1
        place = root / str(number)
        place.mkdir()
        reached = 0
        while True:
            held_from = rng.choice((None, reached + 1, reached + 6))
            attempt = Attempt(server, place, held_from)
            aim = reached + rng.randrange(1, 10)
            hit = attempt.until(lambda words, aim=aim: words == ("step", str(aim)))
            delay_s = rng.random() * STEP_S
            if hit:
                time.sleep(delay_s)
                attempt.kill()
                kills += 1
            began, tier = attempt.began
            tiers.append(tier)
            print(f"from {began} ({tier}), disk held from {held_from}, killed at {attempt.step} + {delay_s:.4f} s")
            lost = reached - began
            assert 0 <= lost + COPY_STEPS
            assert lost <= EVERY_STEPS + COPY_STEPS + SEAL_STEPS, attempt.told
            if attempt.told[-1] == ("exit", "0"):
                break
            reached = attempt.step
            if not hit:  # a held disk keeps a trainer from its end, which was heard of
                break
        if attempt.told[-1] != ("exit", "0"):
            attempt = Attempt(server, place)
            attempt.finish()
        assert attempt.all("live") == [(straight,)]
        assert slots_of(place) == []
    assert tiers.count("ram") >= KILLS // 4


def test_a_kill_during_the_very_first_save(
    server: Server, straight: str, root: Path, rng: random.Random
) -> None:
    for number in range(6):
        place = root / str(number)
        place.mkdir()
        attempt = Attempt(server, place, 1 if number % 2 else None)
        assert attempt.until(lambda words: words[0] == "capture")
        time.sleep(rng.random() * STEP_S)
        attempt.kill()
        again = Attempt(server, place)
        digest = again.finish()
        assert again.began[0] in (0, EVERY_STEPS, 2 * EVERY_STEPS)
        assert digest == straight
        assert slots_of(place) == []


@pytest.mark.parametrize("part", ["", "index-"], ids=["before anything is written", "in the middle"])
def test_kills_while_a_start_comes_back_from_memory(
    server: Server, straight: str, root: Path, rng: random.Random, part: str
) -> None:
    attempt = Attempt(server, root, EVERY_STEPS + 1)
    assert attempt.until(lambda words: words == ("whole", str(3 * EVERY_STEPS)))
    attempt.kill()
    reached = 3 * EVERY_STEPS
    for number in range(4):
        attempt = Attempt(server, root, 1, part)
        assert attempt.until(lambda words: words[0] == ("opened" if number % 2 else "held"))
        time.sleep(rng.random() * 0.002)  # before it has a snapshot of its own
        if number % 2 == 0:
            assert attempt.all("whole") == [] or attempt.step > reached
        attempt.kill()
        attempt.until(lambda words: words[0] == "exit")
        if attempt.all("opened"):
            assert attempt.began[1] == "ram"
            assert attempt.began[0] >= reached
            reached = attempt.began[0]
    last = Attempt(server, root)
    assert last.finish() == straight
    assert last.began[1] == "ram"
    assert last.began[0] >= reached
    assert last.began[0] >= 3 * EVERY_STEPS
    assert slots_of(root) == []
    assert len(list(root.rglob("meta.json"))) == 2
    assert STEPS in [json.loads(path.read_text())["step"] for path in root.rglob("meta.json")]


def test_a_start_that_is_killed_before_it_has_placed_anything_comes_back_to_the_same_step(
    server: Server, straight: str, root: Path
) -> None:
    """It is killed with the snapshot of the dead one held, and none of its own yet."""
    attempt = Attempt(server, root, 1)
    assert attempt.until(lambda words: words == ("whole", str(EVERY_STEPS)))
    attempt.kill()
    began: list[tuple[int, str]] = []
    for _ in range(3):
        attempt = Attempt(server, root, 1)
        assert attempt.until(lambda words: words[0] == "opened")
        attempt.kill()
        began.append(attempt.began)
        if attempt.step >= attempt.began[0] + EVERY_STEPS:
            break  # it was quick enough for a snapshot of its own
    assert {tier for _, tier in began} == {"ram"}
    assert began[0][0] in (EVERY_STEPS, 2 * EVERY_STEPS)
    last = Attempt(server, root)
    assert last.finish() == straight
