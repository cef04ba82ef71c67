"""A configuration that cannot keep its tolerance says so at the start, with what to change."""

from __future__ import annotations

from mementum.decide.feasibility import Limits, Planned, unmeetable
from mementum.records import Reach

MACHINE = Planned(reach=Reach.MACHINE, cost_s=60, durable_s=30, size=87 * 10**9)


def test_a_minute_at_five_percent_is_twenty_minutes_at_least() -> None:
    said = unmeetable(600, limits=Limits(lost_share=0.05), planned=[MACHINE])
    assert said == (
        "max_lost 10 min cannot be kept against the loss of the machine: a save costs 60 s and the budget lost_time is"
        " 5 %, so saves are 20 min apart and up to 20.5 min can be lost; set max_lost to 20.5 min or more, or raise"
        " budgets.lost_time",
    )
    assert unmeetable(1229, limits=Limits(lost_share=0.05), planned=[MACHINE]) != ()
    assert unmeetable(1230, limits=Limits(lost_share=0.05), planned=[MACHINE]) == ()
    assert unmeetable(1230, limits=Limits(lost_share=0.05), planned=[MACHINE], step_s=1) != ()


def test_bytes_of_a_day() -> None:
    limits = Limits(bytes_per_day={Reach.MACHINE: 2e12})
    (said,) = unmeetable(600, limits=limits, planned=[MACHINE])
    assert "a save writes 87 GB and the budget bytes_per_day is 2 TB, so saves are 62.6 min apart" in said
    assert said.endswith("or raise budgets.bytes_per_day")
    assert unmeetable(600, limits=Limits(bytes_per_day={Reach.REBOOT: 2e12}), planned=[MACHINE]) == ()


def test_the_time_of_a_save_counts_twice() -> None:
    assert unmeetable(59, limits=Limits(), planned=[MACHINE])[0].endswith("or write to a faster place")
    assert unmeetable(60, limits=Limits(), planned=[MACHINE]) == ()


def test_money() -> None:
    limits = Limits(money_per_day=24.0)
    priced = Planned(reach=Reach.MACHINE, cost_s=1, durable_s=1, size=1, price=2.0)
    (said,) = unmeetable(600, limits=limits, planned=[priced])
    assert "a save is priced 2 and the budget money is 24 a day, so saves are 120 min apart" in said
    assert unmeetable(7201, limits=limits, planned=[priced]) == ()


def test_each_reach_has_its_say() -> None:
    near = Planned(reach=Reach.PROCESS, cost_s=0.1, durable_s=0.1, size=10**9)
    limits = Limits(lost_share=0.05)
    assert len(unmeetable(600, limits=limits, planned=[near, MACHINE])) == 1
    both = unmeetable(1, limits=limits, planned=[near, MACHINE])
    assert [sentence.split(":")[0].rpartition("against ")[2] for sentence in both] == [
        "the end of the process",
        "the loss of the machine",
    ]
    assert unmeetable(1, limits=limits, planned=[]) == ()
