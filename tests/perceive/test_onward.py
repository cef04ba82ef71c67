"""A save against the loss of the machine counts when it is on a tier, and no sooner."""

from __future__ import annotations

import pytest

from mementum.perceive.exposure import IN_FLIGHT_MAX, Exposure
from mementum.perceive.onward import Onward
from mementum.records import Reach


class Run:
    """Steps of a second, each at risk of one failure an hour for every reach."""

    def __init__(self) -> None:
        self.exposure, self.onward, self.at_s = Exposure(), Onward(), 0.0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.at_s += 1.0
            self.exposure.advance(self.at_s, int(self.at_s), dict.fromkeys(Reach, 1 / 3600))

    def save(self, id: str, reach: Reach) -> None:
        self.onward.committed(id, reach, self.exposure.begun(reach), self.exposure)

    def told(self, id: str, *, there: bool) -> None:
        self.onward.told(id, there=there)
        self.onward.take_in(self.exposure)

    @property
    def at_risk_s(self) -> tuple[float, ...]:
        return tuple(self.exposure.since_s(reach) for reach in Reach)


def test_what_is_in_the_root_outlives_a_reboot_and_no_more() -> None:
    run = Run()
    run.steps(5)
    run.save("c1", Reach.MACHINE)
    run.steps(2)
    assert run.at_risk_s == (2.0, 2.0, 7.0)
    assert run.exposure.in_flight(Reach.MACHINE)
    run.told("c1", there=True)
    assert run.at_risk_s == (2.0, 2.0, 2.0)
    assert not run.exposure.in_flight(Reach.MACHINE)


def test_what_does_not_get_there_leaves_the_work_at_risk() -> None:
    run = Run()
    run.steps(5)
    run.save("c1", Reach.MACHINE)
    run.told("c1", there=False)
    run.told("c1", there=True)  # by another tier, too late to count
    assert run.at_risk_s == (0.0, 0.0, 5.0)
    assert not run.exposure.in_flight(Reach.MACHINE)


def test_a_newer_one_that_is_there_makes_an_older_one_needless() -> None:
    run = Run()
    for id in ("c1", "c2"):
        run.steps(3)
        run.save(id, Reach.MACHINE)
    run.told("c2", there=True)
    assert run.at_risk_s == (0.0, 0.0, 0.0)
    assert not run.exposure.in_flight(Reach.MACHINE)
    run.steps(1)
    run.told("c1", there=True)
    assert run.at_risk_s == (1.0, 1.0, 1.0)


def test_saves_for_less_are_not_waited_for_and_count_where_they_arrive() -> None:
    run = Run()
    run.steps(4)
    run.save("c1", Reach.REBOOT)
    assert run.at_risk_s == (0.0, 0.0, 4.0)
    assert not run.exposure.in_flight(Reach.MACHINE)
    run.steps(2)
    assert run.exposure.seconds(Reach.MACHINE) == pytest.approx(6**2 / 2 / 3600)
    run.told("c1", there=True)  # by a tier that takes all
    assert run.at_risk_s == (2.0, 2.0, 2.0)
    assert run.exposure.seconds(Reach.MACHINE) == pytest.approx(2**2 / 2 / 3600)
    run.save("c2", Reach.REBOOT)
    run.told("c2", there=False)
    run.told("c2", there=True)
    assert run.at_risk_s == (0.0, 0.0, 2.0)


def test_an_older_one_for_less_that_arrives_late_changes_nothing() -> None:
    run = Run()
    run.steps(1)
    run.save("c1", Reach.REBOOT)
    run.steps(1)
    run.save("c2", Reach.MACHINE)
    run.steps(1)
    run.told("c2", there=True)
    run.told("c1", there=True)
    assert run.at_risk_s == (1.0, 1.0, 1.0)


def test_only_the_newest_saves_for_less_are_remembered() -> None:
    run = Run()
    for number in range(IN_FLIGHT_MAX + 1):
        run.steps(1)
        run.save(f"c{number}", Reach.REBOOT)
    run.told("c0", there=True)
    assert run.at_risk_s == (0.0, 0.0, IN_FLIGHT_MAX + 1.0)
    run.told("c1", there=True)
    assert run.at_risk_s == (0.0, 0.0, IN_FLIGHT_MAX - 1.0)
    assert len(run.onward._besides) == len(run.exposure._besides) == IN_FLIGHT_MAX - 1


def test_of_a_branch_that_was_left_nothing_arrives() -> None:
    run = Run()
    run.steps(4)
    run.save("c1", Reach.REBOOT)
    run.save("c2", Reach.MACHINE)
    run.onward.clear()
    for id in ("c1", "c2"):
        run.told(id, there=True)
    assert run.at_risk_s == (0.0, 0.0, 4.0)
