"""Trainings that a signal reaches: each is a program with a handler or without, and tells how it went."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch.utils.data import DataLoader

import mementum
from forks import report
from loops import BATCH, Parts, dataset, fingerprint, parts, step_once
from mementum.data import ElasticSampler
from mementum.events import CameToNothing, Committed, Failed, Note, Noticed, PhaseBegan

TOTAL = 24  # steps: four epochs of six batches
EXIT = 7
BALLAST = 2_700_000  # float32 values: as much beside the small model as the demo's model and its optimizer have


def send(scene: dict[str, Any]) -> None:
    """The signal, as whoever stops a process sends it."""
    report(scene, sent_s=time.monotonic())
    number = signal.Signals[scene.get("signal", "SIGTERM")]
    if scene.get("to_group"):
        # By another process, as schedulers do it: what a loader's parent sends, its workers take for their end. It asks
        # the kernel itself, since programs named kill differ in what a negative number means to them.
        group = os.getpgrp()
        assert group == os.getpid(), "the scene has no group of its own"
        program = f"import os; os.killpg({group}, {int(number)})"
        killer = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", program], os.environ)
        os.waitpid(killer, 0)
        time.sleep(0.2)  # in which torch notices workers that have died
    else:
        os.kill(os.getpid(), number)


def install(scene: dict[str, Any]) -> Callable[[], bool]:
    """The program's own handler; what is returned says whether it has asked the loop to stop."""
    flags: list[int] = []
    if scene["handler"] is None:
        return lambda: False

    def flag(number: int, frame: object) -> None:
        flags.append(number)
        report(scene, called=len(flags))

    def leave(number: int, frame: object) -> None:
        flag(number, frame)
        raise SystemExit(EXIT)

    handlers = {"flag": flag, "leave": leave, "default": signal.SIG_DFL, "ignored": signal.SIG_IGN}
    signal.signal(signal.Signals[scene.get("signal", "SIGTERM")], handlers[scene["handler"]])
    return lambda: bool(flags)


def straight(scene: dict[str, Any]) -> None:
    """A training that nobody disturbs: digests of its state after each step."""
    train({**scene, "handler": "ignored"})


