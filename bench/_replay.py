"""Replay of policies over failure traces: seconds of work that outlive each gap between failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mementum.decide.alarm import ALARM_SHARE, BeforeCrash
from mementum.decide.cost import OVERHEAD, CostOptimal
from mementum.decide.policy import Policy
from mementum.decide.precedence import in_order
from mementum.decide.theory import local_interval
from mementum.perceive.calibration import Calibration, Seen
from mementum.perceive.exposure import Exposure
from mementum.perceive.hazards import Ended, Hazards
from mementum.records import Alarm, Reach, Save, Situation, Standing, Trouble

RESTART_S = 300.0  # from a failure until the job computes again
SEGMENT_S = 6 * 3600.0  # for so long at most the failure rate is held still, and for no more than
SEGMENT_SHARE = 0.2  # of a mean gap: it moves by some hundredths meanwhile, the interval by half as much
BUDGET_SHARE = 0.05  # the default budget for lost time
NEAR = 1e-6  # how near before and after a crossing the policy itself is asked
LEAST_A_NODE_DAY = 2.3e-3  # the lowest published failure rate, for the backstop
REACH = Reach.MACHINE  # one kind of loss and one tier, as in the traces
HISTORY = 50  # newest attempts that are learnt from: the rate of a machine changes by more than 3 times in its life
HORIZON_S = 120.0  # an alarm is right if a failure comes within it

Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def fixed(gaps_s: Array, interval_s: Any, cost_s: float) -> Array:
    """Kept seconds of each gap, if a save comes after every `interval_s` of work and stops it for `cost_s`."""
    up_s = np.maximum(gaps_s - RESTART_S, 0.0)
    kept: Array = np.floor(up_s / (interval_s + cost_s)) * interval_s
    return kept


def clairvoyant(gaps_s: Array, cost_s: float) -> Array:
    """One save, that ends as the failure comes."""
    return np.maximum(gaps_s - RESTART_S - cost_s, 0.0)


def capped(interval_s: Array | float, cost_s: float) -> Array | float:
    """An interval that lets saves take no more of the time than the budget allows."""
    return np.maximum(interval_s, cost_s / BUDGET_SHARE - cost_s)


def best_fixed(gaps_s: Array, cost_s: float, least_s: float = 1.0) -> tuple[float, Array]:
    """The interval of `least_s` or more that keeps most, found afterwards, and what it keeps."""
    intervals_s = np.geomspace(max(cost_s / 2, least_s), max(float(gaps_s.max()), 86_400.0), 3000)
    kept = [float(fixed(gaps_s, interval_s, cost_s).sum()) for interval_s in intervals_s]
    best_s = float(intervals_s[int(np.argmax(kept))])
    return best_s, fixed(gaps_s, best_s, cost_s)


def luck_of_hindsight(count: int, mean_s: float, cost_s: float, *, draws: int, draw: np.random.Generator) -> Array:
    """Points of goodput by which the best fixed interval in hindsight beats Young's with the true MTBF, on traces of so
    many gaps whose failures are Poisson, where there is nothing that hindsight could know but chance."""
    intervals_s = np.geomspace(max(cost_s / 2, 1.0), 20 * mean_s, 1000)[:, None]
    plain_s = math.sqrt(2 * cost_s * mean_s)
    points = []
    for _ in range(draws):
        gaps_s = draw.exponential(mean_s, count)
        best_s = float(fixed(gaps_s, intervals_s, cost_s).sum(axis=1).max())
        points.append(100 * (best_s - float(fixed(gaps_s, plain_s, cost_s).sum())) / float(gaps_s.sum()))
    return np.array(points)


def online_mean(learnt_s: Sequence[float], gaps_s: Array) -> Array:
    """The mean of all gaps before each one."""
    seen_s = sum(learnt_s) + np.concatenate(([0.0], np.cumsum(gaps_s)[:-1]))
    mean: Array = seen_s / (len(learnt_s) + np.arange(len(gaps_s)))
    return mean


class Rates:
    """Failure rates a second as `perceive` believes them, in the course of every gap."""

    def __init__(self, learnt_s: Sequence[float], gaps_s: Sequence[float], *, nodes: int) -> None:
        history = [Ended(duration_s=gap_s, how="rebooted") for gap_s in learnt_s]
        self.least = nodes * LEAST_A_NODE_DAY / 86_400
        self.segment_s = min(SEGMENT_S, SEGMENT_SHARE * float(np.mean(learnt_s)))
        self.by_gap: list[list[float]] = []
        self.hazards: list[Hazards] = []
        for gap_s in gaps_s:
            hazards = Hazards(nodes, history[-HISTORY:])
            count = 1 + int(gap_s / self.segment_s)
            self.by_gap.append([hazards.rates((part + 0.5) * self.segment_s, (REACH,))[REACH] for part in range(count)])
            self.hazards.append(hazards)
            history.append(Ended(duration_s=gap_s, how="rebooted"))


def standing_at(since_s: float, *, rate: float, cost_s: float) -> Standing:
    """What a policy sees so long after the newest state was taken, while the rate stood still."""
    return Standing(
        reach=REACH,
        since_s=since_s,
        since_steps=max(1, int(since_s)),
        cost_s=cost_s,
        size=0,
        rate=rate,
        exposure_s=rate * since_s**2 / 2,
    )


def situation_at(standing: Standing, alarms: tuple[Alarm, ...] = ()) -> Situation:
    since_s, steps = standing.since_s, standing.since_steps
    return Situation(
        step=steps, epoch=0, since_save_steps=steps, since_save_s=since_s, standings=(standing,), alarms=alarms
    )


class Ours:
    """The default policy. Between failures the rate hardly moves, so when it saves next is known in closed form; the
    policy itself is asked just before and just after, once in every gap, and must agree."""

    def __init__(self, rates: Rates, cost_s: float, overhead: float = OVERHEAD) -> None:
        self.rates, self.cost_s, self.asked = rates, cost_s, 0
        self.policy = CostOptimal(overhead=overhead, rates_least={REACH: rates.least})

    def interval_s(self, rate: float) -> float:
        """Seconds from the taking of one state to that of the next."""
        longest_s = local_interval(self.cost_s, max(rate, self.rates.least))
        return max(longest_s, self.cost_s / self.policy.overhead)

    def agreed_s(self, rate: float) -> float:
        """The same, and the policy has been asked."""
        found_s = self.interval_s(rate)
        for since_s, saves in ((found_s * (1 - NEAR), False), (found_s * (1 + NEAR), True)):
            decision = self.policy.decide(situation_at(standing_at(since_s, rate=rate, cost_s=self.cost_s)))
            self.asked += 1
            if isinstance(decision, Save) is not saves:
                raise AssertionError(f"{since_s} s after a save, at {rate} failures a second: {decision}")
        return found_s

    def kept_s(self, gaps_s: Sequence[float]) -> Array:
        both = zip(gaps_s, self.rates.by_gap, strict=True)
        return np.array([self.gap(gap_s, rates)[0] for gap_s, rates in both])

    def gap(self, gap_s: float, rates: list[float]) -> tuple[float, int]:
        """Kept seconds of one gap, and its saves."""
        up_s, taken_s, saves, part, segment_s = gap_s - RESTART_S, 0.0, 0, -1, self.rates.segment_s
        interval_s = math.inf
        while True:
            now = int((RESTART_S + taken_s) / segment_s)
            if now != part and up_s > taken_s:
                rate = rates[min(now, len(rates) - 1)]
                part, interval_s = now, self.agreed_s(rate) if part < 0 else self.interval_s(rate)
            if taken_s + interval_s + self.cost_s > up_s:
                return (taken_s - (saves - 1) * self.cost_s if saves else 0.0), saves
            until_s = min((part + 1) * segment_s - RESTART_S, up_s - self.cost_s)
            count = max(1, int((until_s - taken_s) / interval_s))
            taken_s += count * interval_s
            saves += count


def stepped(gap_s: float, *, hazards: Hazards, policy: CostOptimal, cost_s: float, step_s: float) -> int:
    """Saves in one gap, with every step played through: exposure, situation and decision as in a run."""
    exposure, at_s, step, saves = Exposure(RESTART_S), RESTART_S, 0, 0
    while at_s + step_s <= gap_s:
        at_s, step = at_s + step_s, step + 1
        rates = hazards.rates(at_s, (REACH,))
        exposure.advance(at_s, step, rates)
        standing = Standing(
            reach=REACH,
            since_s=exposure.since_s(REACH),
            since_steps=exposure.since_steps(REACH),
            cost_s=cost_s,
            size=0,
            rate=rates[REACH],
            exposure_s=exposure.seconds(REACH),
        )
        if isinstance(policy.decide(situation_at(standing)), Save):
            taken_s = exposure.begun(REACH)
            at_s += cost_s
            if at_s <= gap_s:
                exposure.durable(REACH, taken_s)
                saves += 1
    return saves


def with_random_alarms(
    gaps_s: Array, ours: Ours, *, per_failure: float, claimed: float, learns: bool, draw: np.random.Generator
) -> Array:
    """Kept seconds if alarms that know nothing ring so often, by a Poisson process; `learns`: what they are believed
    to say follows how often they were right.

    The rate is held at what it is in the midst of a mean gap. Where the chance stands still, an alarm saves from a
    certain age of the newest state on, which is known in closed form; the policies are asked just before and just after
    it, once in every gap, and must agree. So the time from state to state is that age and an exponential wait, or the
    interval without alarms if that is shorter."""
    kept: list[float] = []
    seen = Seen()
    policy = in_order([BeforeCrash(), ours.policy])
    a_second = per_failure * len(gaps_s) / float(gaps_s.sum())
    middle = int(1 / (2 * SEGMENT_SHARE))
    for gap_s, rates in zip(gaps_s, ours.rates.by_gap, strict=True):
        calibration = Calibration({Trouble.HARDWARE: seen})
        rate = rates[min(middle, len(rates) - 1)]
        believed = calibration.chance(Trouble.HARDWARE, claimed, horizon_s=HORIZON_S, rate=rate)
        chance = believed if learns else claimed
        interval_s = ours.agreed_s(rate)
        age_s = _age_from_which_it_saves(policy, chance, interval_s, rate, ours.cost_s)
        kept.append(_gap_with_alarms(gap_s - RESTART_S, ours.cost_s, interval_s, age_s, a_second, draw))
        raised, right = _warnings(gap_s, a_second, draw)
        seen = Seen(raised=seen.raised + raised, right=seen.right + right)
    return np.array(kept)


def _warnings(gap_s: float, a_second: float, draw: np.random.Generator) -> tuple[int, int]:
    """How many warnings ring in a gap, and whether the last of them was right: one lasts for its horizon, and the next
    begins with the next alarm after it."""
    most = int(gap_s / HORIZON_S) + 2
    begin_s = np.cumsum(draw.exponential(1 / a_second, most)) + HORIZON_S * np.arange(most)
    raised = int(np.searchsorted(begin_s, gap_s))
    return raised, int(raised > 0 and gap_s - begin_s[raised - 1] <= HORIZON_S)


def _age_from_which_it_saves(policy: Policy, chance: float, interval_s: float, rate: float, cost_s: float) -> float:
    age_s = max(cost_s / chance, cost_s / ALARM_SHARE) if chance > 0 else math.inf
    if age_s * (1 + NEAR) >= interval_s:
        return math.inf
    ring = Alarm(trouble=Trouble.HARDWARE, step=0, value=2, limit=1, text="x", chance=chance, horizon_s=HORIZON_S)
    for since_s, saves in ((age_s * (1 - NEAR), False), (age_s * (1 + NEAR), True)):
        decision = policy.decide(situation_at(standing_at(since_s, rate=rate, cost_s=cost_s), (ring,)))
        if isinstance(decision, Save) is not saves:
            raise AssertionError(f"{since_s} s after a save, with an alarm of chance {chance}: {decision}")
    return age_s


def _gap_with_alarms(
    up_s: float, cost_s: float, interval_s: float, age_s: float, a_second: float, draw: np.random.Generator
) -> float:
    if up_s <= 0:
        return 0.0
    most = int(up_s / min(age_s, interval_s)) + 1
    if math.isinf(age_s):
        taken_s = interval_s * np.arange(1, most + 1)
    else:
        taken_s = np.cumsum(np.minimum(interval_s, age_s + draw.exponential(1 / a_second, most)))
    count = int(np.searchsorted(taken_s, up_s - cost_s, side="right"))
    return float(taken_s[count - 1]) - (count - 1) * cost_s if count else 0.0
