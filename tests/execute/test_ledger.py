"""What a save has cost, by a table of steps and saves with times made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.events import Cost
from mementum.execute.ledger import STEPS_MAX, STEPS_MIN, Ledger

COST = Cost(id="a", step=1, blocked_s=0.001, lost_s=None, snapshot_s=0.1, durable_s=0.5, written=10)


class Told(list[Cost]):
    """What the ledger has settled."""

    @property
    def lost_s(self) -> dict[str, float | None]:
        return {cost.id: cost.lost_s if cost.lost_s is None else round(cost.lost_s, 9) for cost in self}


@pytest.fixture
def told() -> Told:
    return Told()


def quiet(ledger: Ledger, steps: int, *, step_s: float = 1.0, from_s: float = 0.0) -> float:
    """A first step and then `steps` of one length; when the last one ended."""
    ledger.stepped(from_s)
    for number in range(1, steps + 1):
        ledger.stepped(from_s + number * step_s)
    return from_s + steps * step_s


# When the save begins and ends, then when steps end, all after a step that has ended at 0; the median step takes 1 s.
TABLE = {
    "a step that takes no longer": ((0.0, 0.5), (1.0,), 0.0),
    "all that it takes longer": ((0.0, 1.2), (1.3,), 0.3),
    "a save over three steps": ((0.0, 3.1), (1.2, 2.3, 3.6), 0.6),
    "what the save was not at work for is the program's own": ((0.0, 0.25), (5.0,), 0.25),
    "in the middle of a step": ((0.5, 0.75), (4.0,), 0.25),
    "after a slow beginning that is the program's": ((3.5, 3.75), (4.0,), 0.25),
    "faster steps count as well": ((0.0, 1.9), (1.4, 2.1), 0.1),
}


@pytest.mark.parametrize("case", TABLE)
def test_lost_seconds(told: Told, case: str) -> None:
    (began_s, ended_s), steps, expected = TABLE[case]
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MIN)
    events = [(began_s, 0, "begun"), (ended_s, 1, "ended"), *((at_s, 2, "step") for at_s in steps)]
    for at_s, _, what in sorted(events):
        if what == "begun":
            ledger.begun("a", now_s + at_s)
        elif what == "ended":
            ledger.ended("a", now_s + at_s, COST)
            assert told == []  # the step beside which it worked has not ended
        else:
            ledger.stepped(now_s + at_s)
    assert told.lost_s == {"a": expected}
    assert told == [replace(COST, lost_s=told[0].lost_s)]


def test_two_saves_share_what_is_lost(told: Told) -> None:
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MIN)
    ledger.begun("a", now_s)
    ledger.begun("b", now_s + 0.5)
    ledger.ended("a", now_s + 1.0, COST)
    ledger.ended("b", now_s + 1.4, replace(COST, id="b"))
    ledger.stepped(now_s + 1.6)
    assert told.lost_s == {"a": 0.3, "b": 0.3}


def test_too_few_steps_give_no_figure(told: Told) -> None:
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MIN - 1)
    ledger.begun("a", now_s)
    ledger.ended("a", now_s + 0.1, COST)
    ledger.stepped(now_s + 3)
    assert told == [COST]  # `lost_s` stays None


def test_a_save_before_the_first_step_gives_no_figure(told: Told) -> None:
    ledger = Ledger(told.append)
    ledger.begun("a", 0.0)
    ledger.ended("a", 0.1, COST)
    now_s = quiet(ledger, 2)
    assert told == [COST]
    ledger.begun("b", now_s)
    ledger.close()
    assert told == [COST]


def test_what_came_to_nothing_is_not_told(told: Told) -> None:
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MIN)
    ledger.begun("a", now_s)
    ledger.ended("a", now_s + 0.1, None)
    ledger.stepped(now_s + 1)
    ledger.close()
    assert told == []


def test_the_end_of_a_run_settles_what_is_durable(told: Told) -> None:
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MIN)
    ledger.begun("a", now_s)
    ledger.ended("a", now_s + 0.1, COST)
    ledger.begun("b", now_s + 0.2)  # its save never ends
    ledger.close()
    assert told == [COST]
    ledger.close()
    assert told == [COST]


def test_steps_beside_a_save_are_no_measure_and_old_ones_are_forgotten(told: Told) -> None:
    ledger = Ledger(told.append)
    now_s = quiet(ledger, STEPS_MAX)
    ledger.begun("a", now_s)
    for _ in range(STEPS_MAX):
        now_s += 9.0
        ledger.stepped(now_s)
    ledger.ended("a", now_s, COST)
    ledger.stepped(now_s + 1.0)
    assert told.lost_s == {"a": 8.0 * STEPS_MAX}  # against 1 s still
    told.clear()
    now_s += 1.0
    for _ in range(STEPS_MAX // 2 + 1):  # the run has changed: half of what is remembered
        now_s += 2.0
        ledger.stepped(now_s)
    ledger.begun("b", now_s)
    ledger.ended("b", now_s + 2.5, replace(COST, id="b"))
    ledger.stepped(now_s + 2.5)
    assert told.lost_s == {"b": 0.5}
