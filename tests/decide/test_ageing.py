"""Levels go by their age; what must stay keeps all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from made import NOW_S, entry, named
from mementum.decide.ageing import DAY_S, PAUSE_MAX_S, Aged, Ageing, aged
from mementum.records import Granularity, Health

NEWER = [entry(8), entry(9)]


def left(*entries: object, **days: float) -> dict[str, tuple[int, ...]]:
    found = aged([*entries, *NEWER], Ageing(**days), now_s=NOW_S)  # type: ignore[list-item]
    return {one.id: one.levels for one in found}


def test_without_a_limit_nothing_ages() -> None:
    assert left(entry(1, days=1e4)) == {}


def test_a_level_goes_on_its_day() -> None:
    old = entry(1, days=30.0)
    assert left(old, level_1=30.0) == {"c1": (0, 2)}
    assert left(old, level_1=30.01) == {}
    assert left(old, level_1=7.0, level_2=14.0) == {"c1": (0,)}
    assert left(old, level_0=1.0) == {"c1": (1, 2)}


def test_after_the_last_level_it_goes() -> None:
    (one,) = aged([entry(1, days=30.0), *NEWER], Ageing(level_0=20.0, level_1=7.0, level_2=20.0), now_s=NOW_S)
    assert one == Aged(
        id="c1",
        folder="step_0000000010",
        levels=(),
        reason="30.0 days old: weights after 20, optimizer after 7, context after 20 days",
    )


def test_what_has_gone_does_not_go_again() -> None:
    weights = Granularity.WEIGHTS
    assert left(entry(1, days=30.0, levels=(0, 2), granularity=weights), level_1=7.0) == {}
    assert left(entry(1, days=30.0, granularity=weights), level_1=7.0) == {}  # it was saved without an optimizer
    assert left(entry(1, days=30.0, granularity=weights), level_1=7.0, level_0=7.0) == {"c1": (2,)}


@pytest.mark.parametrize(
    "known",
    [{"pinned": "mine"}, {"damaged": "x"}, {"verified": "t"}],
)
def test_what_must_stay_keeps_all(known: dict[str, str]) -> None:
    assert left(replace(entry(1, days=99.0), **known), level_0=1.0, level_1=1.0, level_2=1.0) == {}


def test_the_newest_clean_one_keeps_all_however_old() -> None:
    entries = [entry(1, days=99.0), entry(2, days=98.0), entry(3, days=97.0, judged=Health.SUSPECT)]
    found = aged(entries, Ageing(level_1=1.0), now_s=NOW_S)
    assert [one.id for one in found] == ["c1"]
    assert aged(entries, Ageing(level_1=1.0), now_s=NOW_S, waiting={"c1": "on its way"}) == ()


def test_whose_files_others_name_keeps_all() -> None:
    base, other = entry(1, days=99.0), entry(2, days=98.0, files=[named(1)])
    assert left(base, other, level_1=1.0) == {"c2": (0, 2)}
    assert left(base, replace(other, manifest=replace(other.manifest, files=())), level_1=1.0) == {
        "c1": (0, 2),
        "c2": (0, 2),
    }


@pytest.mark.parametrize("time", ["", "yesterday", "2026-13-01T00:00:00Z"])
def test_without_a_time_nothing_ages(time: str) -> None:
    one = entry(1)
    assert left(replace(one, manifest=replace(one.manifest, time=time)), level_1=1.0) == {}


def test_times_in_the_future_and_without_a_zone() -> None:
    one = entry(1, days=-5.0)
    assert left(one, level_1=1.0) == {}
    plain = replace(one, manifest=replace(one.manifest, time="2025-12-01T00:00:00"))
    assert left(plain, level_1=1.0) == {"c1": (0, 2)}


def test_a_clock_that_is_decades_ahead_takes_nothing() -> None:
    """Of one save, or of a whole attempt, of which the newest checkpoints tell the wrong time too."""
    old, wrong_s = [entry(1, days=30.0), entry(2, days=20.0)], NOW_S + 80 * 365 * DAY_S
    wishes = Ageing(level_1=7.0)
    assert aged([*old, *NEWER], wishes, now_s=wrong_s) == ()
    late = [entry(number, days=-80 * 365.0 + 10 - number) for number in (11, 12, 13)]
    assert [one.id for one in aged([*old, *NEWER, *late], wishes, now_s=wrong_s + 10 * DAY_S)] == ["c11", "c12"]


def test_a_pause_of_a_year_is_one() -> None:
    old = [entry(1, days=30.0), entry(2, days=20.0)]
    wishes = Ageing(level_1=7.0)
    assert [one.id for one in aged([*old, *NEWER], wishes, now_s=NOW_S + 365 * DAY_S)] == ["c1", "c2", "c8"]
    assert aged([*old, *NEWER], wishes, now_s=NOW_S + PAUSE_MAX_S + 1 * DAY_S) == ()
