"""Policies: from settings to the policy that a run asks, and what of the settings cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mementum.config import policies as wished
from mementum.config.settings import Budgets, Settings
from mementum.decide.alarm import BeforeCrash
from mementum.decide.amounts import seconds, size
from mementum.decide.before import BeforeStop
from mementum.decide.budget import Within
from mementum.decide.cost import CostOptimal
from mementum.decide.feasibility import Limits, Planned, unmeetable
from mementum.decide.flight import FlightRecorder, Recording
from mementum.decide.granularity import ExactOften
from mementum.decide.happening import BestMetric, OnEvent
from mementum.decide.interval import EveryEpoch, EverySeconds, EverySteps
from mementum.decide.observing import Observing
from mementum.decide.policy import First, Policy
from mementum.decide.precedence import in_order
from mementum.decide.tolerance import Tolerance
from mementum.decide.window import Window
from mementum.errors import UsageError
from mementum.perceive.budgets import GB
from mementum.perceive.costs import SaveCost
from mementum.perceive.hazards import Hazards
from mementum.records import Granularity, Reach

ONLY_WANTED = "no save is made but for notices, and when one is asked for"
GRANULARITIES = {
    "full": Granularity.FULL,
    "weights": Granularity.WEIGHTS,
    "weights_and_optimizer": Granularity.WEIGHTS_AND_OPTIMIZER,
    "essentials": Granularity.ESSENTIALS,
}


def policy_of(policy: Policy | None, settings: Settings, *, explicit: bool) -> Policy:
    """What a run asks: a policy of the caller's, or that of the settings. `explicit`: the caller has said when to save,
    in so many words, and no budget that nobody has set may refuse it."""
    if policy is not None:
        if not callable(getattr(policy, "decide", None)):
            raise UsageError(f"a policy has a method decide, got {policy!r}")
        tolerated = () if settings.tolerance.max_lost is None else (Tolerance(max_lost_s=settings.tolerance.max_lost),)
        chosen: Policy = First(policies=(_before_stop(settings), *tolerated, policy))
    else:
        chosen = in_order([_before_stop(settings), *_wished(settings)])
        if any(getattr(one, "granularity", "full") != "full" for one in settings.policy or ()):
            chosen = ExactOften(policy=chosen)
    if not explicit:
        chosen = Within(policy=chosen, max_lost_s=settings.tolerance.max_lost)
    if settings.observe:
        return Observing(policy=chosen)
    if settings.recorder is None or not judges(settings):
        return chosen
    recorder = FlightRecorder(every=settings.recorder.every, share=settings.recorder.share)
    return Recording(policy=chosen, recorder=Within(policy=recorder, max_lost_s=settings.tolerance.max_lost))


def judges(settings: Settings) -> bool:
    """Whether it is seen, and matters, that a run diverges."""
    return settings.vitals is not None and settings.alarms is not None and settings.on_divergence != "ignore"


def _before_stop(settings: Settings) -> BeforeStop:
    return BeforeStop() if settings.notices is None else BeforeStop(at_once_s=settings.notices.lead)


def _wished(settings: Settings) -> list[Policy]:
    found: list[Policy] = []
    if settings.every_steps is not None:
        found.append(EverySteps(steps=settings.every_steps))
    if settings.every_s is not None:
        found.append(EverySeconds(seconds=settings.every_s))
    for one in settings.policy or (() if found else (wished.Cost(),)):
        made = _made(one, settings.nodes)
        if made is not None:
            found.append(made)
    if settings.tolerance.max_lost is not None:
        found.append(Tolerance(max_lost_s=settings.tolerance.max_lost))
    if settings.alarms is not None:
        found.append(BeforeCrash(memory_urgent=settings.alarms.thresholds.memory_urgent))
    return found


def _made(one: Any, nodes: int) -> Policy | None:
    granularity = GRANULARITIES[getattr(one, "granularity", "full")]
    match one:
        case wished.Cost():
            return CostOptimal(rates_least={reach: Hazards(nodes).rate(reach, 0.0) / 10 for reach in Reach})
        case wished.Window():
            return Window(base_steps=one.base_interval, risk_threshold=one.risk_threshold, decay=one.decay)
        case wished.Steps():
            return EverySteps(steps=one.every, granularity=granularity)
        case wished.Seconds():
            return EverySeconds(seconds=one.every, granularity=granularity)
        case wished.Epoch():
            return EveryEpoch(every=one.every, granularity=granularity)
        case wished.Event():
            return OnEvent(names=frozenset({one.name}), granularity=granularity)
        case wished.Best():
            return BestMetric(name=one.metric, mode=one.mode, min_delta=one.min_delta, granularity=granularity)
    return None  # before_stop, which always comes first


def came_late(settings: Settings, took_s: float) -> str | None:
    """What to say of a resume that took `took_s` seconds, if that is more than may be borne."""
    most_s = settings.tolerance.max_restore
    if most_s is None or took_s <= most_s:
        return None
    return (
        f"coming back took {seconds(took_s)}, and max_restore is {seconds(most_s)}: `mementum plan ROOT` says what a"
        " restore takes on this disk; snapshots in memory (slots) and raw optimizer state (codec) come back faster"
    )


def not_kept(settings: Settings, costs: Sequence[SaveCost]) -> tuple[str, ...]:
    """What the budgets do not allow, of the tolerance or at all, as far as costs are known before the first save."""
    budgets = settings.budgets
    too_large = _never(budgets, costs)
    if settings.tolerance.max_lost is None or too_large:
        return too_large
    money, prices = budgets.money, None if budgets.money is None else budgets.money.per_gb
    limits = Limits(
        lost_share=budgets.lost_time,
        bytes_per_day={} if budgets.bytes_per_day.ssd is None else {Reach.REBOOT: budgets.bytes_per_day.ssd},
        money_per_day=None if money is None else money.per_day,
    )
    planned = [
        Planned(
            reach=cost.reach,
            cost_s=cost.lost_s,
            durable_s=cost.durable_s,
            size=cost.size,
            price=0.0 if prices is None else prices.ssd * cost.size / GB,
        )
        for cost in costs
    ]
    return unmeetable(settings.tolerance.max_lost, limits=limits, planned=planned)


def _never(budgets: Budgets, costs: Sequence[SaveCost]) -> tuple[str, ...]:
    """Budgets of a day that do not cover a single save."""
    said = []
    for cost in costs:
        if cost.reach is not Reach.REBOOT:
            continue
        bytes_a_day, money = budgets.bytes_per_day.ssd, budgets.money
        if bytes_a_day is not None and cost.size > bytes_a_day:
            said.append(
                f"{ONLY_WANTED}: it writes {size(cost.size)}, and the budget bytes_per_day is {size(bytes_a_day)};"
                " raise budgets.bytes_per_day.ssd"
            )
        price = 0.0 if money is None else money.per_gb.ssd * cost.size / GB
        if money is not None and price > money.per_day:
            said.append(
                f"{ONLY_WANTED}: it is priced {price:.3g}, and the budget money is {money.per_day:.3g} a day;"
                " raise budgets.money.per_day"
            )
    return tuple(said)
