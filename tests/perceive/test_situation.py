"""The situation after a step: what was told, what became of saves, and what is offered."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.clock import ManualClock
from mementum.perceive.budgets import Budget, Budgets
from mementum.perceive.costs import Costs, Planned
from mementum.perceive.hazards import Hazards
from mementum.perceive.measured import NAMES_MAX
from mementum.perceive.situation import IN_VAIN_MAX, Perception, Senses, Told
from mementum.perceive.timing import StepTimes
from mementum.perceive.vitals import VitalSigns
from mementum.records import Reach, Save, Situation, Standing

LOST_S = 1.0


class Seen:
    """A perception of ten seconds a step, driven by hand."""

    def __init__(self, *reaches: Reach, **senses: Any) -> None:
        self.clock, self.step = ManualClock(), 0
        plan = Planned(lost_s=LOST_S, snapshot_s=2.0, durable_s=5.0, size=100, memory=100)
        costs = Costs(dict.fromkeys(reaches or (Reach.PROCESS, Reach.REBOOT), plan))
        made = Senses(
            costs=costs,
            hazards=Hazards(),
            budgets=Budgets(Budget(), began_s=0.0, first_s=LOST_S),
            times=StepTimes(self.clock),
            signs=VitalSigns(long=1000),
            **senses,
        )
        self.perception = Perception(made, clock=self.clock, step=0)

    def look(self, **metrics: Any) -> Situation:
        self.step += 1
        self.clock.advance(10.0)
        return self.perception.look(Told(step=self.step, epoch=0, ends_epoch=False, metrics=metrics))

    def save(self, reach: Reach = Reach.REBOOT, cause: str = "interval") -> str:
        id = f"{self.step} {reach}"
        self.perception.taken(id, Save(reason="r", reach=reach, cause=cause))
        return id


def standing(situation: Situation, reach: Reach) -> Standing:
    return next(one for one in situation.standings if one.reach is reach)


def lost_left(situation: Situation) -> float:
    return next(one.left for one in situation.allowances if one.name == "lost time")


def test_a_save_outlives_its_own_loss_and_the_lesser_ones() -> None:
    seen = Seen()
    seen.look()
    id = seen.save(Reach.REBOOT)
    under_way = seen.look()
    assert [standing(under_way, reach).in_flight for reach in (Reach.PROCESS, Reach.REBOOT)] == [True, True]
    assert standing(under_way, Reach.REBOOT).since_s == 20.0
    seen.perception.ended(id, durable=True)
    over = seen.look()
    assert [standing(over, reach).since_s for reach in (Reach.PROCESS, Reach.REBOOT)] == [20.0, 20.0]
    memory = seen.save(Reach.PROCESS)
    seen.perception.ended(memory, durable=True)
    kept = seen.look()
    assert [standing(kept, reach).since_s for reach in (Reach.PROCESS, Reach.REBOOT)] == [10.0, 30.0]


def test_one_that_came_to_nothing_leaves_the_work_at_risk_and_stays_charged() -> None:
    seen = Seen()
    before = lost_left(seen.look())
    id = seen.save(Reach.REBOOT)
    seen.perception.ended(id, durable=False)
    after = seen.look()
    assert standing(after, Reach.REBOOT).since_s == 20.0
    assert not standing(after, Reach.REBOOT).in_flight
    assert lost_left(after) == pytest.approx(before - LOST_S + 0.05 * 10.0)


def test_what_was_measured_takes_the_place_of_what_was_planned() -> None:
    seen = Seen()
    seen.look()
    id = seen.save(Reach.REBOOT)
    seen.perception.ended(id, durable=True)
    cost = {"lost_s": 0.25, "blocked_s": 0.1, "snapshot_s": 1.0, "durable_s": 3.0, "written": 70}
    seen.perception.measured(id, cost)
    seen.perception.measured("somebody else's", cost)
    after = standing(seen.look(), Reach.REBOOT)
    assert (after.cost_s, after.durable_s, after.size) == (0.25, 3.0, 70)


def test_snapshots_that_memory_does_not_keep_are_offered_no_more_until_the_disk_has_one() -> None:
    seen = Seen()
    for number in range(IN_VAIN_MAX):
        assert len(seen.look().standings) == 2, number
        seen.perception.ended(seen.save(Reach.PROCESS), durable=False)
    assert [one.reach for one in seen.look().standings] == [Reach.REBOOT]
    rate = standing(seen.look(), Reach.REBOOT).rate
    seen.perception.ended(seen.save(Reach.REBOOT), durable=True)
    again = seen.look()
    assert [one.reach for one in again.standings] == [Reach.PROCESS, Reach.REBOOT]
    assert standing(again, Reach.REBOOT).rate < rate  # of which memory takes a part again
    seen.perception.ended(seen.save(Reach.PROCESS), durable=False)
    assert [one.reach for one in seen.look().standings] == [Reach.REBOOT]
    seen.perception.ended(seen.save(Reach.REBOOT), durable=True)
    seen.look()
    seen.perception.ended(seen.save(Reach.PROCESS), durable=True)
    for _ in range(IN_VAIN_MAX - 1):
        seen.look()
        seen.perception.ended(seen.save(Reach.PROCESS), durable=False)
    assert len(seen.look().standings) == 2


def test_writing_down_an_older_state_is_charged_and_puts_no_work_out_of_risk() -> None:
    plain, seen = Seen(), Seen()
    for one in (plain, seen):
        one.look()
        one.perception.ended(one.save(Reach.REBOOT), durable=True)
        one.look()
    seen.perception.taken("kept", Save(reason="r", reach=Reach.REBOOT, cause="kept"))
    before, under_way = plain.look(), seen.look()
    assert under_way.standings == before.standings  # neither in flight nor newer
    assert (under_way.saves_since_exact, under_way.since_exact_s) == (before.saves_since_exact, before.since_exact_s)
    assert lost_left(under_way) == pytest.approx(lost_left(before) - LOST_S)
    seen.perception.ended("kept", durable=True)
    cost = {"lost_s": None, "blocked_s": 0.0, "snapshot_s": 0.0, "durable_s": 0.0, "written": 1000}
    seen.perception.measured("kept", cost)
    before, over = plain.look(), seen.look()
    assert over.standings == before.standings  # what a save of now costs is known as before
    assert lost_left(over) == pytest.approx(lost_left(before))


def test_a_save_of_a_reach_that_is_not_offered_is_not_counted() -> None:
    seen = Seen(Reach.REBOOT)
    before = lost_left(seen.look())
    id = seen.save(Reach.PROCESS)
    seen.perception.ended(id, durable=True)
    after = seen.look()
    assert standing(after, Reach.REBOOT).since_s == 20.0
    assert lost_left(after) == pytest.approx(before + 0.05 * 10.0)


def test_a_deeper_wish_counts_for_what_there_is() -> None:
    seen = Seen()
    seen.look()
    seen.perception.ended(seen.save(Reach.MACHINE), durable=True)
    assert standing(seen.look(), Reach.REBOOT).since_s == 10.0


def test_best_and_newest_of_each_metric() -> None:
    seen = Seen(best={"acc": "max", "loss": "min"})
    assert seen.look(acc=0.5, eval_loss=2.0, loss=1.0).best == {}
    second = seen.look(acc=0.4, eval_loss=1.0, loss=3.0)
    assert second.best == {"acc": 0.5, "eval_loss": 2.0, "loss": 1.0}
    assert second.metrics == {"acc": 0.4, "eval_loss": 1.0, "loss": 3.0}
    seen.perception.evaluated({"acc": 0.9})
    third = seen.look(acc=float("nan"), words="none", flag=True, nothing=None)
    assert third.best == {"acc": 0.5, "eval_loss": 1.0, "loss": 1.0}
    assert third.metrics["acc"] == 0.9
    assert set(third.metrics) == {"acc", "eval_loss", "loss"}


def test_no_more_names_are_remembered_than_the_limit() -> None:
    seen = Seen()
    for number in range(NAMES_MAX + 50):
        seen.look(**{f"of step {number}": 1.0})
    assert len(seen.look().metrics) == NAMES_MAX


def test_a_metric_that_came_late_is_the_best_at_the_next_step() -> None:
    """Not before: else it would be no better than the best."""
    seen = Seen()
    seen.perception.evaluated({"acc": 0.9})
    first = seen.look()
    assert (first.metrics, first.best) == ({"acc": 0.9}, {})
    seen.perception.evaluated({"acc": 0.1})
    second = seen.look()
    assert (second.metrics, second.best) == ({"acc": 0.1}, {"acc": 0.9})
    assert seen.look().best == {"acc": 0.1}


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    seen = Seen()
    for number in range(40):
        seen.look(loss=1.0 + number % 3)
    before = seen.perception.state()
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        seen.perception.apply({**before, "signs": {}, "newest": {"a": 1.0}})
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        seen.perception.apply({**Seen().perception.state(), "newest": {"a": "word"}})
    assert seen.perception.state() == before
