"""Over-fitting: evaluations that get worse while the training loss falls."""

from __future__ import annotations

import random

from mementum.perceive.fitting import Overfitting
from mementum.perceive.signs import Limits, Sign
from mementum.records import Trouble


def of(eval_losses: list[float], train_losses: list[float], steps: int = 10) -> list[Sign | None]:
    """What is said at each evaluation, after so many steps with each training loss."""
    detector = Overfitting(Limits())
    signs = []
    for eval_loss, train_loss in zip(eval_losses, train_losses, strict=True):
        for _ in range(steps - 1):
            assert detector.look(train_loss, None) is None
        signs.append(detector.look(train_loss, eval_loss))
    return signs


def test_three_rises_while_the_training_loss_falls_are_told() -> None:
    signs = of([2.0, 1.8, 1.9, 2.0, 2.1], [2.0, 1.7, 1.5, 1.3, 1.1])
    assert signs[:4] == [None] * 4
    sign = signs[4]
    assert sign is not None
    assert sign.trouble is Trouble.OVERFITTING
    assert abs(sign.value - 0.3 / 2.1) < 1e-12
    assert sign.text == (
        "the evaluation loss rose 3 times in a row, from 1.8 to 2.1, while the training loss fell from 1.7 to 1.1"
    )


def test_both_rising_is_another_trouble() -> None:
    assert of([1.8, 1.9, 2.0, 2.1], [1.1, 1.2, 1.3, 1.4]) == [None] * 4


def test_a_rise_that_is_broken_or_tiny_is_nothing() -> None:
    falling = [2.0 - 0.1 * place for place in range(6)]
    assert of([1.8, 1.9, 2.0, 1.95, 2.0, 2.1], falling) == [None] * 6
    assert of([1.8, 1.801, 1.802, 1.803], falling[:4]) == [None] * 4


def test_evaluations_at_the_end_of_a_run_that_scatter_are_nothing() -> None:
    dice = random.Random(1)
    assert of([dice.gauss(3.0, 0.01) for _ in range(500)], [3.0 - 1e-4 * n for n in range(500)], 1) == [None] * 500


def test_what_is_no_number_is_passed_by() -> None:
    detector = Overfitting(Limits())
    for loss, eval_loss in ((None, None), (float("nan"), 1.0), (None, 2.0), (float("inf"), 3.0)):
        assert detector.look(loss, eval_loss) is None
    assert detector.look(1.0, float("nan")) is None
    assert detector.state() == {"evaluations": [], "sum": 1.0, "count": 1}


def test_losses_below_zero_are_losses_too() -> None:
    assert of([-2.0, -1.9, -1.8, -1.7], [-1.0, -1.5, -2.0, -2.5])[-1] is not None
    assert of([-0.1, 0.0, 0.1, 0.2], [3.0, 2.0, 1.0, 0.0])[-1] is not None
