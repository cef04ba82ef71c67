"""What a configuration cannot keep: said before the run starts, not when the work is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from mementum.decide.amounts import DAY_S, seconds, share, size
from mementum.records import Reach, record

LOSS = {
    Reach.PROCESS: "the end of the process",
    Reach.REBOOT: "a reboot",
    Reach.MACHINE: "the loss of the machine",
}


@record
class Planned:
    """What one save of a reach is expected to take: seconds lost, seconds until durable, bytes, and money."""

    reach: Reach
    cost_s: float
    durable_s: float
    size: int
    price: float = 0.0


@record
class Limits:
    """The budgets as they were set; absent: none. `lost_share` is a part of the time, 0 to 1."""

    lost_share: float | None = None
    bytes_per_day: Mapping[Reach, float] = field(default_factory=dict)
    money_per_day: float | None = None


@record
class Longest:
    """One thing that keeps saves apart, and how far."""

    apart_s: float
    why: str
    remedy: str


def unmeetable(
    max_lost_s: float, *, limits: Limits, planned: Sequence[Planned], step_s: float = 0.0
) -> tuple[str, ...]:
    """A sentence for each reach against whose loss `max_lost_s` cannot be kept; none where it can.

    A state is at risk until the next one is durable: at least the time between two saves, plus one save, plus a step.
    Two saves are apart by the time that one takes (one is in flight at a time), and by what the budgets allow: cost /
    lost share, a day x size / bytes a day, a day x price / money a day."""
    said = []
    for one in planned:
        longest = max(_apart(one, limits), key=lambda limit: limit.apart_s)
        least_s = longest.apart_s + one.durable_s + step_s
        if least_s > max_lost_s:
            said.append(
                f"max_lost {seconds(max_lost_s)} cannot be kept against {LOSS[one.reach]}: {longest.why}, so saves are"
                f" {seconds(longest.apart_s)} apart and up to {seconds(least_s)} can be lost; set max_lost to"
                f" {seconds(least_s)} or more, or {longest.remedy}"
            )
    return tuple(said)


def _apart(one: Planned, limits: Limits) -> list[Longest]:
    found = [
        Longest(
            apart_s=one.durable_s,
            why=f"a save takes {seconds(one.durable_s)} until it is durable",
            remedy="write to a faster place",
        )
    ]
    if limits.lost_share:
        found.append(
            Longest(
                apart_s=one.cost_s / limits.lost_share,
                why=f"a save costs {seconds(one.cost_s)} and the budget lost_time is {share(limits.lost_share)}",
                remedy="raise budgets.lost_time",
            )
        )
    bytes_per_day = limits.bytes_per_day.get(one.reach)
    if bytes_per_day:
        found.append(
            Longest(
                apart_s=DAY_S * one.size / bytes_per_day,
                why=f"a save writes {size(one.size)} and the budget bytes_per_day is {size(bytes_per_day)}",
                remedy="raise budgets.bytes_per_day",
            )
        )
    if limits.money_per_day and one.price:
        found.append(
            Longest(
                apart_s=DAY_S * one.price / limits.money_per_day,
                why=f"a save is priced {one.price:.3g} and the budget money is {limits.money_per_day:.3g} a day",
                remedy="raise budgets.money",
            )
        )
    return found