def train(scene: dict[str, Any]) -> None:
    """Train to the end, from wherever the last attempt stopped, and be sent a signal `at` some place.

    `at`: "begin" (before the first step), "body", "loader", "gradient" (between batches of one step), "epoch" (in the
    last step of one), "end" (after the last step); "capture", "write", "commit" (in that phase of a save), or a number
    of seconds from the beginning of the third step."""
    torch.set_num_threads(1)
    made, stop = parts(workers=scene.get("workers", 0)), install(scene)
    accumulate = scene.get("accumulate", 1)
    sent = Sent(scene)
    if scene.get("at") == "loader":
        made.loader = Watched(made.loader.num_workers, sent)
    opening = {"optimizer": made.optimizer, "scheduler": made.scheduler, "on_event": sent.hear}
    opening |= {"state": {"ballast": {"values": torch.zeros(BALLAST)}}} | scene.get("opening", {})
    with mementum.open_run(
        scene["root"], task="t", model=made.model, data=made.loader, every_steps=scene.get("every", 5), **opening
    ) as run:
        report(scene, began=run.step, resumed=run.resumed and run.resumed.step)
        sent.at("begin")
        for step, batches in run.steps(made.loader, TOTAL // accumulate, accumulate=accumulate):
            if step == 3:
                sent.after()
            group = batches if accumulate > 1 else [batches]
            loss = learn(made, group, partial(sent.at, "gradient", step))
            sent.at("body", step)
            if run.ends_epoch:
                sent.at("epoch", step)
            run.values["steps"] = step
            run.record(loss=loss)
            report(scene, step=step)
            if stop():
                if scene.get("exits"):
                    sys.exit(EXIT)  # from within the body, so that no boundary is reached
                break
            if scene.get("pause_s"):
                time.sleep(scene["pause_s"])
        else:
            sent.at("end")
    report(scene, digest=digest(made), finished=run.step)


def learn(made: Parts, group: list[Any], between: Callable[[], None]) -> float:
    """One step on one batch or on several."""
    if len(group) == 1:
        loss = step_once(made, group[0])
        between()
        return loss
    made.optimizer.zero_grad()
    total = 0.0
    for number, (inputs,) in enumerate(group):
        loss = (made.model(inputs + 0.1 * torch.rand(())) * random.random()).pow(2).mean() / len(group)
        loss.backward()
        total += loss.item()
        if number == 1:
            between()
    made.optimizer.step()
    made.scheduler.step()
    return total


def digest(made: Parts) -> str:
    found = fingerprint(made)
    return sha256(repr(sorted(found.items())).encode()).hexdigest()


class Sent:
    """Sends the signal once, where the scene says."""

    def __init__(self, scene: dict[str, Any]) -> None:
        self._scene, self._done = scene, False
        self._notes: list[str] = []
        self._failed: list[str] = []
        self._lost = self._noticed = 0

    def at(self, place: str, step: int | None = None) -> None:
        wanted = self._scene.get("at")
        if wanted != place or self._done or (step is not None and step < self._scene.get("from_step", 7)):
            return
        self._done = True
        for _ in range(self._scene.get("times", 1)):
            send(self._scene)

    def after(self) -> None:
        """From now on, in as many seconds as the scene says."""
        delay_s = self._scene.get("at")
        if isinstance(delay_s, float) and not self._done:
            self._done = True
            timer = threading.Timer(delay_s, send, (self._scene,))
            timer.daemon = True
            timer.start()

    def hear(self, event: object) -> None:
        match event:
            case PhaseBegan(phase=phase):
                self.at(phase)
            case Note(text=text):
                self._notes.append(text)
                report(self._scene, notes=self._notes)
            case Failed():
                self._failed.append(repr(event))
                report(self._scene, failed=self._failed)
            case CameToNothing():
                self._lost += 1
                report(self._scene, lost=self._lost)
            case Noticed():
                self._noticed += 1
                report(self._scene, noticed=self._noticed)
            case Committed(step=step, reason=reason):
                report(self._scene, saved=step, reason=reason)


class Watched(DataLoader[Any]):
    """A loader that sends the signal while a batch is awaited."""

    def __init__(self, workers: int, sent: Sent) -> None:
        data = dataset()
        super().__init__(data, batch_size=BATCH, sampler=ElasticSampler(data, seed=0), num_workers=workers)
        self._sent = sent

    def __iter__(self) -> Any:
        for number, batch in enumerate(super().__iter__()):
            self._sent.at("loader", number + 5)
            yield batch


def until_killed(scene: dict[str, Any]) -> None:
    """Train until kill -9, some while after the first step."""
    torch.set_num_threads(1)
    made = parts()
    began_s = time.monotonic()
    with mementum.open_run(scene["root"], task="t", model=made.model, optimizer=made.optimizer) as run:
        for step, batch in run.steps(made.loader, epochs=1000):
            run.record(loss=step_once(made, batch))
            report(scene, step=step, at_s=time.monotonic())
            time.sleep(0.005)
            if time.monotonic() - began_s > scene["for_s"]:
                os.kill(os.getpid(), signal.SIGKILL)


def two_runs(scene: dict[str, Any]) -> None:
    """Two models that are trained in turns, by two runs: the first makes two steps for each of the other's, and has
    answered the signal before the other sees it."""
    torch.set_num_threads(1)
    stop, sent = install(scene), Sent(scene)
    made, other = parts(), parts()
    wishes: dict[str, Any] = {"every_steps": 100, "slots": 0}
    with (
        mementum.open_run(f"{scene['root']}/a", task="a", model=made.model, on_event=sent.hear, **wishes) as first,
        mementum.open_run(f"{scene['root']}/b", task="b", model=other.model, **wishes) as second,
    ):
        for batch in list(made.loader) + list(made.loader):
            sent.at("body", first.step)
            first.record(loss=step_once(made, batch))
            if scene["answered"]:
                first.wait()
                first.record(loss=step_once(made, batch))
            second.record(loss=step_once(other, batch))
            report(scene, step=second.step)
            if stop():
                break
    report(scene, finished=True)


def in_a_thread(scene: dict[str, Any]) -> None:
    """The run is opened elsewhere than in the main thread."""
    thread = threading.Thread(target=train, args=({**scene, "handler": None},))
    install(scene)
    thread.start()
    thread.join()


def with_walltime(scene: dict[str, Any]) -> None:
    """The user has said how long the process may run."""
    torch.set_num_threads(1)
    made, sent = parts(), Sent(scene)
    config = {"notices": {"walltime": "1s", "lead": "0.4s"}}
    began_s = time.monotonic()
    with mementum.open_run(
        scene["root"], task="t", model=made.model, optimizer=made.optimizer, config=config, on_event=sent.hear
    ) as run:
        for step, batch in run.steps(made.loader, epochs=1000):
            run.record(loss=step_once(made, batch))
            report(scene, step=step)
            time.sleep(0.005)
            if time.monotonic() - began_s > 1.0:
                os.kill(os.getpid(), signal.SIGKILL)
