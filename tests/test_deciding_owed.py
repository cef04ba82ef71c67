"""A save that a budget refused, and whose occasion does not come again, is made when the budget covers it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mementum.clock import ManualClock
from mementum.decide.budget import Within
from mementum.decide.policy import Policy
from mementum.deciding import Deciding, Watchers
from mementum.perceive.situation import Told
from mementum.records import Allowance, Decision, Granularity, Reach, Save, Situation

EPOCH = Save(reason="the end of epoch 0", cause="epoch")
KEPT = Save(reason="in memory", reach=Reach.PROCESS)
LIGHT = Save(reason="weights", granularity=Granularity.WEIGHTS)


class Says:
    """Decides what the test says for each step."""

    def __init__(self, **saves: Save) -> None:
        self.saves = saves

    def decide(self, situation: Situation) -> Decision | None:
        return self.saves.get(f"s{situation.step}")


class Budget:
    """Of lost time on the disk, as the test sets it."""

    def __init__(self, policy: Policy) -> None:
        self.left = 0.0
        self.clock = ManualClock()
        self.facts: list[tuple[str, int | None]] = []
        self.deciding = Deciding(
            Within(policy=policy),
            Watchers(),
            tell=lambda kind, step, values: self.facts.append((kind, step)),
            append=lambda chunk, written: True,
            clock=self.clock,
            emit=lambda event: None,
            step=0,
        )
        plain: Any = self.deciding._plain

        def with_allowance(told: Told, notices: Any = ()) -> Situation:
            allowance = Allowance(
                name="lost time", reach=Reach.REBOOT, unit="s", left=self.left, limit=9, per_save=1, for_alarms=0
            )
            return replace(plain(told, notices), allowances=(allowance,))

        self.deciding._plain = with_allowance  # type: ignore[method-assign]

    def step(self, number: int, *, left: float = 0.0) -> Save | None:
        self.left = left
        self.clock.advance(1.0)
        return self.deciding.after_step(Told(step=number, epoch=0, ends_epoch=False))


def test_it_is_made_when_the_budget_covers_it_and_once() -> None:
    budget = Budget(Says(s1=EPOCH))
    assert budget.step(1) is None
    assert budget.step(2) is None
    made = budget.step(3, left=2.0)
    assert made is not None
    assert (made.reason, made.cause) == ("the end of epoch 0; refused at step 1", "epoch")
    assert budget.step(4, left=2.0) is None
    assert budget.facts == [("refused", 1)]


def test_only_a_save_that_holds_and_outlives_as_much_stands_in_for_it() -> None:
    for other, stands_in in ((Save(reason="whole"), True), (LIGHT, False), (KEPT, False)):
        budget = Budget(Says(s1=EPOCH, s2=other))
        assert budget.step(1) is None
        assert budget.step(2, left=2.0) == other
        assert (budget.step(3, left=2.0) is None) is stands_in


def test_what_comes_again_by_itself_is_not_made_up_for() -> None:
    budget = Budget(Says(s1=Save(reason="every step")))
    assert budget.step(1) is None
    assert budget.step(2, left=2.0) is None
