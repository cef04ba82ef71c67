"""What comes from a device late is looked at as its own step's, all of it, and a program may say that it means it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from mementum.perceive import arriving
from mementum.perceive.alarms import Detectors
from mementum.perceive.arriving import Arriving
from mementum.perceive.health import EXPECTED, Judge
from mementum.perceive.late import Late
from mementum.perceive.measured import Measured
from mementum.perceive.seeing import Seeing
from mementum.perceive.vitals import VitalSigns
from mementum.records import Diagnosis, Health

BEGAN = 400


class OnDevice:
    """A number that lies on a device, as far as one looks at it from outside."""

    def __init__(self, value: float) -> None:
        self.device, self._value = torch.device("cuda"), value

    def numel(self) -> int:
        return 1

    def detach(self) -> torch.Tensor:
        return torch.tensor(self._value)


def late_by(steps: int, every: int = 1) -> type[Late[Any]]:
    """A device that is so far behind, and gives what it has at every so-manieth step."""

    class Slow(Late[Any]):
        calls = 0

        def ready(self) -> list[Any]:
            self.calls += 1
            if self.calls % every:
                return []
            kept = [self._pending.pop() for _ in range(min(steps, len(self)))]
            come = super().ready()
            self._pending.extend(reversed(kept))
            return come

    return Slow


def seeing() -> Seeing:
    return Seeing(
        signs=VitalSigns(),
        gradients=None,
        detectors=Detectors(),
        judge=Judge(),
        metrics=Measured({}),
        lr=lambda: None,
        every=1,
        scaled=False,
    )


def look(one: Seeing, step: int, loss: object, events: tuple[str, ...] = ()) -> Diagnosis:
    one.look(step, {"loss": loss}, events, at_s=float(step), save_s=None, rate=0.0)
    assert one.diagnosis is not None
    return one.diagnosis


def losses(rng: random.Random, count: int, jump: float = 4.0) -> list[float]:
    return [3.0 + 0.05 * rng.gauss(0, 1) + (jump if step >= BEGAN else 0.0) for step in range(count)]


@pytest.mark.parametrize(("lag", "every"), [(1, 1), (5, 1), (20, 1), (0, 4), (3, 7)])
def test_an_onset_is_where_it_was_however_late_losses_come(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, lag: int, every: int
) -> None:
    values = losses(rng, BEGAN + 150)
    plain = seeing()
    at_once = [look(plain, step, value) for step, value in enumerate(values)]
    monkeypatch.setattr(arriving, "Late", late_by(lag, every))
    slow = seeing()
    told = [look(slow, step, OnDevice(value)) for step, value in enumerate(values)]
    first, late = (next(one for one in row if one.health is not Health.CLEAN) for row in (at_once, told))
    assert first.seen == late.seen
    assert first.onset == late.onset
    assert first.onset is not None
    assert first.onset <= BEGAN - 1
    assert at_once[-1].health is told[-1].health is Health.DIVERGED


def test_what_is_here_waits_for_what_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving, "Late", late_by(1))
    one = Arriving()
    assert one.take(1, {"loss": OnDevice(1.0), "grad_norm": 7.0}, stepped=False) == ()
    (first,) = one.take(2, {"loss": 2.0}, stepped=True)
    assert (first.step, first.loss, first.norm, first.fetched, first.stepped) == (1, 1.0, 7.0, {"loss": 1.0}, False)
    one.forget()
    (third,) = one.take(3, {"loss": 3.0}, stepped=True)
    assert (third.step, third.loss, third.norm) == (3, 3.0, None)


def test_another_level_that_the_program_expects_is_no_trouble(rng: random.Random) -> None:
    values = losses(rng, BEGAN + 300)
    one = seeing()
    told = [look(one, step, value, (EXPECTED,) if step == BEGAN else ()) for step, value in enumerate(values)]
    assert {diagnosis.health for diagnosis in told} == {Health.CLEAN}
    last = len(values)
    for step in range(last, last + 100):  # what comes after it is seen as ever
        diagnosis = look(one, step, 11.0 + 0.05 * rng.gauss(0, 1))
    assert diagnosis.health is Health.DIVERGED
    assert diagnosis.onset is not None
    assert last - 30 <= diagnosis.onset <= last


def test_a_level_that_is_suspect_is_so_no_more_once_it_is_expected(rng: random.Random) -> None:
    one = seeing()
    for step, value in enumerate(losses(rng, BEGAN + 20)):
        before = look(one, step, value)
    assert (before.health, before.seen) == (Health.SUSPECT, BEGAN)
    assert before.onset is not None
    after = look(one, BEGAN + 20, 7.0, (EXPECTED,))
    assert (after.health, after.why) == (Health.CLEAN, "another level is expected")
    assert after.calm == BEGAN + 20 - before.onset + 1  # so that all since the onset are clean


def test_what_has_diverged_is_clean_after_the_hold_and_what_is_not_finite_never(rng: random.Random) -> None:
    one = seeing()
    for step, value in enumerate(losses(rng, BEGAN + 100)):
        assert (look(one, step, value).health is Health.DIVERGED) == (step >= BEGAN + 50)
    healths = [
        look(one, step, 7.0 + 0.05 * rng.gauss(0, 1), (EXPECTED,) if step == BEGAN + 100 else ()).health
        for step in range(BEGAN + 100, BEGAN + 210)
    ]
    assert healths == [Health.DIVERGED] * 99 + [Health.CLEAN] * 11
    assert look(one, BEGAN + 210, float("nan")).health is Health.DIVERGED
    assert look(one, BEGAN + 211, float("nan"), (EXPECTED,)).health is Health.DIVERGED
