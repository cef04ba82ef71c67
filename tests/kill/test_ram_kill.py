"""Trainings killed at random instants lose no more than their snapshots' interval and a copy, and end bit for bit.

kill -9 proves process death only, never power loss: shared memory ends with the machine.
"""

from __future__ import annotations

import contextlib
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
LATE_SHARE = 0.2  # of the kills, where the machine has given the thread that seals no turn for longer than that
STEP_S = 0.006  # about what a step takes: how far behind a step's end a kill may come
QUIET_S = 120.0  # without a word: a start on a machine where ten processes fight over two cores takes its time


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
        self._trainer: int | None = None

    def close(self) -> None:
        self._process.communicate()

    def clear(self) -> None:
        """End the trainer that a failed test has left."""
        if self._trainer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._trainer, signal.SIGKILL)
            while self.hear()[0] != "exit":
                pass

    def start(self, root: Path, held_from: int | None, held_part: str, *, stop: bool) -> None:
        assert self._process.stdin is not None
        order = {"root": str(root), "held_from": held_from, "held_part": held_part, "stop": stop}
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
        words = tuple(line.decode().split(" "))
        if words[0] in ("pid", "exit"):
            self._trainer = int(words[1]) if words[0] == "pid" else None
        return words


class Attempt:
    """One trainer from its start to its end, and what it told."""

    def __init__(
        self, server: Server, root: Path, held_from: int | None = None, held_part: str = "", stop: bool = False
    ) -> None:
        self._server = server
        self._pid = 0
        self.told: list[tuple[str, ...]] = []
        server.start(root, held_from, held_part, stop=stop)

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
        return max((int(step) for (step,) in self.all("step")), default=self.began[0])

    @property
    def began(self) -> tuple[int, str]:
        opened = self.all("opened")
        return (int(opened[0][0]), opened[0][1]) if opened else (0, "")


@pytest.fixture(scope="module")
def serving() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def server(serving: Server) -> Iterator[Server]:
    yield serving
    serving.clear()


@pytest.fixture(scope="module")
def straight(serving: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of what a training has that was never killed."""
    return Attempt(serving, tmp_path_factory.mktemp("straight")).finish()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for left in leftovers(ram.FOLDER, ram.key_of(tmp_path.resolve(), TASK)):
        left.remove()


def slots_of(root: Path) -> list[Path]:
    return list(Path(ram.FOLDER).glob(f"*{ram.key_of(root.resolve(), TASK)}*"))


def steps_lost(attempt: Attempt, before: Attempt | None) -> int:
    """How many steps of the attempt before are lost; never one of which it had told that it has a whole snapshot."""
    if before is None:
        assert attempt.began == (0, "none")
        return 0
    safe = max([before.began[0], *(int(step) for kind in ("whole", "committed") for (step,) in before.all(kind))])
    assert safe <= attempt.began[0] <= before.step + COPY_STEPS, (before.told, attempt.told)
    return before.step - attempt.began[0]


def assert_few_late(lost: list[int]) -> None:
    """Nearly always no more than an interval and a copy."""
    late = [steps for steps in lost if steps >= EVERY_STEPS + COPY_STEPS + SEAL_STEPS]
    assert len(late) <= LATE_SHARE * len(lost), lost


def test_twenty_kills_lose_no_more_than_an_interval_and_a_copy(
    server: Server, straight: str, root: Path, rng: random.Random, seed: int
) -> None:
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
            held_from = rng.choice((None, reached + 1, reached + 6))
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
        attempt.finish()
        tiers.append(attempt.began[1])
        lost.append(steps_lost(attempt, before))
        assert attempt.all("live") == [(straight,)]
        assert slots_of(place) == []
    assert tiers.count("ram") >= KILLS // 4
    print(f"lost: {lost}")
    assert_few_late(lost)


def test_a_kill_during_the_very_first_save(server: Server, straight: str, root: Path, rng: random.Random) -> None:
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
def test_kills_before_a_snapshot_from_memory_is_placed(server: Server, straight: str, root: Path, part: str) -> None:
    """It lies in the memory of a dead process, and each start is killed while it makes it durable: the next one comes
    back to the same step, or to a later one, of which the killed start had a snapshot of its own."""
    attempt = Attempt(server, root, EVERY_STEPS + 1)
    assert attempt.until(lambda words: words == ("whole", str(3 * EVERY_STEPS)))
    attempt.kill()
    reached = max(int(step) for (step,) in attempt.all("whole"))
    for number in range(4):
        attempt = Attempt(server, root, 1, part)
        assert attempt.until(lambda words: words[0] == "held")
        if number % 2 and not attempt.all("opened"):
            assert attempt.until(lambda words: words[0] == "opened")
        attempt.kill()
        if attempt.all("opened"):
            assert attempt.began[1] == "ram", (number, reached, attempt.told)
            assert attempt.began[0] >= reached, (number, reached, attempt.told)
        reached = max([reached, *(int(step) for (step,) in attempt.all("whole"))])
    last = Attempt(server, root)
    assert last.finish() == straight
    assert last.began[1] == "ram"
    assert last.began[0] >= reached
    assert slots_of(root) == []
    steps = [json.loads(path.read_text())["step"] for path in sorted(root.rglob("meta.json"))]
    assert steps[-1] == STEPS
    assert len(steps) == 2


def test_kills_before_a_start_has_a_snapshot_of_its_own(server: Server, straight: str, root: Path) -> None:
    attempt = Attempt(server, root, 1)
    assert attempt.until(lambda words: words == ("whole", str(EVERY_STEPS)))
    attempt.kill()
    reached = max(int(step) for (step,) in attempt.all("whole"))
    for _ in range(3):
        attempt = Attempt(server, root, 1, stop=True)
        assert attempt.until(lambda words: words[0] == "opened")
        attempt.kill()
        assert attempt.began == (reached, "ram")
        assert attempt.all("step") == []
    last = Attempt(server, root)
    assert last.finish() == straight
    assert last.began == (reached, "ram")
