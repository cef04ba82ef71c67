"""A save of weights alone leaves the work at risk, the notices and the cost of a whole save as they were."""

from __future__ import annotations

import pytest

from mementum.clock import ManualClock
from mementum.perceive.budgets import Budget, Budgets
from mementum.perceive.costs import Costs, Planned
from mementum.perceive.hazards import Hazards
from mementum.perceive.situation import Perception, Senses, Told
from mementum.perceive.timing import StepTimes
from mementum.records import Granularity, Notice, Reach, Save, Situation

PLANNED = Planned(lost_s=0.4, snapshot_s=0.2, durable_s=1.0, size=100, memory=100)
COST = {"lost_s": 0.01, "blocked_s": 0.0, "snapshot_s": 0.0, "durable_s": 0.02, "written": 10}
FULL = Save(reason="due")
WEIGHTS = Save(reason="due", granularity=Granularity.WEIGHTS)


class Warned:
    """Somebody has said that the process will be stopped."""

    def pending(self, now_s: float) -> tuple[Notice, ...]:
        return (Notice(source="Slurm time limit", left_s=60.0),)

    def answered(self, taken_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class Seen:
    """A run of one step a second."""

    def __init__(self, *, begun: int = 0, deadlines: object = None) -> None:
        self.clock, self.step = ManualClock(), begun
        senses = Senses(
            costs=Costs({Reach.REBOOT: PLANNED}),
            hazards=Hazards(),
            budgets=Budgets(Budget(), began_s=0.0, first_s=1.0),
            times=StepTimes(self.clock),
            deadlines=deadlines,  # type: ignore[arg-type]
        )
        self.perception = Perception(senses, clock=self.clock, step=begun)

    def after(self, steps: int) -> Situation:
        self.clock.advance(steps)
        self.step += steps
        return self.perception.look(Told(step=self.step, epoch=0, ends_epoch=False))

    def save(self, id: str, save: Save) -> None:
        """Begun now, and durable at once."""
        self.perception.taken(id, save)
        self.perception.ended(id, durable=True)
        self.perception.measured(id, COST)


def test_the_work_since_the_newest_exact_save_stays_at_risk() -> None:
    seen = Seen()
    seen.after(100)
    seen.save("a", FULL)
    seen.after(50)
    seen.save("b", WEIGHTS)
    situation = seen.after(10)
    (standing,) = situation.standings
    assert (standing.since_s, standing.since_steps, standing.in_flight) == (60.0, 60, False)
    assert (situation.saves_since_exact, situation.since_exact_s) == (1, 60.0)


def test_what_a_lighter_save_costs_is_charged_and_not_learnt() -> None:
    seen = Seen()
    before = seen.after(1)
    seen.save("a", WEIGHTS)
    after = seen.after(1)
    assert after.standings[0].cost_s == before.standings[0].cost_s == 0.4
    assert after.allowances[0].left == pytest.approx(before.allowances[0].left + 0.05 - 0.01)
    seen.save("b", FULL)
    assert seen.after(1).standings[0].cost_s < 0.4


@pytest.mark.parametrize(("save", "left"), [(FULL, 0), (WEIGHTS, 1)])
def test_a_notice_is_answered_by_an_exact_save_only(save: Save, left: int) -> None:
    seen = Seen(deadlines=Warned())
    assert len(seen.after(1).notices) == 1
    seen.perception.taken("a", save)
    assert len(seen.after(1).notices) == left


@pytest.mark.parametrize(("begun", "since_s"), [(0, None), (7, 5.0)])
def test_a_resumed_run_has_an_exact_save_behind_it(begun: int, since_s: float | None) -> None:
    assert Seen(begun=begun).after(5).since_exact_s == since_s
