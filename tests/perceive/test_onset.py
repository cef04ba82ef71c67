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
    assert np.median(late) >= -5
    assert np.percentile(late, 10) >= -20
    assert late.min() >= -50


def test_what_grows_fast_is_dated_to_before_it_shows() -> None:
    late = errors(lambda after: 0.1 * np.expm1(0.3 * after), 16)
    assert late.max() <= 0
    assert np.median(late) >= -15


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
    assert np.median(late) >= -15


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
    assert 370 <= onset(np.arange(400), losses, log_norms).step <= 395
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
