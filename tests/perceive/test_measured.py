"""The newest and the best of each metric: what counts when, and what a trouble takes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mementum.perceive.measured import BESTS_MAX, LATE_MAX, NAMES_MAX, Measured, is_on_device


def told(measured: Measured, step: int, onset: int | None = None, **metrics: Any) -> None:
    measured.note(metrics)
    measured.judge(step, onset)


def test_the_best_is_the_lowest_or_what_is_asked_for() -> None:
    measured = Measured({"accuracy": "max"})
    for step, (error, accuracy) in enumerate([(3.0, 0.1), (1.0, 0.3), (2.0, 0.2)], start=1):
        told(measured, step, error=error, accuracy=accuracy)
    assert measured.newest == {"error": 2.0, "accuracy": 0.2}
    assert measured.best == {"error": 1.0, "accuracy": 0.3}


def test_what_is_no_number_here_is_passed_over() -> None:
    measured = Measured({})
    told(measured, 1, a="word", b=True, c=None, d=torch.ones(2), e=torch.ones(1, device="meta"), f=10**400, g=7)
    assert measured.newest == measured.best == {"g": 7.0}
    assert is_on_device(torch.ones(1, device="meta"))
    assert not is_on_device(torch.ones(2, device="meta"))
    assert not is_on_device(torch.ones(1))
    assert not is_on_device(1.0)


def test_the_loss_and_its_gradients_count_only_where_the_best_of_them_is_wanted() -> None:
    for modes, names in (({}, set()), ({"loss": "min"}, {"loss"})):
        measured = Measured(modes)  # type: ignore[arg-type]
        told(measured, 1, loss=1.0, grad_norm=2.0)
        assert set(measured.newest) == names


def test_one_that_is_not_finite_is_the_newest_and_never_the_best() -> None:
    measured = Measured({"accuracy": "max"})
    told(measured, 1, error=math.nan, accuracy=math.inf)
    assert measured.best == {}
    assert math.isnan(measured.newest["error"])
    told(measured, 2, error=5.0, accuracy=0.5)
    told(measured, 3, error=-math.inf, accuracy=math.inf)
    assert measured.best == {"error": 5.0, "accuracy": 0.5}


def test_an_onset_takes_back_the_bests_from_it_on() -> None:
    measured = Measured({})
    for step in range(1, 6):
        told(measured, step, error=10.0 - step)
    told(measured, 6, onset=4, error=0.0)
    assert measured.best == {"error": 7.0}  # of step 3
    assert measured.newest == {"error": 0.0}
    told(measured, 7, error=6.0)  # the trouble is over, and what was told in it does not count
    assert measured.best == {"error": 6.0}
    told(measured, 8, onset=1)
    assert measured.best == {}


def test_what_is_told_between_two_judgements_counts_once_and_by_the_newest() -> None:
    measured = Measured({})
    measured.note({"error": 1.0})
    measured.note({"error": 2.0})
    measured.judge(1, None)
    assert measured.best == {"error": 2.0}
    measured.judge(2, 1)
    measured.judge(3, None)
    assert measured.best == {}


def test_what_comes_late_waits_until_it_is_taken_and_no_more_than_the_newest() -> None:
    measured = Measured({})
    for number in range(LATE_MAX + 1):
        measured.came_late({f"m{number}": number})
    assert measured.newest == {}
    measured.take_late()
    assert set(measured.newest) == {f"m{number}" for number in range(1, LATE_MAX + 1)}


def test_the_loss_of_an_evaluation_is_taken_once() -> None:
    measured = Measured({})
    told(measured, 1, val_loss=3.0, other=1.0)
    assert measured.take_evaluated() == 3.0
    assert measured.take_evaluated() is None


def test_what_has_not_counted_yet_can_be_forgotten() -> None:
    measured = Measured({})
    told(measured, 1, error=3.0)
    measured.came_late({"error": 1.0})
    measured.note({"error": 2.0, "val_loss": 1.0})
    measured.forget()
    measured.take_late()
    measured.judge(2, None)
    assert (measured.best, measured.take_evaluated()) == ({"error": 3.0}, None)


def test_no_more_names_and_bests_than_the_limits() -> None:
    measured = Measured({})
    told(measured, 1, **{f"m{number}": number for number in range(NAMES_MAX + 5)})
    told(measured, 2, m0=-1.0, more=1.0)
    assert len(measured.newest) == NAMES_MAX
    assert measured.newest["m0"] == -1.0
    for step in range(3, BESTS_MAX + 10):
        told(measured, step, m0=-step)
    assert len(measured.state()["bests"]["m0"]) <= BESTS_MAX
    told(measured, 1000, onset=3)
    assert measured.best["m0"] == 0.0  # the first one stays


def test_a_state_that_comes_back_has_a_best_from_before_every_onset() -> None:
    measured, again = Measured({}), Measured({})
    for step in range(1, 1001):
        told(measured, step, error=-step)
    again.apply(measured.state())
    told(again, 1001, onset=700)
    assert -699 <= again.best["error"] <= -600
    told(again, 1002, onset=2)
    assert again.best["error"] == -1.0


def test_a_state_comes_back_with_its_steps() -> None:
    measured = Measured({})
    for step in (1, 2):
        told(measured, step, error=5.0 - step)
    state = measured.state()
    bests = {"error": [[1, 4.0], [2, 3.0]]}
    assert state == {"newest": {"error": 3.0}, "best": {"error": 3.0}, "bests": bests}
    again = Measured({})
    again.apply(state)
    assert (again.newest, again.best) == (measured.newest, measured.best)
    told(again, 3, onset=3)
    assert again.best == {"error": 3.0}
    told(again, 4, onset=2)
    assert again.best == {"error": 4.0}
    told(again, 5, onset=1)
    assert again.best == {}
    again.apply({"newest": {"error": 3.0}, "best": {"error": 3.0}})  # of a version that told no steps
    assert again.best == {"error": 3.0}


@pytest.mark.parametrize(
    "state", [{}, {"newest": {"a": "x"}, "best": {}}, {"newest": {}, "best": {"a": None}}, {"newest": 1, "best": {}}]
)
def test_a_state_of_another_form_changes_nothing(state: dict[str, Any]) -> None:
    measured = Measured({})
    told(measured, 1, error=2.0)
    with pytest.raises((KeyError, ValueError, TypeError, AttributeError)):
        measured.apply(state)
    assert (measured.newest, measured.best) == ({"error": 2.0}, {"error": 2.0})
