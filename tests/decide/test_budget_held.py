"""Whatever comes, budgets hold; and where both can be had, so does the tolerance: played through with numbers."""

from __future__ import annotations

import random
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mementum.decide.alarm import BeforeCrash
from mementum.decide.before import BeforeStop
from mementum.decide.budget import Within
from mementum.decide.cost import CostOptimal
from mementum.decide.feasibility import Limits, Planned, unmeetable
from mementum.decide.happening import OnEvent
from mementum.decide.interval import EveryEpoch
from mementum.decide.policy import Policy
from mementum.decide.precedence import in_order
from mementum.decide.tolerance import Tolerance
from mementum.records import Alarm, Allowance, Reach, Save, Situation, Standing, Trouble

DAY_S = 86_400.0
SHARE = 0.05


@dataclass
class World:
    """A run in numbers: one reach, one save in flight, a bucket of lost time and a rolling day of bytes."""

    cost_s: float
    durable_s: float
    size: float
    rate: float
    bytes_per_day: float
    step_s: float
    at_s: float = 0.0
    taken_s: float = 0.0
    flight: tuple[float, float] | None = None  # taken at, durable at
    exposure_s: float = 0.0
    first_cost_s: float = 0.0
    written: deque[tuple[float, float]] = field(default_factory=deque)
    saves: list[tuple[float, str, float]] = field(default_factory=list)  # when, why, bytes
    lost_s: float = 0.0
    lost_to_alarms_s: float = 0.0
    bytes_today: float = 0.0
    at_risk_s: float = 0.0  # the most that there ever was
    refused: int = 0

    def __post_init__(self) -> None:
        self.first_cost_s = self.cost_s

    def situation(self, *, alarm: float = 0.0, event: bool = False) -> Situation:
        since_s = self.at_s - self.taken_s
        standing = Standing(
            reach=Reach.MACHINE,
            since_s=since_s,
            since_steps=round(since_s / self.step_s),
            cost_s=self.cost_s,
            durable_s=self.durable_s,
            size=round(self.size),
            rate=self.rate,
            exposure_s=self.rate * since_s**2 / 2,
            in_flight=self.flight is not None,
        )
        ring = Alarm(trouble=Trouble.HARDWARE, step=0, value=2, limit=1, text="ECC errors", chance=alarm)
        return Situation(
            step=round(self.at_s / self.step_s),
            epoch=0,
            since_save_steps=standing.since_steps,
            since_save_s=since_s,
            step_s=self.step_s,
            standings=(standing,),
            allowances=self._allowances(),
            alarms=(ring,) if alarm else (),
            events=("published",) if event else (),
        )

    def _allowances(self) -> tuple[Allowance, ...]:
        while self.written and self.written[0][0] <= self.at_s - DAY_S:
            self.bytes_today -= self.written.popleft()[1]
        left = self.first_cost_s + SHARE * self.at_s - self.lost_s
        alarms = self.first_cost_s + SHARE / 2 * self.at_s - self.lost_to_alarms_s
        bytes_left = self.bytes_per_day - self.bytes_today
        others = sum(size for when, cause, size in self.saves if cause != "tolerance" and when > self.at_s - DAY_S)
        of = {"reach": Reach.MACHINE}
        return (
            Allowance(
                name="lost time",
                unit="s",
                left=left,
                limit=SHARE * self.at_s,
                per_save=self.cost_s,
                for_alarms=alarms,
                **of,
            ),
            Allowance(
                name="bytes a day",
                unit="bytes",
                left=bytes_left,
                limit=self.bytes_per_day,
                per_save=self.size,
                for_alarms=bytes_left,
                others=others,
                **of,
            ),
        )

    def step(self, policy: Policy, *, alarm: float = 0.0, event: bool = False) -> None:
        if self.flight is not None and self.flight[1] <= self.at_s:
            self.taken_s, self.flight = self.flight[0], None
        self.at_risk_s = max(self.at_risk_s, self.at_s - self.taken_s)
        situation = self.situation(alarm=alarm, event=event)
        decision = policy.decide(situation)
        self.refused += getattr(decision, "refused", False)
        if isinstance(decision, Save) and self.flight is None:
            self.saves.append((self.at_s, decision.cause, self.size))
            self.lost_s += self.cost_s
            self.lost_to_alarms_s += self.cost_s * (decision.cause == "alarm")
            self.bytes_today += self.size
            self.written.append((self.at_s, self.size))
            self.flight = (self.at_s, self.at_s + self.durable_s)
        self.at_s += self.step_s

    def most_bytes_in_a_day(self) -> float:
        most, window = 0.0, deque[tuple[float, float]]()
        for when, _, size in self.saves:
            window.append((when, size))
            while window[0][0] <= when - DAY_S:
                window.popleft()
            most = max(most, sum(size for _, size in window))
        return most


