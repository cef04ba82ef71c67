"""Of all that are clean and full, the best by a metric stay."""

from __future__ import annotations

import math
from typing import Any

import pytest

from made import entry
from mementum.decide.retain import Retention, retain
from mementum.records import Entry, Granularity, Health


def kept(entries: list[Entry], best: int = 1, best_of: str = "loss") -> dict[int, str]:
    verdicts = retain(entries, Retention(last=1, best=best, best_of=best_of))
    return {int(one.id[1:]): one.reason for one in verdicts if one.keep}


def test_the_best_stays() -> None:
    entries = [entry(1, loss=2.0), entry(2, loss=1.5), entry(3, loss=1.75), entry(4, loss=9.0)]
    assert kept(entries) == {2: "the best by loss: 1.5", 4: "one of the newest 1"}
    assert kept(entries, best=2) == {
        2: "one of the best 2 by loss: 1.5",
        3: "one of the best 2 by loss: 1.75",
        4: "one of the newest 1",
    }
    assert kept(entries, best=0) == {4: "one of the newest 1"}


def test_more_may_be_better() -> None:
    entries = [entry(seq, metrics={"acc": value}) for seq, value in ((1, 0.5), (2, 0.9), (3, 0.7))]
    assert kept(entries, best_of="-acc") == {2: "the best by acc: 0.9", 3: "one of the newest 1"}
    assert kept(entries, best_of="acc") == {1: "the best by acc: 0.5", 3: "one of the newest 1"}
    assert kept(entries, best_of="-f1") == {3: "one of the newest 1"}


def test_of_equal_ones_the_newer() -> None:
    assert kept([entry(1, loss=1.0), entry(2, loss=1.0), entry(3, loss=2.0)]).keys() == {2, 3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400), True, "0.1", None])
def test_what_is_no_finite_number_does_not_count(value: Any) -> None:
    entries = [entry(1, metrics={"loss": value}), entry(2, loss=3.0), entry(3, loss=4.0)]
    assert kept(entries).keys() == {2, 3}
    assert kept(entries, best_of="-loss").keys() == {3}


@pytest.mark.parametrize(
    "known",
    [
        {"judged": Health.SUSPECT},
        {"judged": Health.DIVERGED},
        {"granularity": Granularity.WEIGHTS},
    ],
)
def test_only_clean_full_ones_count(known: dict[str, Any]) -> None:
    entries = [entry(1, loss=0.1, **known), entry(2, loss=3.0), entry(3, loss=4.0), entry(4, loss=5.0)]
    assert kept(entries).keys() == {2, 4}


def test_judging_twice_changes_nothing(rng: Any) -> None:
    entries = [entry(seq, loss=rng.choice([1.0, 2.0, rng.random()])) for seq in range(1, 40)]
    stay = kept(entries, best=3)
    assert kept([one for one in entries if one.manifest.seq in stay], best=3) == stay
