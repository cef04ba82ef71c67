"""What drivers say of their devices raises the failure rate and one alarm, and both end when they say otherwise."""

from __future__ import annotations

from math import exp

import pytest

from mementum.perceive.ailing import HORIZON_S, LOOK_S, Ailing
from mementum.perceive.hazards import Hazards
from mementum.records import Reach, Trouble


class Says:
    """Memory whose devices have what the test says."""

    def __init__(self) -> None:
        self.now = (1.0, "")
        self.asked = 0

    def ailing(self) -> tuple[float, str]:
        self.asked += 1
        return self.now


def test_an_ailing_device_makes_failures_likelier_and_is_told_once() -> None:
    says, hazards = Says(), Hazards()
    ailing = Ailing(says, hazards)  # type: ignore[arg-type]
    healthy = hazards.rate(Reach.REBOOT, 0.0)
    assert ailing.look(0.0) is False
    assert ailing.alarms(1, healthy) == ()
    says.now = (20.0, "3 uncorrected memory errors")
    assert ailing.look(LOOK_S / 2) is False, "asked too often"
    assert ailing.look(LOOK_S) is True
    ill = hazards.rate(Reach.REBOOT, 0.0)
    assert ill == pytest.approx(20 * healthy)
    (alarm,) = ailing.alarms(2, ill)
    assert (alarm.trouble, alarm.step, alarm.value) == (Trouble.HARDWARE, 2, 20.0)
    assert alarm.text == "a device has 3 uncorrected memory errors: failures are 20 times as likely"
    assert alarm.chance == pytest.approx(1 - exp(-(ill - healthy) * HORIZON_S))
    assert ailing.alarms(3, ill) == ()
    says.now = (20.0, "4 uncorrected memory errors")
    assert ailing.look(2 * LOOK_S) is False
    assert len(ailing.alarms(4, ill)) == 1
    says.now = (1.0, "")
    assert ailing.look(3 * LOOK_S) is True
    assert hazards.rate(Reach.REBOOT, 0.0) == pytest.approx(healthy)
    assert ailing.alarms(5, healthy) == ()
    assert says.asked == 4


def test_who_does_not_want_to_hear_of_it_is_still_saved_more_often() -> None:
    says, hazards = Says(), Hazards()
    ailing = Ailing(says, hazards, tells=False)  # type: ignore[arg-type]
    says.now = (20.0, "3 uncorrected memory errors")
    assert ailing.look(0.0) is True
    assert ailing.alarms(1, hazards.rate(Reach.REBOOT, 0.0)) == ()
