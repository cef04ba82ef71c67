"""An alarm saves where its chance times the work at risk exceeds the cost, and never for what diverges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.alarm import ALARM_SHARE, BeforeCrash, chance_of
from mementum.records import Alarm, Reach, Save, Situation, Standing, Trouble, Vitals

SSD = Standing(reach=Reach.REBOOT, since_s=260, since_steps=50, cost_s=5, size=10**9, rate=1e-5, exposure_s=0.3)
RAM = replace(SSD, reach=Reach.PROCESS, cost_s=0.1)
FAR = replace(SSD, reach=Reach.MACHINE, cost_s=6, since_s=800)
SLOW = Alarm(trouble=Trouble.SLOW, step=9, value=3.0, limit=2.0, text="steps take 3 times as long", chance=0.02)
NOW = Situation(step=9, epoch=0, since_save_steps=50, since_save_s=260, alarms=(SLOW,), standings=(RAM, SSD))


def decide(*alarms: Alarm, standings: tuple[Standing, ...] = (RAM, SSD), memory: float | None = None) -> object:
    vitals = None if memory is None else Vitals(step=9, at_s=1.0, memory_used=memory)
    return BeforeCrash().decide(replace(NOW, alarms=alarms, standings=standings, vitals=vitals))


def test_the_break_even_chance() -> None:
    assert decide(replace(SLOW, chance=0.019)) is None  # with 5 s of cost and 260 s at risk: 1.92 %
    saved = decide(replace(SLOW, chance=0.0193))
    assert isinstance(saved, Save)
    assert (saved.cause, saved.reach) == ("alarm", Reach.REBOOT)
    assert saved.reason == (
        "steps take 3 times as long: 1.93 % chance x 4.33 min of work at risk = 5.02 s > 5 s that a save costs"
    )
    assert saved.numbers == {
        "chance": pytest.approx(0.0193),
        "at_risk_s": 260,
        "worth_s": pytest.approx(5.018),
        "cost_s": 5,
    }


def test_chances_add_as_if_independent() -> None:
    half = replace(SLOW, chance=0.5)
    assert chance_of((half, half)) == 0.75
    assert chance_of(()) == 0.0
    assert chance_of((replace(SLOW, chance=7.0),)) == 1.0
    assert decide(replace(SLOW, chance=0.01)) is None
    assert decide(*[replace(SLOW, chance=0.01)] * 2) is not None


@pytest.mark.parametrize("trouble", [trouble for trouble in Trouble if not trouble.is_crash])
def test_what_diverges_asks_for_no_save(trouble: Trouble) -> None:
    assert decide(replace(SLOW, trouble=trouble, chance=1.0)) is None


def test_not_twice_within_the_time_that_its_cost_allows() -> None:
    sure = replace(SLOW, chance=1.0)
    assert decide(sure, standings=(replace(SSD, since_s=99.9),)) is None
    assert decide(sure, standings=(replace(SSD, since_s=100.0),)) is not None
    assert decide(sure, standings=(replace(SSD, in_flight=True),)) is None


@pytest.mark.parametrize(
    ("trouble", "standings", "reach"),
    [
        (Trouble.MEMORY, (RAM, SSD, FAR), Reach.REBOOT),
        (Trouble.HARDWARE, (RAM, SSD, FAR), Reach.MACHINE),
        (Trouble.HARDWARE, (RAM, SSD), Reach.REBOOT),
        (Trouble.MEMORY, (FAR,), Reach.MACHINE),
        (Trouble.MEMORY, (RAM,), Reach.PROCESS),
    ],
)
def test_the_save_outlives_the_trouble_where_it_can(
    trouble: Trouble, standings: tuple[Standing, ...], reach: Reach
) -> None:
    saved = decide(replace(SLOW, trouble=trouble, chance=0.9), standings=standings)
    assert isinstance(saved, Save)
    assert saved.reach is reach


def test_memory_at_its_limit_always_saves_when_it_rings() -> None:
    ramp = Alarm(trouble=Trouble.MEMORY, step=9, value=0.98, limit=0.97, text="memory is nearly used up", chance=0.0)
    just_saved = (replace(SSD, since_s=1.0, in_flight=True),)
    assert decide(ramp, standings=just_saved, memory=0.969) is None
    saved = decide(ramp, standings=just_saved, memory=0.97)
    assert isinstance(saved, Save)
    assert saved.reason == "memory is nearly used up: memory at 97 % of its limit, which saves from 97 % on"
    assert decide(ramp, standings=(), memory=0.99) is not None
    assert decide(standings=just_saved, memory=0.99) is None  # one save when it rings, not one a step
    assert decide(replace(ramp, trouble=Trouble.SLOW), standings=just_saved, memory=0.99) is None
    again = decide(standings=(replace(SSD, since_s=SSD.cost_s / ALARM_SHARE),), memory=0.99)  # and while it stays, too
    assert isinstance(again, Save)
    assert (again.urgent, again.reason) == (True, "memory at 99 % of its limit, which saves from 97 % on")
    assert decide(standings=(replace(SSD, since_s=0.9 * SSD.cost_s / ALARM_SHARE),), memory=0.99) is None


def test_without_standings_nothing_can_be_weighed() -> None:
    assert decide(replace(SLOW, chance=1.0), standings=()) is None
