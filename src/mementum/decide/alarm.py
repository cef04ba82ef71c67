"""Saving because a vital sign says that the process may end soon."""

from __future__ import annotations

from mementum.decide.amounts import seconds, share
from mementum.decide.cost import COST_S_LEAST
from mementum.decide.standing import at_least
from mementum.records import Alarm, Decision, Reach, Save, Situation, Standing, Trouble, record

ALARM_SHARE = (
    0.05  # of the time that saves for alarms may take: what they claim is not known as well as what saves cost
)
MEMORY_URGENT = 0.97  # of the limit: the next allocation may be the last, so no cost is weighed
OUTLIVES = {  # the least that a save must outlive to help against a trouble; others: the whole machine may be going
    Trouble.MEMORY: Reach.REBOOT,  # who is out of memory may lose what lies in memory too
    Trouble.HANG: Reach.REBOOT,
    Trouble.SLOW: Reach.REBOOT,
}


def chance_of(alarms: tuple[Alarm, ...]) -> float:
    """The chance that one of them is right: 1 - product of (1 - p), as if they knew nothing of one another."""
    none_is = 1.0
    for alarm in alarms:
        none_is *= 1.0 - min(max(alarm.chance, 0.0), 1.0)
    return 1.0 - none_is


@record
class BeforeCrash:
    """Save when the chance that alarms add, times the work at risk, exceeds what a save costs.

    At most one such save in `cost / share` seconds, so that false alarms cannot take more than that part of the
    time. Memory at 97 % of its limit always saves: when it rings, and as often as that while it stays. Trouble that
    ends no process (a loss that diverges) asks for none: a fresh save would keep the wreck."""

    share: float = ALARM_SHARE
    memory_urgent: float = MEMORY_URGENT  # of its limit; from here on no cost is weighed

    def decide(self, situation: Situation) -> Decision | None:
        alarms = tuple(alarm for alarm in situation.alarms if alarm.trouble.is_crash)
        short = self._when_short(situation, alarms)
        if short is not None or not alarms:
            return short
        wanted = max(OUTLIVES.get(alarm.trouble, Reach.MACHINE) for alarm in alarms)
        standing = at_least(situation.standings, wanted)
        return None if standing is None else self._weigh(alarms, standing)

    def _when_short(self, situation: Situation, alarms: tuple[Alarm, ...]) -> Save | None:
        """When memory is all but gone: at once if an alarm rings, and again and again for as long as it stays so."""
        used = situation.vitals.memory_used if situation.vitals is not None else None
        if used is None or used < self.memory_urgent:
            return None
        standing = at_least(situation.standings, OUTLIVES[Trouble.MEMORY])
        rings = any(alarm.trouble is Trouble.MEMORY for alarm in alarms)
        if standing is not None and not rings:
            soonest_s = max(standing.cost_s, COST_S_LEAST) / self.share
            if standing.in_flight or standing.since_s < soonest_s:
                return None
        if standing is None and not rings:
            return None
        limit = self.memory_urgent
        told = f"{_texts(alarms)}: " if alarms else ""
        return Save(
            reason=f"{told}memory at {share(used)} of its limit, which saves from {share(limit)} on",
            reach=OUTLIVES[Trouble.MEMORY] if standing is None else standing.reach,
            numbers={"memory_used": used, "memory_limit": limit, "chance": chance_of(alarms)},
            cause="alarm",
            urgent=True,
        )

    def _weigh(self, alarms: tuple[Alarm, ...], standing: Standing) -> Decision | None:
        cost_s = max(standing.cost_s, COST_S_LEAST)
        chance = chance_of(alarms)
        worth_s = chance * standing.since_s
        if standing.in_flight or standing.since_s < cost_s / self.share or not worth_s > cost_s:
            return None
        return Save(
            reason=f"{_texts(alarms)}: {share(chance)} chance x {seconds(standing.since_s)} of work at risk"
            f" = {seconds(worth_s)} > {seconds(cost_s)} that a save costs",
            reach=standing.reach,
            numbers={"chance": chance, "at_risk_s": standing.since_s, "worth_s": worth_s, "cost_s": cost_s},
            cause="alarm",
        )


def _texts(alarms: tuple[Alarm, ...]) -> str:
    return "; ".join(alarm.text for alarm in alarms)
