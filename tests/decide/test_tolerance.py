"""Work at risk never passes the tolerance, the time until a save is durable included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.tolerance import Tolerance, latest_s
from mementum.records import Reach, Save, Situation, Standing

SSD = Standing(reach=Reach.REBOOT, since_s=9, since_steps=9, cost_s=60, size=10**9, rate=1e-5, exposure_s=0.1)
NOW = Situation(step=9, epoch=0, since_save_steps=9, since_save_s=9, step_s=2.0)


@pytest.mark.parametrize(("cost_s", "latest"), [(0, 598), (60, 538), (298, 300), (400, 300), (4000, 300)])
def test_the_latest_moment(cost_s: float, latest: float) -> None:
    assert latest_s(600, replace(SSD, cost_s=cost_s), 2.0) == latest


def test_the_time_until_it_is_durable_counts_where_it_is_known() -> None:
    assert latest_s(600, replace(SSD, cost_s=1, durable_s=100), 2.0) == 498


def test_it_saves_there_and_says_why() -> None:
    policy = Tolerance(max_lost_s=600)
    assert policy.decide(replace(NOW, standings=(replace(SSD, since_s=537.9),))) is None
    saved = policy.decide(replace(NOW, standings=(replace(SSD, since_s=538.0),)))
    assert isinstance(saved, Save)
    assert (saved.cause, saved.reach) == ("tolerance", Reach.REBOOT)
    assert saved.reason == (
        "8.97 min of work at risk, and 60 s until a save is durable: max_lost 10 min would be passed at the next step"
    )


def test_deepest_first_and_none_beyond_its_reach() -> None:
    due = replace(SSD, since_s=600)
    far = replace(due, reach=Reach.MACHINE)
    both = replace(NOW, standings=(due, far))
    assert Tolerance(max_lost_s=600).decide(both).reach is Reach.MACHINE  # type: ignore[union-attr]
    assert Tolerance(max_lost_s=600, reach=Reach.REBOOT).decide(both).reach is Reach.REBOOT  # type: ignore[union-attr]
    assert Tolerance(max_lost_s=600, reach=Reach.PROCESS).decide(both) is None


def test_not_while_one_is_on_its_way_or_nothing_is_new() -> None:
    for held in (replace(SSD, since_s=9999, in_flight=True), replace(SSD, since_s=9999, since_steps=0)):
        assert Tolerance(max_lost_s=600).decide(replace(NOW, standings=(held,))) is None


def test_what_cannot_be_kept_does_not_save_without_end() -> None:
    hopeless = replace(SSD, cost_s=4000, since_s=299)
    assert Tolerance(max_lost_s=600).decide(replace(NOW, standings=(hopeless,))) is None
