"""Slow trouble: a loss that creeps up, steps that take longer, updates that vanish."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mementum.perceive.drifts import VANISHED_STEPS, Drift, SlowSteps, VanishingUpdate
from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble, Vitals


def vitals(step: int = 0, **signs: object) -> Vitals:
    return Vitals(step=step, at_s=float(step), **signs)  # type: ignore[arg-type]


def told(signs: list[Sign | None]) -> list[int]:
    return [place for place, sign in enumerate(signs) if sign is not None]


def of_steps(durations: list[float]) -> list[Sign | None]:
    detector = SlowSteps(Limits())
    return [detector.look(vitals(step_s=step_s)) for step_s in durations]


def durations(seed: int, count: int, usual_s: float) -> list[float]:
    dice = random.Random(seed)
    return [usual_s * dice.lognormvariate(0.0, 0.05) for _ in range(count)]


def test_a_loss_that_creeps_up_is_told_with_where_it_came_from() -> None:
    dice = random.Random(1)
    detector = Drift(Limits())
    losses = [dice.gauss(2.0, 0.05) for _ in range(800)] + [dice.gauss(2.0 + 0.0005 * n, 0.05) for n in range(400)]
    signs = [detector.look(vitals(loss=loss)) for loss in losses]
    places = told(signs)
    assert 800 < places[0] < 1000  # and again when it has learnt that level: it goes on rising
    sign = signs[places[0]]
    assert sign is not None
    assert (sign.trouble, sign.limit, sign.chance) == (Trouble.DRIFT, 30.0, 0.0)
    assert sign.value > 30.0
    assert sign.text.startswith("the loss drifts up: above its level of 2.0")


def test_losses_that_are_no_numbers_are_passed_by() -> None:
    detector = Drift(Limits())
    before = detector.state()
    for loss in (None, float("nan"), float("inf"), float("-inf")):
        assert detector.look(vitals(loss=loss)) is None
    assert detector.state() == before


def test_steps_that_take_half_as_long_again_are_told_once() -> None:
    signs = of_steps(durations(1, 500, 0.4) + durations(2, 1000, 0.6))
    places = told(signs)
    assert len(places) == 1
    assert 510 < places[0] < 520  # 30 / (3 - 0.5) steps
    sign = signs[places[0]]
    assert sign is not None
    assert sign.trouble is Trouble.SLOW
    assert 1.2 < sign.value < 1.6
    assert "times what they took (0.4 s)" in sign.text


def test_a_slowdown_that_nobody_would_look_into_is_nothing() -> None:
    assert told(of_steps(durations(1, 500, 0.4) + durations(2, 2000, 0.44))) == []


def test_a_slowdown_that_creeps_adds_up() -> None:
    parts = [durations(part, 300, 0.4 * 1.06**part) for part in range(6)]
    places = told(of_steps([step_s for part in parts for step_s in part]))
    assert len(places) == 1
    assert 900 < places[0] < 1500


def test_an_evaluation_now_and_then_is_no_slowdown() -> None:
    values = durations(3, 3000, 0.4)
    values[100::50] = [30.0] * len(values[100::50])
    assert told(of_steps(values)) == []


def test_durations_that_are_none_are_passed_by() -> None:
    detector = SlowSteps(Limits())
    before = detector.state()
    for step_s in (None, 0.0, -1.0, float("nan"), float("inf")):
        assert detector.look(vitals(step_s=step_s)) is None
    assert detector.state() == before


def of_updates(updates: Sequence[tuple[float | None, float | None]]) -> list[Sign | None]:
    detector = VanishingUpdate(Limits())
    return [detector.look(vitals(update_ratio=update, lr=lr)) for update, lr in updates]


def test_updates_that_vanish_at_the_same_learning_rate_are_told() -> None:
    signs = of_updates([(1e-3, 3e-4)] * 200 + [(1e-6, 3e-4)] * 20)
    assert told(signs)[0] == 200 + VANISHED_STEPS - 1
    sign = signs[-1]
    assert sign is not None
    assert sign.text == "updates vanish: 1e-06 of the weights a step, 0.001 of what is usual at this learning rate"
    assert not sign.spoils


def test_updates_that_go_down_with_the_learning_rate_are_nothing() -> None:
    rates = [3e-4 * (1.0 - step / 2000) for step in range(2001)]
    assert told(of_updates([(3.0 * lr, lr) for lr in rates])) == []


def test_an_update_of_nothing_is_told_and_one_that_is_skipped_is_not() -> None:
    usual: list[tuple[float | None, float | None]] = [(1e-3, 3e-4)] * 200
    assert told(of_updates([*usual, (0.0, 3e-4), *usual])) == []
    assert told(of_updates(usual + [(0.0, 3e-4)] * 8)) == [207]


def test_without_both_numbers_nothing_is_said_of_updates() -> None:
    assert told(of_updates([(None, 3e-4), (1e-3, None), (float("nan"), 3e-4), (1e-3, -1.0)] * 100)) == []


def test_a_slowdown_is_timed_by_the_steps_since_it_began() -> None:
    sign = of_steps([0.4, 0.42] * 250 + [1.0] * 13)[-2]
    assert sign is not None
    assert sign.text == "steps take 1 s, 2.43 times what they took (0.411 s)"
