"""How often each kind of loss is to be expected, from what others have measured and from this task's own past."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from mementum.records import Reach, record

DAY_S = 86400.0

# Published failures per node-day: 2.34e-3 and 6.5e-3 (Meta's two clusters, arXiv 2410.21680), 2.32e-3 (the log of
# GLM-130B), 3.79e-3 (Llama 3, arXiv 2407.21783 table 5: 419 in 54 days on 16,384 GPUs, 8 a node).
CLUSTER_A_DAY = 3.8e-3
CLUSTER_FAILURES = 2.0  # the weight of that prior: 90 % of it lie from 0.2 to 2.4 times, wider than what was published
# Spot machines and people's own computers stop a thousand times as often: the spot traces of 2022-23 have one end of a
# machine in 0.7 to 9.7 hours. Without a second prior for such places, the first would take months to be outweighed.
ROUGH_A_DAY = 4.0
ROUGH_FAILURES = 0.2  # hardly any weight: what is seen counts at once
ROUGH_CHANCE = 0.01  # that a task runs in such a place, before anything is seen: first intervals are 3 times shorter

# Which reach a loss needs, by the counts of Llama 3's table 5, sorted by us. The process alone: software 54, network
# 35 + 7, watchdog 7, silent corruption 6, dependency 2. A reboot: GPU 148, its memory and processor 19 + 17, heat 6,
# maintenance 32. The machine: its dear parts, HBM 72, ssd 3, power 3, chassis 2, boards 2, CPU 2, memory 2.
SHARES: Mapping[Reach, float] = {Reach.PROCESS: 111 / 419, Reach.REBOOT: 222 / 419, Reach.MACHINE: 86 / 419}

# What a failure tells of the rate when there is a newer one of its kind: half of it is forgotten after seven. On the
# traces of bench/policies.py rates change by 3.5 times. Shorter memory is noisier, a longer one follows too late there.
FADES = 0.9

DURATION_S_MAX = 100 * 365 * DAY_S  # of an attempt; a longer one was not measured
EXCESS_MAX = 1000.0  # all signs together: beyond it, every step would be saved whatever it costs

How = Literal["finished", "killed", "rebooted", "moved", "preempted"]
LOST: Mapping[str, Reach] = {
    "killed": Reach.PROCESS,
    "rebooted": Reach.REBOOT,
    "moved": Reach.MACHINE,
    "preempted": Reach.MACHINE,
}


@record
class Ended:
    """An attempt of the task that is over. `how`: "killed" if its process ended without telling, "rebooted" if its
    machine was started anew since, "moved" if the next attempt ran on another one, "preempted" if it was told to go."""

    duration_s: float
    how: How


@record
class _Belief:
    """A Gamma distribution of a rate a node-day, as if `failures` had been seen in `days`, with the `seen` ones to add.
    `log_chance` is that part of its weight which does not depend on the exposure."""

    failures: float
    days: float
    seen: float
    log_chance: float


class Hazards:
    """Failures a second for each reach: those that only this reach outlives.

    A rate is Gamma distributed before anything is seen, failures are Poisson, so that after `n` failures in `t`
    node-days it is (a + n) / (b + t). There are two such priors, one for clusters and one for rough places, each
    weighed by how well it foretold what was seen (its negative binomial chance of `n` in `t`).

    Rates do not depend on how old a machine or an attempt is. Failures do come sooner after failures (Weibull shapes
    0.5 to 0.9 on public traces), but intervals by age win -11 to 3.5 % of what a clairvoyant could over constant ones:
    nothing. What is learnt early, and at once, is the rate, and it changes: so failures, and the time before them,
    count by `FADES` less with each newer one of their reach.

    `history` are the task's attempts before this one, the oldest first; `nodes` is how many machines any of which ends
    the training by its failure. A duration that is no number of seconds counts as none."""

    def __init__(self, nodes: int = 1, history: Sequence[Ended] = ()) -> None:
        assert nodes >= 1, f"{nodes} nodes"
        self._nodes = nodes
        self._past_s: dict[Reach, float] = {}
        self._beliefs: dict[Reach, tuple[_Belief, ...]] = {}
        for reach in Reach:
            seen, self._past_s[reach] = _faded(history, reach)
            self._beliefs[reach] = _beliefs(SHARES[reach], seen)
        self._excess: dict[str, tuple[float, frozenset[Reach]]] = {}

    def excess(self, name: str, factor: float, reaches: Collection[Reach] = tuple(Reach)) -> None:
        """From now on, losses of these reaches are `factor` times as likely, as the sign `name` says; 1 ends it. A
        factor that is no positive number is taken as 1."""
        if not 0 < factor < math.inf or factor == 1.0:
            self._excess.pop(name, None)
        else:
            self._excess[name] = (factor, frozenset(reaches))

    def factor(self, reach: Reach) -> float:
        """All signs together."""
        product = math.prod(factor for factor, reaches in self._excess.values() if reach in reaches)
        return min(product, EXCESS_MAX)

    def rate(self, reach: Reach, at_s: float) -> float:
        """Failures a second of all nodes, `at_s` seconds after this attempt began."""
        days = self._nodes * (self._past_s[reach] + max(0.0, at_s)) / DAY_S
        return _mean(self._beliefs[reach], days) * self._nodes / DAY_S * self.factor(reach)

    def rates(self, at_s: float, reaches: Collection[Reach] = tuple(Reach)) -> dict[Reach, float]:
        """For the reaches that saves can have here: losses of one that is missing need the next one above; losses that
        none of them outlives are left out, since no save helps."""
        rates = dict.fromkeys(sorted(reaches), 0.0)
        for lost in Reach:
            above = [reach for reach in rates if reach >= lost]
            if above:
                rates[above[0]] += self.rate(lost, at_s)
        return rates


def _faded(history: Sequence[Ended], reach: Reach) -> tuple[float, float]:
    """Failures of this reach, and the seconds in which they were seen, each as much as it still tells."""
    failures = past_s = 0.0
    for ended in history:
        duration_s = ended.duration_s if 0 < ended.duration_s <= DURATION_S_MAX else 0.0
        failed = LOST.get(ended.how) is reach
        fades = FADES if failed else 1.0
        failures = fades * failures + failed
        past_s = fades * past_s + duration_s
    return failures, past_s


def _beliefs(share: float, seen: float) -> tuple[_Belief, ...]:
    """In clusters and in rough places, after so many failures of the kind that has this share of all."""
    priors = ((CLUSTER_FAILURES, CLUSTER_A_DAY, 1 - ROUGH_CHANCE), (ROUGH_FAILURES, ROUGH_A_DAY, ROUGH_CHANCE))
    beliefs = []
    for failures, a_day, chance in priors:
        days = failures / (a_day * share)
        fit = math.lgamma(failures + seen) - math.lgamma(failures) + failures * math.log(days)
        beliefs.append(_Belief(failures=failures, days=days, seen=seen, log_chance=math.log(chance) + fit))
    return tuple(beliefs)


def _mean(beliefs: Sequence[_Belief], days: float) -> float:
    """The expected rate a node-day after an exposure of so many node-days."""
    logs = [b.log_chance - (b.failures + b.seen) * math.log(b.days + days) for b in beliefs]
    best = max(logs)
    weights = [math.exp(value - best) for value in logs]
    means = [(b.failures + b.seen) / (b.days + days) for b in beliefs]
    return sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / sum(weights)
