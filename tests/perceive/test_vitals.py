"""Tests of the vital signs, against plain numpy over the same values, and on a real run's log."""

from __future__ import annotations

import random
import re
from math import inf, log, nan
from pathlib import Path

import numpy as np
import pytest
import torch

from mementum.perceive.robust import Trend
from mementum.perceive.vitals import GradientReading, VitalSigns
from mementum.records import Vitals

LOG = "modded-nanogpt-logs/llmc_gpt2-124M_2024-10-13_main.log"
REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / LOG


def see(signs: VitalSigns, step: int, **given: object) -> Vitals:
    return signs.observe(step, at_s=float(step), **given)  # type: ignore[arg-type]


def spread_of(values: list[float]) -> float:
    return 1.4826 * float(np.median(np.abs(np.array(values) - np.median(values))))


def test_the_signs_of_the_loss_are_those_of_plain_numpy(rng: random.Random) -> None:
    signs, trend, residuals = VitalSigns(window=64, long=200), Trend(64), []
    for step in range(400):
        loss = 4 - 0.002 * step + rng.gauss(0, 0.05)
        seen = see(signs, step, loss=loss)
        expected, slope = trend.predict(), trend.slope
        if expected is None or slope is None:
            assert seen.loss_z is None
        else:
            residual, past = loss - expected, residuals[-64:]
            if len(past) >= 20:
                unit = spread_of(past)
                assert seen.loss_z == pytest.approx((residual - float(np.median(past))) / unit)
                assert seen.loss_slope == pytest.approx(slope / unit)
                assert seen.loss_spread == pytest.approx(spread_of(residuals[-32:]) / spread_of(residuals[-200:]))
            residuals.append(residual)
        trend.add(loss)
    assert seen.loss_slope is not None
    assert seen.loss_slope < 0


def test_the_signs_of_the_norm_are_those_of_plain_numpy(rng: random.Random) -> None:
    signs, norms = VitalSigns(window=50), []
    for step in range(200):
        norm = rng.lognormvariate(0, 0.3)
        seen = see(signs, step, grad_norm=norm)
        past = [log(one) for one in norms[-50:]]
        norms.append(norm)
        assert seen.grad_norm == norm
        if step >= 20:
            assert seen.grad_z == pytest.approx((log(norm) - float(np.median(past))) / spread_of(past))
            last = norms[-32:]
            assert seen.grad_noise == pytest.approx(float(np.var(last) / np.median(last) ** 2))
        else:
            assert seen.grad_z is None


def test_a_spike_stands_out_and_a_steep_healthy_start_does_not(rng: random.Random) -> None:
    signs = VitalSigns()
    for step in range(300):
        seen = see(signs, step, loss=2 + 9 * 0.98**step + rng.gauss(0, 0.05), grad_norm=rng.uniform(0.9, 1.1))
        assert seen.loss_z is None or seen.loss_z < 6
    seen = see(signs, 300, loss=5.0, grad_norm=4.0)
    assert seen.loss_z is not None
    assert seen.loss_z > 20
    assert seen.grad_z is not None
    assert seen.grad_z > 6


def test_the_norms_before_a_real_spike_of_bloom_stand_out(rng: random.Random) -> None:
    """Steps 31214 to 31219 of BLOOM: the norm rose fourfold four steps before the loss did."""
    signs = VitalSigns()
    for step in range(200):
        see(signs, step, loss=2.2 + rng.gauss(0, 0.03), grad_norm=rng.lognormvariate(log(0.242), 0.15))
    seen = [see(signs, 200 + at, grad_norm=norm).grad_z or 0.0 for at, norm in enumerate((0.242, 0.947, 2.39, 15.9))]
    assert seen[0] < 4 < 6 < seen[1] < seen[2] < seen[3]


def test_neither_scale_nor_unit_changes_a_sign(rng: random.Random) -> None:
    small, large = VitalSigns(), VitalSigns()
    for step in range(300):
        loss, norm = 3 + rng.gauss(0, 0.1), rng.uniform(1, 2)
        one, other = (
            see(small, step, loss=loss, grad_norm=norm),
            see(large, step, loss=loss * 1024, grad_norm=norm * 64),
        )
    assert one.loss_z == pytest.approx(other.loss_z)
    assert one.loss_slope == pytest.approx(other.loss_slope)
    assert one.grad_z == pytest.approx(other.grad_z)
    assert one.grad_noise == pytest.approx(other.grad_noise)


@pytest.mark.parametrize("loss", [0.0, 0.1, -3.3, 1e30])
def test_of_a_constant_loss_nothing_stands_out(loss: float) -> None:
    signs = VitalSigns()
    for step in range(300):
        seen = see(signs, step, loss=loss, grad_norm=abs(loss))
    assert (seen.loss_z, seen.loss_slope, seen.loss_spread) == (0.0, 0.0, 1.0)
    assert (seen.grad_z, seen.grad_noise) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [nan, inf, -inf, 1e300])
def test_what_is_not_finite_is_told_and_compared_with_nothing(bad: float, rng: random.Random) -> None:
    signs, clean = VitalSigns(), VitalSigns()
    for step in range(200):
        given = {"loss": rng.random(), "grad_norm": rng.random()}
        assert see(signs, step, **given).finite
        see(clean, step, **given)
        if step % 5 == 0:
            for wrong in ({"loss": bad}, {"grad_norm": bad}):
                seen = see(signs, step, **wrong)
                assert (seen.finite, seen.loss, seen.loss_z, seen.grad_norm, seen.grad_z) == (False,) + (None,) * 4
    assert see(signs, 200, loss=0.5, grad_norm=0.5) == see(clean, 200, loss=0.5, grad_norm=0.5)


