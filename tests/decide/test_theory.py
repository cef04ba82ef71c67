"""The formulas give the figures that their authors published, and are least where they claim to be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.theory import daly, local_interval, waste, young

MINUTE_S, HOUR_S = 60.0, 3600.0
COSTS, MTBFS = st.floats(0.01, 600), st.floats(3600, 1e7)


@pytest.mark.parametrize(("mtbf_h", "published_min"), [(24.0, 117), (6.0, 57), (0.25, 9.1)])
def test_daly_for_saves_of_five_minutes(mtbf_h: float, published_min: float) -> None:
    minutes = daly(5 * MINUTE_S, mtbf_h * HOUR_S) / MINUTE_S
    assert minutes == pytest.approx(published_min, abs=0.5 if published_min > 10 else 0.05)


def test_daly_to_the_digits() -> None:
    found = [daly(300, mtbf_h * HOUR_S) / MINUTE_S for mtbf_h in (24, 6, 0.25)]
    assert found == pytest.approx([116.69, 56.71, 9.14], abs=0.005)


def test_daly_where_a_save_takes_longer_than_two_failures() -> None:
    assert daly(200, 100) == 100
    assert daly(1000, 100) == 100


def test_young() -> None:
    assert young(5, 3.09 * HOUR_S) == pytest.approx(334, abs=1)  # at the rate that Llama 3's training met
    assert young(0, 1e9) == 0


@given(cost_s=COSTS, mtbf_s=MTBFS, part=st.floats(0.1, 10))
def test_no_interval_wastes_less_than_youngs(cost_s: float, mtbf_s: float, part: float) -> None:
    best = young(cost_s, mtbf_s)
    least = waste(best, cost_s=cost_s, mtbf_s=mtbf_s)
    assert least == pytest.approx(math.sqrt(2 * cost_s / mtbf_s))
    other = waste(part * best, cost_s=cost_s, mtbf_s=mtbf_s)
    assert other == pytest.approx(least * (part + 1 / part) / 2)  # what a wrong interval costs
    assert other >= least * (1 - 1e-12)


def test_a_restart_is_wasted_once_a_failure() -> None:
    assert waste(100, cost_s=1, mtbf_s=1e4, restart_s=300) == pytest.approx(0.01 + 0.005 + 0.03)


@given(cost_s=COSTS, mtbf_s=MTBFS)
def test_the_local_interval_is_youngs_at_a_constant_rate(cost_s: float, mtbf_s: float) -> None:
    assert local_interval(cost_s, 1 / mtbf_s) == pytest.approx(young(cost_s, mtbf_s))


def test_where_nothing_fails_nothing_is_saved() -> None:
    assert local_interval(1.0, 0.0) == math.inf
