"""Sudden trouble: losses and gradients that jump, and those that are no numbers."""

from __future__ import annotations

import random

import pytest

from mementum.perceive.signs import Limits, Sign
from mementum.perceive.spikes import GradientSpike, LossSpike, NonFinite, Persistence
from mementum.records import Trouble, Vitals


def vitals(step: int = 0, **signs: object) -> Vitals:
    return Vitals(step=step, at_s=float(step), **signs)  # type: ignore[arg-type]


def of_losses(*loss_z: float | None) -> list[Sign | None]:
    detector = LossSpike(Limits())
    return [detector.look(vitals(step, loss=2.5, loss_z=z)) for step, z in enumerate(loss_z)]


def usual_gradients(count: int = 200) -> GradientSpike:
    """A detector that has seen norms around 0.25."""
    detector, dice = GradientSpike(Limits()), random.Random(1)
    for _ in range(count):
        assert detector.look(vitals(grad_norm=0.25 * 2.0 ** dice.gauss(0.0, 0.2), grad_z=0.0)) is None
    return detector


def test_persistence_counts_the_last_steps_only() -> None:
    persistence = Persistence(3)
    assert [persistence.add(high) for high in (True, True, True, True, False, False, False)] == [1, 2, 3, 3, 2, 1, 0]


def test_a_bad_batch_is_nothing() -> None:
    assert of_losses(0.1, 25.0, 0.3, -1.0, 12.0, 0.0, 7.0, 0.2) == [None] * 8


def test_a_loss_that_stays_up_is_told_at_the_fourth_step() -> None:
    signs = of_losses(0.0, 7.0, 4.0, 3.5, 3.2)
    assert signs[:4] == [None] * 4
    sign = signs[4]
    assert sign is not None
    assert (sign.trouble, sign.value, sign.limit) == (Trouble.LOSS_SPIKE, 3.2, 3.0)
    assert sign.text == "the loss stays up: 2.5, above trend at 4 of the last 6 steps, by more than 6 spreads at 1"


def test_a_loss_that_stays_a_little_up_is_left_to_the_cusum() -> None:
    assert of_losses(*[5.9] * 20) == [None] * 20


def test_a_jump_beyond_all_batches_is_told_at_once() -> None:
    sign = of_losses(0.0, 102.4)[1]
    assert sign is not None
    assert (sign.value, sign.limit) == (102.4, 40.0)
    assert sign.text == "the loss jumped to 2.5, 102.4 spreads above its trend"


@pytest.mark.parametrize("z", [None, float("nan"), -100.0])
def test_a_loss_without_a_place_is_nothing(z: float | None) -> None:
    assert of_losses(*[z] * 10) == [None] * 10


def test_a_norm_of_almost_four_times_the_usual_is_told_at_once() -> None:
    sign = usual_gradients().look(vitals(grad_norm=0.96, grad_z=8.0))
    assert sign is not None
    assert (sign.trouble, sign.limit) == (Trouble.GRAD_SPIKE, 3.5)
    assert sign.value == pytest.approx(3.84, rel=0.05)


def test_a_ratio_without_an_outlier_or_an_outlier_without_a_ratio_is_nothing() -> None:
    assert usual_gradients().look(vitals(grad_norm=0.96, grad_z=5.0)) is None  # norms that scatter much
    assert usual_gradients().look(vitals(grad_norm=0.27, grad_z=90.0)) is None  # norms that hardly scatter


def test_a_norm_that_stays_high_is_told_at_the_fourth_step() -> None:
    detector = usual_gradients()
    signs = [detector.look(vitals(grad_norm=0.7, grad_z=7.0)) for _ in range(4)]
    assert signs[:3] == [None] * 3
    assert signs[3] is not None
    assert signs[3].limit == 2.0
    assert signs[3].text.endswith("and was high at 4 of the last 6 steps")


def test_norms_are_compared_with_nothing_before_they_are_known() -> None:
    detector = GradientSpike(Limits())
    signs = [detector.look(vitals(grad_norm=norm, grad_z=50.0)) for norm in [0.1] * 40 + [100.0]]
    assert signs == [None] * 41


@pytest.mark.parametrize("norm", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_a_norm_that_is_none_moves_nothing(norm: float | None) -> None:
    detector = usual_gradients()
    before = detector.state()
    assert detector.look(vitals(grad_norm=norm, grad_z=50.0)) is None
    assert detector.state() == before


def test_the_largest_norm_there_is_does_not_overflow() -> None:
    detector = GradientSpike(Limits())
    for place in range(100):
        detector.look(vitals(grad_norm=1e-300 * (1 + place % 2), grad_z=0.0))
    sign = detector.look(vitals(grad_norm=1e308, grad_z=50.0))
    assert sign is not None
    assert sign.value == pytest.approx(1.0142e304, rel=1e-3)


def test_a_layer_is_told_when_it_stays_out_of_order() -> None:
    detector = GradientSpike(Limits())
    ratios = [1.0, 30.0, 2.0, 1.0, 1.0, 1.0, 1.0, 11.0, 12.0, 13.0, 14.0]
    signs = [detector.look(vitals(layer_ratio=ratio)) for ratio in ratios]
    assert signs[:10] == [None] * 10
    assert signs[10] is not None
    assert signs[10].text == "the gradient norm of a layer stays at 14.0 times its usual one"


def test_what_is_not_finite_is_told_at_once() -> None:
    detector = NonFinite(Limits())
    assert detector.look(vitals(loss=2.0)) is None
    gradient = detector.look(vitals(loss=2.0, finite=False))
    loss = detector.look(vitals(finite=False, loss_finite=False))
    no_loss = detector.look(vitals(finite=False))  # a step that gave none
    assert no_loss is not None
    assert no_loss.text == "gradients are not finite"
    assert gradient is not None
    assert loss is not None
    assert (gradient.text, loss.text) == ("gradients are not finite", "the loss is not finite")
    assert gradient.trouble is loss.trouble is Trouble.NON_FINITE


def test_where_no_loss_was_ever_given_either_may_be_meant() -> None:
    sign = NonFinite(Limits()).look(vitals(finite=False))
    assert sign is not None
    assert sign.text == "the loss or a gradient is not finite"


def test_the_overflows_of_a_loss_scale_are_no_trouble_until_they_do_not_end() -> None:
    detector = NonFinite(Limits())
    row = [detector.look(vitals(loss=2.0, finite=False, held_back=True)) for _ in range(15)]
    assert row == [None] * 15
    assert detector.look(vitals(loss=2.0)) is None
    row = [detector.look(vitals(loss=2.0, finite=False, held_back=True)) for _ in range(16)]
    assert row[:15] == [None] * 15
    assert row[15] is not None
    assert row[15].text == "gradients are not finite at 16 steps in a row"


def test_a_loss_scale_excuses_no_loss() -> None:
    detector = NonFinite(Limits())
    detector.look(vitals(loss=2.0))
    assert (
        detector.look(vitals(finite=False, held_back=True)) is None
    )  # a step without a loss, whose gradients overflow by design
    sign = detector.look(vitals(finite=False, loss_finite=False))
    assert sign is not None
    assert sign.text == "the loss is not finite"
