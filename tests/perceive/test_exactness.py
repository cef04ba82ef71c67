"""Since when there was no exact save: counted from the taking, taken back where nothing came of it."""

from __future__ import annotations

from mementum.perceive.exactness import SinceExact
from mementum.records import Granularity, Reach, Save

FULL = Save(reason="due")
WEIGHTS = Save(reason="due", granularity=Granularity.WEIGHTS)
IN_MEMORY = Save(reason="due", reach=Reach.PROCESS)


def test_at_a_first_start_there_is_none() -> None:
    since = SinceExact(resumed=False)
    since.taken("a", WEIGHTS, 1.0)
    since.taken("b", IN_MEMORY, 2.0)
    assert (since.saves, since.seconds(5.0)) == (1, None)


def test_a_resumed_run_has_the_one_that_it_came_from() -> None:
    since = SinceExact(resumed=True)
    assert (since.saves, since.seconds(5.0)) == (0, 5.0)


def test_one_on_its_way_counts_until_nothing_comes_of_it() -> None:
    since = SinceExact(resumed=False)
    since.taken("a", WEIGHTS, 1.0)
    since.taken("b", FULL, 2.0)
    since.taken("c", WEIGHTS, 3.0)
    assert (since.saves, since.seconds(5.0)) == (1, 3.0)
    since.ended("b", durable=False)
    assert (since.saves, since.seconds(5.0)) == (2, None)


def test_a_durable_one_stays_though_an_older_one_is_durable_later() -> None:
    since = SinceExact(resumed=False)
    since.taken("a", FULL, 1.0)
    since.taken("b", WEIGHTS, 2.0)
    since.taken("c", FULL, 3.0)
    since.ended("c", durable=True)
    since.ended("a", durable=True)
    since.ended("b", durable=True)
    since.taken("d", FULL, 4.0)
    since.ended("d", durable=False)
    assert (since.saves, since.seconds(5.0)) == (0, 2.0)
