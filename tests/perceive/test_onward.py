"""A save against the loss of the machine counts when it is on a tier, and no sooner."""

from __future__ import annotations

from mementum.perceive.exposure import Exposure
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


def test_saves_for_less_are_not_waited_for() -> None:
    run = Run()
    run.steps(4)
    run.save("c1", Reach.REBOOT)
    assert run.at_risk_s == (0.0, 0.0, 4.0)
    run.told("c1", there=True)  # it was not made against that loss
    assert run.at_risk_s == (0.0, 0.0, 4.0)
    run.save("c2", Reach.MACHINE)
    run.onward.clear()
    run.told("c2", there=True)
    assert run.at_risk_s == (0.0, 0.0, 4.0)
