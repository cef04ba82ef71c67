"""From settings to the policy that a run asks, in its order, within its budgets, and what cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.config.loading import load
from mementum.config.settings import Settings
from mementum.decide.alarm import BeforeCrash
from mementum.decide.before import BeforeStop
from mementum.decide.budget import Within
from mementum.decide.cost import CostOptimal
from mementum.decide.flight import FlightRecorder, Recording
from mementum.decide.granularity import ExactOften
from mementum.decide.happening import BestMetric, OnEvent
from mementum.decide.interval import EveryEpoch, EverySeconds, EverySteps
from mementum.decide.observing import Observing
from mementum.decide.policy import First, Policy
from mementum.decide.tolerance import Tolerance
from mementum.decide.window import Window
from mementum.errors import UsageError
from mementum.perceive.costs import SaveCost
from mementum.perceive.hazards import Hazards
from mementum.policies import not_kept, policy_of
from mementum.records import Granularity, Reach


def settings_of(**said: Any) -> Settings:
    return load(said).settings


def asked(policy: Policy) -> Policy:
    """What is asked before the flight recorder."""
    assert isinstance(policy, Recording)
    return policy.policy


def within(policy: Policy) -> tuple[Policy, ...]:
    policy = policy.policy if isinstance(policy, Recording) else policy
    assert isinstance(policy, Within)
    inner = policy.policy.policy if isinstance(policy.policy, ExactOften) else policy.policy
    assert isinstance(inner, First)
    return inner.policies


def kinds(policies: tuple[Policy, ...]) -> list[type]:
    return [type(one) for one in policies]


def test_where_nothing_is_said_saves_cost_the_least() -> None:
    policy = asked(policy_of(None, Settings(), explicit=False))
    assert kinds(within(policy)) == [BeforeStop, BeforeCrash, CostOptimal]
    assert isinstance(policy, Within)
    assert policy.max_lost_s is None


def test_the_flight_recorder_comes_last_and_is_kept_within_the_budgets() -> None:
    policy = policy_of(None, settings_of(recorder={"every": 20}, tolerance={"max_lost": "1h"}), explicit=True)
    assert isinstance(policy, Recording)
    assert policy.recorder == Within(policy=FlightRecorder(every=20, share=0.01), max_lost_s=3600.0)


@pytest.mark.parametrize(
    "said", [{"recorder": "off"}, {"on_divergence": "ignore"}, {"alarms": "off"}, {"vitals": "off"}], ids=repr
)
def test_where_nothing_is_kept_nothing_is_recorded_for_it(said: dict[str, Any]) -> None:
    assert isinstance(policy_of(None, settings_of(**said), explicit=False), Within)


def test_who_only_observes_takes_no_snapshots() -> None:
    assert policy_of(None, Settings(observe=True), explicit=False) == Observing(
        policy=asked(policy_of(None, Settings(), explicit=False))
    )


def test_without_alarms_nothing_is_saved_for_one() -> None:
    assert kinds(within(policy_of(None, settings_of(alarms="off"), explicit=False))) == [BeforeStop, CostOptimal]


def test_the_lowest_rate_that_is_believed_is_a_tenth_of_the_prior() -> None:
    for nodes in (1, 16):
        policy = policy_of(None, Settings(nodes=nodes), explicit=False)
        (cost,) = (one for one in within(policy) if isinstance(one, CostOptimal))
        assert cost.rates_least == {reach: pytest.approx(Hazards(nodes).rate(reach, 0.0) / 10) for reach in Reach}


def test_each_kind_that_can_be_wished_for() -> None:
    settings = settings_of(
        policy=[
            {"steps": {"every": 100, "granularity": "weights"}},
            {"seconds": {"every": 60}},
            {"window": {"base_interval": 7}},
            {"epoch": {"every": 2, "granularity": "full"}},
            {"best": {"metric": "eval_loss", "mode": "max", "granularity": "essentials"}},
            {"event": {"name": "publish", "granularity": "weights_and_optimizer"}},
            "before_stop",
        ]
    )
    found = within(policy_of(None, settings, explicit=False))
    assert kinds(found) == [BeforeStop, BeforeCrash, OnEvent, EveryEpoch, BestMetric, EverySteps, EverySeconds, Window]
    _, _, event, epoch, best, steps, seconds, window = found
    assert event == OnEvent(names=frozenset({"publish"}), granularity=Granularity.WEIGHTS_AND_OPTIMIZER)
    assert epoch == EveryEpoch(every=2)
    assert isinstance(best, BestMetric)
    assert (best.name, best.mode, best.granularity) == ("eval_loss", "max", Granularity.ESSENTIALS)
    assert steps == EverySteps(steps=100, granularity=Granularity.WEIGHTS)
    assert seconds == EverySeconds(seconds=60.0)
    assert isinstance(window, Window)
    assert window.base_steps == 7


def test_a_tolerance_comes_before_every_interval_and_budgets_leave_room_for_it() -> None:
    policy = asked(policy_of(None, settings_of(preset="pretrain"), explicit=False))
    assert kinds(within(policy)) == [BeforeStop, Tolerance, BeforeCrash, CostOptimal]
    assert isinstance(policy, Within)
    assert policy.max_lost_s == 1800.0


def test_an_interval_in_so_many_words_is_refused_by_no_budget() -> None:
    policy = asked(policy_of(None, Settings(every_steps=5), explicit=True))
    assert policy == First(policies=(BeforeStop(), BeforeCrash(), EverySteps(steps=5)))
    both = asked(policy_of(None, Settings(every_steps=5, every_s=2.0), explicit=True))
    assert both == First(policies=(BeforeStop(), BeforeCrash(), EverySteps(steps=5), EverySeconds(seconds=2.0)))


def test_a_policy_of_the_callers_is_taken_as_it_is_behind_notices() -> None:
    own = EverySteps(steps=3)
    assert asked(policy_of(own, Settings(), explicit=True)) == First(policies=(BeforeStop(), own))
    with pytest.raises(UsageError, match="a policy has a method decide, got 3"):
        policy_of(3, Settings(), explicit=True)  # type: ignore[arg-type]


def test_observing_wraps_whatever_it_is() -> None:
    own = EverySteps(steps=3)
    settings = Settings(observe=True)
    assert policy_of(own, settings, explicit=True) == Observing(policy=First(policies=(BeforeStop(), own)))
    assert isinstance(policy_of(None, settings, explicit=False), Observing)


def cost(reach: Reach, **changed: Any) -> SaveCost:
    values = {"lost_s": 2.0, "snapshot_s": 5.0, "durable_s": 60.0, "size": int(87e9), "memory": 0, "measured": 0}
    return SaveCost(reach=reach, **{**values, **changed})


def test_what_cannot_be_kept() -> None:
    settings = settings_of(tolerance={"max_lost": "10m"}, budgets={"bytes_per_day": {"ssd": "7.5 TB"}})
    (said,) = not_kept(settings, [cost(Reach.PROCESS, size=0, durable_s=1.0), cost(Reach.REBOOT)])
    assert said.startswith("max_lost 10 min cannot be kept against a reboot: a save writes 87 GB")
    assert not_kept(settings, [cost(Reach.REBOOT, size=int(1e9))]) == ()
    assert not_kept(Settings(), [cost(Reach.REBOOT)]) == ()


def test_money_and_lost_time_can_stand_in_the_way_too() -> None:
    money = settings_of(
        tolerance={"max_lost": "10m"}, budgets={"money": {"per_day": 1.0, "per_gb": {"ssd": 0.01}}, "lost_time": 0.5}
    )
    (said,) = not_kept(money, [cost(Reach.REBOOT)])
    assert "a save is priced 0.87 and the budget money is 1 a day" in said
    dear = settings_of(tolerance={"max_lost": "10m"}, budgets={"lost_time": "1 %"})
    (said,) = not_kept(dear, [cost(Reach.REBOOT, lost_s=30.0)])
    assert "a save costs 30 s and the budget lost_time is 1 %" in said
