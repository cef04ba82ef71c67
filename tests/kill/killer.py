"""The killer: aims at a phase of a training, sends kill -9 into it, and starts it again until it has ended.

kill -9 proves process death only. The page cache outlives the process, so a missing fsync is never seen here; power
cuts are the matter of tests/crash.

As a script it repeats one training with given aims: python tests/kill/killer.py capture:2:0.0031:group ...
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, Self, cast, get_args

import judge
from starts import Start, Started, Zygote

Phase = Literal["capture", "write", "commit", "remove", "resume"]
Target = Phase | Literal["step"]  # a step's end, whatever the background does then
Victim = Literal["group", "trainer"]  # all processes at once, or the trainer alone: its loader's worker lives on
PHASES: tuple[Phase, ...] = get_args(Phase)

QUIET_S_MAX = 120.0  # without a word from a trainer; importing torch on a loaded machine takes seconds, not minutes
OCCURRENCES_MAX = 3  # of a phase until it is hit: few, so that a training is killed often, not only one
STEPS_MAX = 8  # until a step is hit, for the same reason
FIRST_GUESS_S = 0.005  # how long a phase lasts, until one was seen
SEEN_MAX = 100  # durations of a phase that count: the machine's load changes
ELSEWHERE = 0.1  # the share of aims at any step
LONE = 0.25  # the share of kills that leave the loader's worker alive; it may print a ConnectionResetError then
READ_BYTES = 65536  # a whole pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Kill `victim` `delay_s` after `target` has begun for the `occurrence`th time in an attempt."""

    target: Target
    occurrence: int
    delay_s: float
    victim: Victim = "group"

    def __str__(self) -> str:
        return f"{self.target}:{self.occurrence}:{self.delay_s:.5f}:{self.victim}"

    @classmethod
    def parse(cls, text: str) -> Self:
        target, occurrence, delay_s, victim = text.split(":")
        assert target in (*PHASES, "step")
        assert victim in get_args(Victim)
        return cls(
            target=cast(Target, target),
            occurrence=int(occurrence),
            delay_s=float(delay_s),
            victim=cast(Victim, victim),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A line of a trainer: when, by the machine's monotonic clock, and what."""

    at_s: float
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straight:
    """The run that was never killed: where it lies, its steps' losses and counts, and its live state at the end."""

    root: Path
    steps: dict[str, tuple[str, ...]]
    live: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Tally:
    """What was aimed at and what was hit, over any number of trainings."""

    trainings: int = 0
    kills: int = 0
    between: int = 0
    aimed: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    alone: int = 0
    steps_done: int = 0
    durations_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def typical_s(self, phase: str) -> float:
        return median(self.durations_s[phase][-SEEN_MAX:] or [FIRST_GUESS_S])

    def __str__(self) -> str:
        rows = [f"{'phase':10}{'aimed':>7}{'hit':>7}{'typical ms':>12}"]
        rows += [
            f"{phase:10}{self.aimed[phase]:7}{self.hit[phase]:7}{self.typical_s(phase) * 1000:12.1f}"
            for phase in PHASES
        ]
        rows += [
            f"{'step':10}{self.aimed['step']:7}{'':7}",
            f"in no phase {self.between}, trainer alone {self.alone}, trainings {self.trainings}, "
            f"steps done {self.steps_done}, kills {self.kills}",
        ]
        return "\n".join(rows)


class Attempt:
    """One process of a training, and all that it has told so far."""

    def __init__(self, started: Started) -> None:
        self.pid = started.pid
        self._started = started
        self._torn = b""
        self.markers: list[Marker] = []

    def listen(self) -> bool:
        """Wait for more markers; False when the pipe has ended."""
        ready, _, _ = select.select([self._started.descriptor], [], [], QUIET_S_MAX)
        assert ready, f"nothing was heard for {QUIET_S_MAX:.0f} s; the last was {self.tail()}"
        data = os.read(self._started.descriptor, READ_BYTES)
        *lines, self._torn = (self._torn + data).split(b"\n")
        for line in lines:
            at_ns, *words = line.decode().split(" ")
            self.markers.append(Marker(at_s=int(at_ns) / 1e9, words=tuple(words)))
        return data != b""

    def all(self, kind: str) -> list[tuple[str, ...]]:
        """What follows the word `kind`, for every marker that begins with it."""
        return [marker.words[1:] for marker in self.markers if marker.words[0] == kind]

    def tail(self) -> list[str]:
        return [" ".join(marker.words) for marker in self.markers[-5:]]

    def comes_to(self, aim: Aim) -> bool:
        """Wait until the aim's target begins; False if the training has ended before."""
        kind = ("step",) if aim.target == "step" else ("began", aim.target)
        while sum(marker.words[: len(kind)] == kind for marker in self.markers) < aim.occurrence:
            if not self.listen():
                return False
        return True

    def end(self, victim: Victim | None) -> int:
        """Kill, or let run; then hear the rest. The exit code."""
        if victim == "trainer":
            os.kill(self.pid, signal.SIGKILL)
        elif victim == "group":
            os.killpg(self.pid, signal.SIGKILL)
        while self.listen():
            pass
        assert self._torn == b"", f"a torn line: {self._torn!r}"
        os.close(self._started.descriptor)
        return self._started.wait()

    def clear(self) -> None:
        """Kill what may be left of the group: the loader's worker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def phases(self) -> tuple[set[str], list[tuple[str, float]]]:
        """The phases that were open at the end, and those that ended with their durations in seconds."""
        began_s: dict[tuple[str, ...], float] = {}
        ended: list[tuple[str, float]] = []
        for marker in self.markers:
            if marker.words[0] == "began":
                began_s[marker.words[1:]] = marker.at_s
            elif marker.words[0] == "ended":
                # A resume gets its id only when it has found a checkpoint.
                key = marker.words[1:] if marker.words[1:] in began_s else (marker.words[1], "-")
                ended.append((marker.words[1], marker.at_s - began_s.pop(key)))
        return {phase for phase, _ in began_s}, ended


class Siege:
    """Kills trainings by aims, judges after every death and at the end, and keeps the tally."""

    def __init__(self, start: Start, straight: Straight, tally: Tally) -> None:
        self._start, self._straight, self.tally = start, straight, tally

    def train(self, root: Path, aims: Iterable[Aim]) -> None:
        """One training from its first start to its end, with a kill for every aim; more starts follow when it has
        ended before. What fails tells how to do it again."""
        done: list[Aim] = []
        try:
            self._train(root, iter(aims), done)
        except AssertionError as error:
            again = f"python tests/kill/killer.py {' '.join(map(str, done))}"
            raise AssertionError(f"{error}\nafter {len(done)} kills; the same again: {again}") from error
        self.tally.trainings += 1

    def _train(self, root: Path, aims: Iterator[Aim], done: list[Aim]) -> None:
        acknowledged: set[str] = set()
        newest_step, finished = 0, False
        before: Attempt | None = None  # its loader's worker may still live
        while not finished:
            aim = next(aims, None)
            if aim is not None:
                done.append(aim)
            attempt = Attempt(self._start(root))
            try:
                killed = aim is not None and attempt.comes_to(aim)
                if aim is not None and killed:
                    time.sleep(aim.delay_s)
                code = attempt.end(aim.victim if aim is not None and killed else None)
            except BaseException:
                attempt.clear()
                raise
            finally:
                if before is not None:
                    before.clear()
            before = attempt
            finished = bool(attempt.all("done"))
            assert finished or (killed and code == -signal.SIGKILL), f"it ended with {code}: {attempt.tail()}"
            self._hear(attempt, newest_step)
            acknowledged |= {id for id, _ in attempt.all("committed")}
            acknowledged -= {id for phase, id in attempt.all("began") if phase == "remove"}
            if aim is not None and not finished:
                self._count(attempt, aim, resumable=newest_step > 0)
            entries = judge.check_death(root, acknowledged)
            newest_step = entries[-1].manifest.step if entries else 0
        attempt.clear()
        differ = {path for path, _ in set(attempt.all("live")) ^ set(self._straight.live)}
        assert not differ, f"the live state at the end differs in {sorted(differ)}"
        judge.check_end(root, self._straight.root)

    def _hear(self, attempt: Attempt, newest_step: int) -> None:
        """Nothing failed, it began at the newest checkpoint or at a snapshot in memory that is newer, and every step
        gave what it gave in the straight run."""
        assert not attempt.all("trouble"), attempt.all("trouble")
        for step, tier in attempt.all("opened"):
            assert int(step) == newest_step or (tier == "ram" and int(step) > newest_step), (step, tier, newest_step)
        for step, *given in attempt.all("step"):
            assert tuple(given) == self._straight.steps[step], f"step {step} gave {given}"

    def _count(self, attempt: Attempt, aim: Aim, *, resumable: bool) -> None:
        tally = self.tally
        open_phases, ended = attempt.phases()
        if not resumable:  # there was nothing to resume from, so this was none
            open_phases.discard("resume")
            ended = [(phase, duration_s) for phase, duration_s in ended if phase != "resume"]
        for phase, duration_s in ended:
            tally.durations_s[phase].append(duration_s)
        hit = open_phases & set(PHASES)
        tally.kills += 1
        tally.between += not hit
        tally.hit.update(hit)
        tally.aimed[aim.target] += 1
        tally.alone += aim.victim == "trainer"
        tally.steps_done += len(attempt.all("step"))


def straight_run(start: Start, root: Path) -> Straight:
    """Train once without a kill."""
    attempt = Attempt(start(root))
    code = attempt.end(None)
    assert code == 0, f"the straight run ended with {code}: {attempt.tail()}"
    assert not attempt.all("trouble"), attempt.all("trouble")
    steps = {step: tuple(given) for step, *given in attempt.all("step")}
    return Straight(root=root, steps=steps, live=tuple(attempt.all("live")))


def hunt(tally: Tally, rng: random.Random, *, kills: int) -> Iterator[Aim]:
    """Aims at the phases that were hit least, until the tally has so many kills."""
    while tally.kills < kills:
        fewest = min(tally.hit[phase] for phase in PHASES)
        rarest = [phase for phase in PHASES if tally.hit[phase] == fewest]
        target: Target = "step" if rng.random() < ELSEWHERE else rng.choice(rarest)
        yield aim_at(target, tally, rng)


def aim_at(target: Target, tally: Tally, rng: random.Random) -> Aim:
    """A random moment of the target: any of its first few occurrences, anywhere in its usual duration."""
    most = {"resume": 1, "step": STEPS_MAX}.get(target, OCCURRENCES_MAX)
    return Aim(
        target=target,
        occurrence=rng.randint(1, most),
        delay_s=rng.random() * tally.typical_s(target),
        victim="trainer" if rng.random() < LONE else "group",
    )


def main(aims: list[Aim]) -> None:
    tally = Tally()
    with Zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        straight = straight_run(zygote.start, Path(folder, "straight"))
        Siege(zygote.start, straight, tally).train(Path(folder, "killed"), aims)
    print(f"bit-identical\n{tally}")


if __name__ == "__main__":
    main([Aim.parse(text) for text in sys.argv[1:]])
