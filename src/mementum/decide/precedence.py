"""The order in which policies are asked, whatever order they were written in."""

from __future__ import annotations

from collections.abc import Iterable

from mementum.decide.alarm import BeforeCrash
from mementum.decide.before import BeforeStop
from mementum.decide.cost import CostOptimal
from mementum.decide.happening import BestMetric, OnEvent
from mementum.decide.interval import EveryEpoch, EverySeconds, EverySteps
from mementum.decide.policy import First, Policy
from mementum.decide.tolerance import Tolerance
from mementum.decide.window import Window

BEFORE_INTERVALS = (BeforeStop, Tolerance, BeforeCrash, OnEvent, EveryEpoch, BestMetric)
INTERVALS = (EverySteps, EverySeconds, Window, CostOptimal)  # those that always have an opinion come last


def in_order(policies: Iterable[Policy]) -> First:
    """Notice and wish, tolerance, alarm, event, epoch, best metric, then intervals: the first that wants a save gives
    its reason. A policy of somebody else stands before the intervals; equals keep their order."""
    return First(policies=tuple(sorted(policies, key=_place)))


def _place(policy: Policy) -> int:
    order = (*BEFORE_INTERVALS, object, *INTERVALS)
    kind = type(policy)
    return order.index(kind) if kind in order else len(BEFORE_INTERVALS)
