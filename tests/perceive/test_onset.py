"""The onset of a trouble: never later than it was, and by how much earlier."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mementum.perceive.onset import Floats, Onset, onset

SEEDS = range(40)
BEGAN = 600  # the last value as usual: the state after it is the first that is not clean
SPREAD = 0.06
Shape = Callable[[Floats], Floats]


def course(seed: int, count: int) -> tuple[Floats, Floats]:
    """Losses that fall and the logarithms of norms, with heavy tails."""
    dice, ticks = np.random.default_rng(seed), np.arange(count)
    losses = 3.0 + 2.0 * np.exp(-ticks / 150) - 1e-4 * ticks + dice.standard_t(6, count) * SPREAD / 1.22
    return losses, dice.standard_t(6, count) * 0.12 - 0.3 * np.log1p(ticks / 100)


def errors(shape: Shape, since: int, *, rising: int = 0, norms: float = 0.0) -> Floats:
    """Steps by which the onset is estimated too late (negative: too early), noticed `since` steps after it."""
    found = []
    for seed in SEEDS:
        losses, log_norms = course(seed, BEGAN + since + 1)
        after = np.arange(1.0, since + 1)
        losses[BEGAN + 1 :] += SPREAD * shape(after)
        log_norms[BEGAN + 1 :] += norms
        steps = np.arange(1, len(losses) + 1)
        found.append(onset(steps, losses, log_norms, rising=rising).step - (BEGAN + 1))
    return np.array(found, dtype=np.float64)


@pytest.mark.parametrize("size", [8.0, 30.0, 1e4])
def test_a_jump_is_dated_to_a_few_steps_before_it(size: float) -> None:
    late = errors(lambda after: np.full(len(after), size), 4)
    assert late.max() <= 0
    assert np.median(late) >= -10
    assert np.percentile(late, 10) >= -25
    assert late.min() >= -50


def test_what_grows_fast_is_dated_to_before_it_shows() -> None:
    late = errors(lambda after: 0.1 * np.expm1(0.3 * after), 16)
    assert late.max() <= 0
    assert np.median(late) >= -22


@pytest.mark.parametrize("since", [28, 30, 34])
def test_what_grows_by_15_percent_a_step_is_dated_to_before_it_shows(since: int) -> None:
    """It is a spread above the level after 16 steps, and four after 25."""
    late = errors(lambda after: 0.1 * np.expm1(0.15 * after), since)
    assert late.max() <= 0
    assert np.percentile(late, 10) >= -30


@pytest.mark.parametrize(("slope", "since"), [(1.0, 8), (0.5, 11), (0.5, 20), (0.5, 24), (0.2, 26)])
def test_a_rise_that_the_line_through_the_past_may_hold_is_dated_to_before_it(slope: float, since: int) -> None:
    late = errors(lambda after: slope * after, since)
    assert late.max() <= 0
    assert np.median(late) >= -32


def test_a_small_jump_that_is_seen_late_is_dated_to_before_it() -> None:
    late = errors(lambda after: np.full(len(after), 4.0), 18)
    assert late.max() <= 0
    assert np.percentile(late, 10) >= -40


@pytest.mark.parametrize("every", [2, 5, 8, 10, 20, 25])
@pytest.mark.parametrize(("jump", "rising", "seen"), [(0.5, 10, 12), (4.0, 0, 4), (0.5, 0, 7)])
def test_losses_that_are_known_now_and_then_date_it_to_before_the_last_usual_one(
    every: int, jump: float, rising: int, seen: int
) -> None:
    """A loss says something of the weights before its own step. `rising` and `seen` count losses."""
    for seed in range(12):
        dice, ticks = np.random.default_rng(seed), np.arange(1024)
        began = 1023 - every * seen + seed % every  # a step that comes after a usual loss
        losses = 3.0 + 2.0 * np.exp(-(ticks + 1000) / 400) + dice.normal(0.0, 0.05, 1024)
        losses[began + 1 :] += jump
        known = (1023 - ticks) % every == 0
        found = onset(ticks, np.where(known, losses, np.nan), np.full(1024, np.nan), rising=rising).step
        assert found <= ticks[known & (ticks <= began)][-1]


def test_losses_too_few_to_say_what_was_usual_trust_nothing() -> None:
    losses = np.full(1000, np.nan)
    losses[49::50] = np.random.default_rng(1).normal(3.0, 0.05, 20)
    losses[549:] += 4.0
    assert onset(np.arange(1000) + 500, losses, np.full(1000, np.nan)) == Onset(step=499)


@pytest.mark.parametrize(("slope", "since", "early"), [(0.2, 20, 80), (0.1, 32, 130), (0.05, 54, 250)])
def test_a_slow_rise_is_dated_to_before_it(slope: float, since: int, early: int) -> None:
    late = errors(lambda after: slope * after, since, rising=since // 2)
    assert late.max() <= 0
    assert np.median(late) >= -early


def test_the_gradient_that_jumped_before_the_loss_counts() -> None:
    late = errors(lambda after: np.where(after > 5, 20.0, 0.0), 10, norms=1.5)
    assert late.max() <= 0
    assert np.median(late) >= -8


def test_a_stretch_that_was_too_good_is_part_of_the_trouble() -> None:
    """Batches that repeat: what they teach away shows only afterwards."""
    late = errors(lambda after: np.where(after > 30, 20.0, -0.6 * after), 34)
    assert late.max() <= 0
    assert np.median(late) >= -20


def test_one_batch_that_repeats_for_long_is_part_of_the_trouble() -> None:
    """Its loss has no noise, and is far below all others when it ends: what was usual is found before it."""
    losses, log_norms = course(5, BEGAN + 170)
    losses[BEGAN : BEGAN + 165] = 3.0 * np.exp(-np.arange(165) / 40)
    losses[BEGAN + 165 :] = 5.0
    found = onset(np.arange(len(losses)), losses, log_norms)
    assert BEGAN - 40 <= found.step <= BEGAN
    assert found.level == pytest.approx(3.0, abs=0.2)


def digits(seed: int, count: int) -> Floats:
    """Losses that fall from 2.3 almost to 0, by more than a factor in some tens of steps, with noise as large as they
    are: small batches."""
    dice, ticks = np.random.default_rng(seed), np.arange(count)
    return (2.3 / (1 + (ticks / 40) ** 2) + 0.03) * dice.gamma(4, 0.25, count)


@pytest.mark.parametrize("began", [90, 150, 220])
@pytest.mark.parametrize("size", [4.0, 400.0])
def test_a_jump_after_a_steep_fall_is_dated_to_a_few_steps_before_it(began: int, size: float) -> None:
    late = []
    for seed in SEEDS:
        losses = digits(seed, began + 4)
        losses[began:] += size
        found = onset(np.arange(began + 4), losses, np.full(began + 4, np.nan))
        assert found.level is not None
        assert 0.0 < found.level < 1.5  # a line through the past would be below 0
        late.append(found.step - began)
    assert max(late) <= 0
    assert np.percentile(late, 5) >= -25
    assert min(late) >= -60


def test_a_loss_that_may_be_negative_is_taken_as_it_is() -> None:
    losses = np.random.default_rng(1).normal(-2.0, 0.1, 300)
    losses[296:] += 3.0
    found = onset(np.arange(300), losses, np.full(300, np.nan))
    assert 270 <= found.step <= 295
    assert found.level == pytest.approx(-2.0, abs=0.1)


def test_norms_that_are_known_no_longer_are_not_trusted() -> None:
    losses, log_norms = course(2, 400)
    losses[398:] += 2.0
    usual = onset(np.arange(400), losses, log_norms).step
    every_second = np.where(np.arange(400) % 2, log_norms, np.nan)
    assert onset(np.arange(400), losses, every_second).step == usual
    log_norms[390:] = np.nan
    found = onset(np.arange(400), losses, log_norms).step
    assert 370 <= found <= 390 - 4
    assert found < usual


def test_a_single_outlier_long_before_moves_nothing() -> None:
    losses, log_norms = course(3, 700)
    losses[696:] += 1.0
    steps = np.arange(700)
    plain = onset(steps, losses, log_norms)
    losses[640] += 2.0
    log_norms[630] += 3.0
    assert onset(steps, losses, log_norms).step == plain.step >= 680


def test_steps_that_are_missing_are_not_trusted() -> None:
    losses, log_norms = course(1, 300)
    losses[295:] += 2.0
    found = onset(np.arange(300) * 10, losses, log_norms)
    assert 2700 <= found.step < 2950
    assert found.step % 10 == 0  # of a step that was looked at


def test_what_is_unknown_is_passed_over() -> None:
    losses, log_norms = course(1, 400)
    losses[396:] += 2.0
    losses[::3] = np.nan
    log_norms[:] = np.nan
    assert 350 <= onset(np.arange(400), losses, log_norms).step <= 395
    losses[:] = np.nan
    assert onset(np.arange(400), losses, log_norms) == Onset(step=396)  # the last one alone, with the margin


def test_the_level_is_that_of_before() -> None:
    losses = np.concatenate([np.linspace(4.0, 3.0, 400), np.full(6, 9.0)]) + np.random.default_rng(1).normal(
        0, 0.02, 406
    )
    found = onset(np.arange(406), losses, np.full(406, np.nan))
    assert found.level == pytest.approx(3.0, abs=0.02)
    assert found.spread == pytest.approx(0.02, abs=0.006)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_with_too_little_before_nothing_is_trusted(count: int) -> None:
    losses, log_norms = course(1, count)
    found = onset(np.arange(7, 7 + count), losses, log_norms)
    assert found == Onset(step=6)


def test_a_loss_that_never_changed_has_its_jump_dated() -> None:
    losses = np.concatenate([np.full(100, 2.5), np.full(4, 2.6)])
    assert 90 <= onset(np.arange(104), losses, np.zeros(104)).step <= 99
