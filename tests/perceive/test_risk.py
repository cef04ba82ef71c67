"""The window policy's risk: what counts how much, the mean and the edge."""

from __future__ import annotations

import json
import random

import pytest

from mementum.perceive.risk import Risk, sign_of, weight_of
from mementum.records import Alarm, Trouble, Vitals


def vitals(step: int = 0, **signs: object) -> Vitals:
    return Vitals(step=step, at_s=float(step), **signs)  # type: ignore[arg-type]


def alarm(trouble: Trouble, chance: float = 0.0) -> Alarm:
    return Alarm(trouble=trouble, step=0, value=1.0, limit=1.0, text="", chance=chance)


@pytest.mark.parametrize(
    ("signs", "counts"),
    [
        ({}, 0.0),
        ({"finite": False}, 1.0),
        ({"memory_used": 0.92}, 0.0),
        ({"memory_used": 0.945}, 0.5),
        ({"memory_used": 0.99}, 1.0),
        ({"loss_z": 3.0}, 0.0),
        ({"loss_z": 4.5}, 0.5),
        ({"loss_z": 60.0}, 1.0),
        ({"loss_z": -60.0}, 0.0),
        ({"grad_z": 4.5}, 0.25),
        ({"grad_z": float("inf")}, 0.5),
        ({"grad_z": 60.0, "loss_z": 4.8}, 0.6),
        ({"loss_z": float("nan"), "memory_used": float("nan")}, 0.0),
    ],
)
def test_what_a_step_counts(signs: dict[str, object], counts: float) -> None:
    assert sign_of(vitals(0, **signs)) == pytest.approx(counts)


def test_what_an_alarm_counts() -> None:
    assert weight_of(alarm(Trouble.MEMORY, 0.3)) == 0.3
    assert weight_of(alarm(Trouble.SLOW)) == 0.0
    assert weight_of(alarm(Trouble.DRIFT)) == 1.0
    assert weight_of(alarm(Trouble.OVERFITTING)) == 0.0


def test_the_risk_is_the_mean_of_ten_steps_and_rises_once() -> None:
    risk = Risk()
    seen = [risk.look(vitals(step, memory_used=0.99)) for step in range(12)]
    assert [round(mean, 9) for mean, _ in seen] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]
    assert [rose for _, rose in seen] == [False] * 6 + [True] + [False] * 5


def test_it_rises_again_only_after_it_was_below_the_lower_edge() -> None:
    risk = Risk()
    risen = []
    for step, high in enumerate([True] * 10 + [False] * 7 + [True] * 10 + [False] * 9 + [True] * 10):
        if risk.look(vitals(step, finite=not high))[1]:
            risen.append(step)
    assert risen == [6, 42]  # not in the second climb: the mean had only come down to 0.3


def test_an_alarm_counts_at_ten_steps() -> None:
    risk = Risk()
    means = [risk.look(vitals(0), (alarm(Trouble.LOSS_SPIKE),))[0]]
    means += [risk.look(vitals(step))[0] for step in range(1, 20)]
    assert [round(10 * mean) for mean in means] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_a_single_bad_batch_is_no_risk() -> None:
    risk = Risk()
    assert max(risk.look(vitals(step, loss_z=20.0 if step == 5 else 0.0))[0] for step in range(30)) == 0.1


def test_it_goes_on_from_its_state() -> None:
    dice = random.Random(5)
    steps = [vitals(step, loss_z=dice.gauss(2.0, 3.0), finite=dice.random() > 0.3) for step in range(300)]
    whole, first, second = Risk(), Risk(), Risk()
    answers = [whole.look(step) for step in steps]
    begun = [first.look(step) for step in steps[:147]]
    second.apply(json.loads(json.dumps(first.state())))
    assert begun + [second.look(step) for step in steps[147:]] == answers
    assert any(rose for _, rose in answers)
