"""A notice is answered with the deepest save that fits in what is left, and too little is tried all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.decide.before import BeforeStop
from mementum.records import Notice, Reach, Save, Situation, Standing

RAM = Standing(reach=Reach.PROCESS, since_s=9, since_steps=9, cost_s=0.1, size=10**9, rate=1e-5, exposure_s=0.1)
SSD = replace(RAM, reach=Reach.REBOOT, cost_s=20)
FAR = replace(RAM, reach=Reach.MACHINE, cost_s=100)
NOW = Situation(step=9, epoch=0, since_save_steps=9, since_save_s=9, step_s=10.0, standings=(RAM, SSD, FAR))


def decide(*notices: Notice, standings: tuple[Standing, ...] = NOW.standings) -> object:
    return BeforeStop().decide(replace(NOW, notices=notices, standings=standings))


@pytest.mark.parametrize(
    ("left_s", "reach"),
    [(120, Reach.MACHINE), (100, Reach.MACHINE), (99, Reach.REBOOT), (20, Reach.REBOOT), (1, Reach.PROCESS)],
)
def test_the_deepest_that_fits(left_s: float, reach: Reach) -> None:
    saved = decide(Notice(source="spot reclaim", left_s=left_s))
    assert isinstance(saved, Save)
    assert (saved.reach, saved.cause) == (reach, "notice")
    assert saved.numbers["left_s"] == left_s


def test_a_signal_that_names_no_time_leaves_what_is_usual() -> None:
    saved = decide(Notice(source="SIGTERM"))
    assert isinstance(saved, Save)
    assert saved.reach is Reach.REBOOT
    assert saved.reason == "SIGTERM: how long is left is not known; a save is durable in 20 s"


@pytest.mark.parametrize("left_s", [0.05, 0.0, -3.0])
def test_too_little_time_is_tried_all_the_same(left_s: float) -> None:
    saved = decide(Notice(source="SIGTERM", left_s=left_s))
    assert isinstance(saved, Save)
    assert saved.reach is Reach.PROCESS
    assert saved.reason.endswith("a save is durable in 0.1 s, so it may be too late; tried all the same")


def test_a_later_end_is_awaited_until_a_save_just_fits() -> None:
    assert decide(Notice(source="wall time", left_s=3600)) is None
    assert decide(Notice(source="wall time", left_s=211)) is None  # twice 100 s, and a step of 10 s
    saved = decide(Notice(source="wall time", left_s=210))
    assert isinstance(saved, Save)
    assert saved.reach is Reach.MACHINE
    assert decide(Notice(source="wall time", left_s=121), standings=(RAM,)) is None
    assert decide(Notice(source="wall time", left_s=120), standings=(RAM,)) is not None


def test_the_most_urgent_one_that_is_due_answers() -> None:
    late, now = Notice(source="wall time", left_s=3600), Notice(source="SIGTERM", left_s=30)
    saved = decide(late, now)
    assert isinstance(saved, Save)
    assert saved.reason.startswith("SIGTERM: 30 s left")


def test_a_wish_is_granted_in_full() -> None:
    saved = decide(Notice(source="SIGUSR1", stops=False))
    assert saved == Save(reason="SIGUSR1 asked for a save", reach=Reach.MACHINE, cause="asked")
    assert decide(Notice(source="SIGUSR1", stops=False), standings=()) == Save(
        reason="SIGUSR1 asked for a save", reach=Reach.REBOOT, cause="asked"
    )


def test_answered_notices_are_no_longer_there() -> None:
    assert decide() is None


def test_where_nothing_is_known_of_costs_it_saves_too() -> None:
    saved = decide(Notice(source="SIGTERM", left_s=5), standings=())
    assert saved == Save(reason="SIGTERM: 5 s left", numbers={"left_s": 5}, cause="notice")