def test_nothing_given_is_no_trouble() -> None:
    signs = VitalSigns()
    for step in range(100):
        assert see(signs, step) == Vitals(step=step, at_s=float(step))
    assert signs.loss_std(100) is None


def test_nan_from_the_first_step_on() -> None:
    signs = VitalSigns()
    for step in range(100):
        assert see(signs, step, loss=nan, lr=nan, memory_used=nan, memory_steps_left=nan, step_s=nan) == Vitals(
            step=step, at_s=float(step), finite=False, loss_finite=False
        )


def test_what_is_no_number_is_told_once_and_tensors_are_numbers() -> None:
    told: list[str] = []
    signs = VitalSigns(tell=told.append)
    assert see(signs, 0, loss=torch.tensor(2.5, requires_grad=True), lr=-1.0).loss == 2.5
    for wrong in ("high", torch.ones(3), object()):
        seen = see(signs, 1, loss=wrong)
        assert (seen.loss, seen.finite) == (None, True)
    assert len(told) == 1
    assert told[0].startswith("loss: str is no number")


def test_what_others_measured_is_passed_on() -> None:
    reading = GradientReading(norm=3.0, layer_ratio=2.0, layer="head", update_ratio=1e-3, curvature=1e-8)
    seen = see(VitalSigns(), 5, reading=reading, lr=0.1, memory_used=0.5, memory_steps_left=inf, step_s=0.25)
    assert (seen.grad_norm, seen.layer_ratio, seen.update_ratio, seen.curvature) == (3.0, 2.0, 1e-3, 1e-8)
    assert (seen.lr, seen.memory_used, seen.memory_steps_left, seen.step_s) == (0.1, 0.5, inf, 0.25)
    assert not see(VitalSigns(), 5, reading=GradientReading(finite=False)).finite


def test_estimated_norms_are_not_mixed_with_given_ones() -> None:
    signs = VitalSigns()
    assert see(signs, 0, reading=GradientReading(norm=3.0)).grad_norm == 3.0
    assert see(signs, 1, reading=GradientReading(norm=3.0), grad_norm=7.0).grad_norm == 7.0
    assert see(signs, 2, reading=GradientReading(norm=3.0)).grad_norm is None


def test_a_slope_is_one_of_steps_whatever_lies_between_losses() -> None:
    every, tenth = VitalSigns(), VitalSigns()
    noise = random.Random(4)
    for number in range(200):
        loss = 5 - 0.01 * number + noise.gauss(0, 0.1)
        one, other = see(every, number, loss=loss), see(tenth, number * 10, loss=loss)
    assert one.loss_slope == pytest.approx((other.loss_slope or 0.0) * 10)
    assert one.loss_z == other.loss_z


def test_the_deviation_of_the_last_losses_is_that_of_numpy(rng: random.Random) -> None:
    signs, losses = VitalSigns(long=150), [rng.random() for _ in range(400)]
    for step, loss in enumerate(losses):
        see(signs, step, loss=loss)
    assert signs.loss_std(100) == pytest.approx(float(np.std(losses[-100:])))


@pytest.mark.parametrize("at", [0, 10, 45, 130, 1200])
def test_what_is_brought_back_sees_what_it_would_have_seen(at: int, rng: random.Random) -> None:
    signs, again = VitalSigns(), VitalSigns()
    for step in range(at):
        see(signs, step, loss=rng.random(), grad_norm=rng.random())
    again.apply(signs.state())
    for step in range(at, at + 300):
        loss, norm = rng.random(), rng.random()
        assert see(signs, step, loss=loss, grad_norm=norm) == see(again, step, loss=loss, grad_norm=norm)
    assert signs.state() == again.state()


@pytest.mark.skipif(not REAL.exists(), reason="the log of a real run is not here")
def test_on_a_healthy_real_run_few_steps_stand_out() -> None:
    signs, alarms, steps = VitalSigns(), 0, 0
    for step, loss, norm in re.findall(r"s:(\d+) trl:(\S+) lr:\S+ norm:(\S+)", REAL.read_text()):
        seen = see(signs, int(step), loss=float(loss), grad_norm=float(norm))
        assert seen.finite
        alarms += seen.loss_z is not None and seen.loss_z > 6
        steps += 1
    assert steps > 19_000
    assert alarms <= 3 * steps / 1000


def test_what_was_trained_down_to_its_rounding_is_compared_with_that() -> None:
    """A linear model whose loss of 20 has come to 7e-12: float32 can do no better, and jumps about by it."""
    dice = random.Random(1)
    signs, again = VitalSigns(), VitalSigns()
    for step in range(400):
        value = max(20.0 * 0.8**step, 7e-12 * (1 + 1e-4 * dice.gauss(0, 1)))
        seen = signs.observe(step, at_s=0.0, loss=value)
    assert seen.loss_z is not None
    again.apply(signs.state())
    jumps = [one.observe(400, at_s=0.0, loss=7.5e-12).loss_z for one in (signs, again)]
    assert jumps[0] == jumps[1]
    assert abs(jumps[0] or 0.0) < 0.01
    assert (signs.observe(401, at_s=0.0, loss=1e-3).loss_z or 0.0) > 100.0