def pretraining(max_lost_s: float | None, *, every_event: bool = True) -> Within:
    policies: list[Policy] = [BeforeStop(), BeforeCrash(), EveryEpoch(), CostOptimal()]
    if every_event:
        policies.append(OnEvent())
    if max_lost_s is not None:
        policies.append(Tolerance(max_lost_s=max_lost_s))
    return Within(policy=in_order(policies), max_lost_s=max_lost_s)


MOMENT = st.tuples(
    st.floats(0.01, 200),  # what the next save costs
    st.floats(0, 5e11),  # and writes
    st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.5, 1.0]),  # an alarm and its chance
    st.booleans(),  # an event
)


@settings(max_examples=25, deadline=None)
@given(
    moments=st.lists(MOMENT, min_size=1, max_size=60),
    rate=st.sampled_from([1e-7, 1e-4, 1e-2]),
    bytes_per_day=st.floats(1e11, 2e13),
    max_lost_s=st.none() | st.floats(60, 7200),
)
def test_budgets_hold_under_any_costs_and_alarms(
    moments: list[tuple[float, float, float, bool]], rate: float, bytes_per_day: float, max_lost_s: float | None
) -> None:
    world = World(cost_s=moments[0][0], durable_s=30, size=0, rate=rate, bytes_per_day=bytes_per_day, step_s=360.0)
    policy = pretraining(max_lost_s)
    for step in range(300):  # thirty hours
        world.cost_s, world.size, alarm, event = moments[step % len(moments)]
        situation = world.situation(alarm=alarm, event=event)
        assert policy.decide(situation) == policy.decide(deepcopy(situation))  # pure
        world.step(policy, alarm=alarm, event=event)
        assert world.lost_s <= SHARE * world.at_s + world.first_cost_s
        assert world.lost_to_alarms_s <= SHARE / 2 * world.at_s + world.first_cost_s
    assert world.most_bytes_in_a_day() <= bytes_per_day * (1 + 1e-9)


@pytest.mark.parametrize("saves_a_day", [51, 75, 101, 230])  # from just what the tolerance needs to plenty
@pytest.mark.parametrize("mtbf_h", [3.0, 1000.0])
def test_eight_gpus_and_87_gb_keep_bytes_a_day_and_tolerance(saves_a_day: int, mtbf_h: float) -> None:
    size, max_lost_s, draw = 87e9, 1800.0, random.Random(saves_a_day)
    planned = Planned(reach=Reach.MACHINE, cost_s=1.5, durable_s=60, size=round(size))
    limits = Limits(lost_share=SHARE, bytes_per_day={Reach.MACHINE: saves_a_day * size})
    assert unmeetable(max_lost_s, limits=limits, planned=[planned], step_s=20) == ()
    world = World(
        cost_s=1.5,
        durable_s=60,
        size=size,
        rate=1 / (mtbf_h * 3600),
        bytes_per_day=saves_a_day * size,
        step_s=20.0,
    )
    policy = pretraining(max_lost_s)
    for _ in range(6500):  # a day and a half
        world.step(policy, alarm=0.9 if draw.random() < 0.04 else 0.0, event=draw.random() < 0.04)
    assert world.at_risk_s <= max_lost_s
    assert world.most_bytes_in_a_day() <= saves_a_day * size
    assert len(world.saves) >= 1.5 * 48
    assert world.refused > 0


def test_events_would_take_from_the_tolerance_if_nothing_were_kept_for_it() -> None:
    draw, most = random.Random(7), []
    for kept_s in (None, 1800.0):
        world = World(cost_s=0.1, durable_s=60, size=1e9, rate=1e-9, bytes_per_day=75e9, step_s=20.0)
        policy = replace(pretraining(1800.0), max_lost_s=kept_s)
        for _ in range(6500):
            world.step(policy, event=draw.random() < 0.04)
        most.append(world.at_risk_s)
    assert most[0] > 3 * 3600  # the day's bytes were gone
    assert most[1] <= 1800


def test_without_a_tolerance_the_day_is_spent_evenly() -> None:
    world = World(cost_s=1, durable_s=5, size=87e9, rate=1e-3, bytes_per_day=24 * 87e9, step_s=60.0)
    policy = pretraining(None, every_event=False)
    for _ in range(1440 * 2):  # two days
        world.step(policy)
    gaps = [later[0] - earlier[0] for earlier, later in zip(world.saves, world.saves[1:], strict=False)]
    assert {cause for _, cause, _ in world.saves} == {"interval"}
    assert set(gaps) == {3600.0}


def test_plenty_of_budget_refuses_nothing() -> None:
    world = World(cost_s=0.5, durable_s=5, size=1e9, rate=1e-5, bytes_per_day=1e15, step_s=10.0)
    policy = replace(pretraining(7200.0), policy=in_order([CostOptimal(), Tolerance(max_lost_s=7200.0)]))
    for _ in range(2000):
        world.step(policy)
    assert world.refused == 0
    assert world.saves[0][0] == pytest.approx((2 * 0.5 / 1e-5) ** 0.5, abs=10)
