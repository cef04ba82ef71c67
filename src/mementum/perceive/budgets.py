"""What saves may still take of each budget: lost time, bytes and money of a day, network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from mementum.perceive.costs import SaveCost
from mementum.perceive.day import ALARM, ALARM_SHARE, Day
from mementum.perceive.sending import Sending
from mementum.records import Allowance, Reach, record

LOST_SHARE = 0.05  # of elapsed time; beyond it a save costs more than any rate of failures that was published
FIRST_SAVES = 1.0  # what lost time begins with: without it, nothing could be saved for 20 times the cost of a save
HELD_S = 3600.0  # lost time that was not taken for an hour is not kept for later: a storm would take it at once
NETWORK_HELD_S = 60.0  # the same for the network, where a minute at full speed is what others notice
KEPT = "kept"  # the cause of writing down an older state, which lies in memory
GB = 1e9  # bytes, as object stores put it on their bills
SETTINGS: Mapping[str, str] = {  # what a day's budget is called in the settings
    "bytes REBOOT": "budgets.bytes_per_day.ssd",
    "bytes MACHINE": "budgets.bytes_per_day.object_store",
    "money": "budgets.money",
}


@record
class Budget:
    """The limits; None, or an absent reach, is no limit.

    `bytes_a_day` is per reach: REBOOT what is written to the ssd, MACHINE what is sent to the object store.
    `prices` are per GB (1e9 bytes) that a save of the reach writes, in the unit of `money_a_day`."""

    lost_share: float = LOST_SHARE
    bytes_a_day: Mapping[Reach, float] = field(default_factory=dict)
    network_bytes_per_s: float | None = None
    money_a_day: float | None = None
    prices: Mapping[Reach, float] = field(default_factory=dict)


class Budgets:
    """Counts what saves take. A save is charged when it is decided, with what it is expected to take, and corrected
    when it was measured, so that saves in flight count.

    For each reach there is one Allowance per budget that a save of it takes from; it may be made if in all of them
    `left` (for an alarm: `for_alarms`) is at least `per_save`. Then the lost time stays within share x elapsed + what
    it began with, that of alarms within half of it, and no 24 hours see more than a day's bytes or money. A save that
    is made nevertheless, for a notice, is charged too, and later ones wait.

    Times are seconds since the attempt began; `began_s` is its wall time, by which a later attempt goes on with the
    same day (the time between them earns no lost time). `first_s` is what the first save is expected to lose."""

    def __init__(self, budget: Budget, *, began_s: float, first_s: float) -> None:
        self._budget, self._began_s = budget, began_s
        first = FIRST_SAVES * first_s
        self._lost = _Bucket(rate=budget.lost_share, held=max(budget.lost_share * HELD_S, first), left=first)
        self._network: _Bucket | None = None
        if budget.network_bytes_per_s is not None:
            held = budget.network_bytes_per_s * NETWORK_HELD_S
            self._network = _Bucket(rate=budget.network_bytes_per_s, held=held, left=held)
        self._days = {f"bytes {reach.name}": Day(limit) for reach, limit in budget.bytes_a_day.items()}
        if budget.money_a_day is not None:
            self._days["money"] = Day(budget.money_a_day)
        self.sending = Sending(
            {SETTINGS[name]: (self._days[name], per_byte) for name, per_byte in self._of_place(Reach.MACHINE)},
            began_s=began_s,
        )

    def spent(self, at_s: float, cost: SaveCost, *, cause: str = "interval", id: str = "") -> None:
        """A save of `cost.reach` is made now, and takes what `cost` says."""
        self._pass(at_s)
        if cost.reach is Reach.MACHINE:
            self.sending.paid(id, cost.size)
        self._charge(at_s, cost.reach, cost.lost_s, cost.size, cause)

    def corrected(
        self, at_s: float, cost: SaveCost, *, lost_s: float, written: int, cause: str = "interval", id: str = ""
    ) -> None:
        """What such a save really took is known; `cost` is what was charged. What it took less is given back to lost
        time and network; of a day's bytes and money, only what it took more is charged."""
        self._pass(at_s)
        if cost.reach is Reach.MACHINE:
            self.sending.paid(id, max(0, written - cost.size))
        self._charge(at_s, cost.reach, lost_s - cost.lost_s, written - cost.size, cause)

    def written_before(self, written: Sequence[tuple[float, Reach, float]]) -> None:
        """What earlier attempts have written to the ssd (REBOOT) and sent (MACHINE): when, in seconds since 1970,
        which, and bytes. Told before `apply`, which knows of what it counted also for what it was."""
        for now_s, reach, size in sorted(written):
            for name, per_byte in self._of_place(reach):
                self._days[name].take(now_s, size * per_byte, "interval")

    def allowances(self, at_s: float, costs: Sequence[SaveCost]) -> tuple[Allowance, ...]:
        """For a save of each reach in `costs`."""
        self._pass(at_s)
        for cost in costs:
            self._lost.hold(cost.lost_s)
            if self._network is not None and cost.reach is Reach.MACHINE:
                self._network.hold(cost.size)
        return tuple(allowance for cost in costs for allowance in self._of(at_s, cost))

    def state(self) -> dict[str, Any]:
        """For a later attempt, as plain numbers, lists and names."""
        days = {name: day.state() for name, day in self._days.items()}
        return {"lost": [self._lost.left, self._lost.for_alarms], "days": days}

    def apply(self, state: Mapping[str, Any]) -> None:
        """Go on where an earlier attempt was. What it never had a budget for, or left out, begins anew."""
        left, for_alarms = state.get("lost", (self._lost.left, self._lost.for_alarms))
        self._lost.left = min(float(left), self._lost.held)
        self._lost.for_alarms = min(float(for_alarms), ALARM_SHARE * self._lost.held)
        for name, spent in state.get("days", {}).items():
            if name in self._days:
                self._days[name].apply(spent)

    def _pass(self, at_s: float) -> None:
        self._lost.fill(at_s)
        if self._network is not None:
            self._network.fill(at_s)

    def _charge(self, at_s: float, reach: Reach, lost_s: float, size: float, cause: str) -> None:
        alarm = cause == ALARM
        self._lost.take(lost_s, alarm=alarm)
        if self._network is not None and reach is Reach.MACHINE:
            self._network.take(size, alarm=alarm)
        for name, per_byte in self._taken(reach):
            self._days[name].take(self._began_s + at_s, size * per_byte, cause)

    def _taken(self, reach: Reach) -> list[tuple[str, float]]:
        """The days' budgets that a save takes from, and how much of each for a byte. What is sent to an object store
        was written to the ssd before."""
        taken: dict[str, float] = {}
        for tier in (Reach.REBOOT, Reach.MACHINE):
            if tier <= reach:
                for name, per_byte in self._of_place(tier):
                    taken[name] = taken.get(name, 0.0) + per_byte
        return list(taken.items())

    def _of_place(self, reach: Reach) -> list[tuple[str, float]]:
        """The same of what is written to one place."""
        taken = ((f"bytes {reach.name}", 1.0), ("money", self._budget.prices.get(reach, 0.0) / GB))
        return [(name, per_byte) for name, per_byte in taken if name in self._days]

    def _of(self, at_s: float, cost: SaveCost) -> list[Allowance]:
        reach, size = cost.reach, cost.size
        found = [self._lost.allowance("lost time", "s", reach, cost.lost_s)]
        for name, per_byte in self._taken(reach):
            day = self._days[name]
            left, for_alarms, others = day.left(self._began_s + at_s)
            going = self.sending.going(SETTINGS[name])
            if not size * per_byte:
                continue  # such a save takes nothing of it, however much is overdrawn
            found.append(
                Allowance(
                    name="money" if name == "money" else "bytes a day",
                    unit="a day" if name == "money" else f"bytes to {'the ssd' if 'REBOOT' in name else 'the store'}",
                    reach=reach,
                    left=left - going,
                    limit=day.limit,
                    per_save=size * per_byte,
                    for_alarms=min(left - going, for_alarms),
                    others=others,
                )
            )
        if self._network is not None and reach is Reach.MACHINE:
            found.append(self._network.allowance("network", "bytes", reach, size))
        return found


class _Bucket:
    """Fills with time up to what it can hold; alarms have a bucket of their own that fills half as fast."""

    def __init__(self, *, rate: float, held: float, left: float) -> None:
        self.rate, self.held, self.left = rate, held, left
        self.for_alarms = ALARM_SHARE * left
        self._at_s = 0.0

    def fill(self, at_s: float) -> None:
        earned = self.rate * max(0.0, at_s - self._at_s)
        self._at_s = max(at_s, self._at_s)
        self.left = min(self.held, self.left + earned)
        self.for_alarms = min(ALARM_SHARE * self.held, self.for_alarms + ALARM_SHARE * earned)

    def hold(self, per_save: float) -> None:
        """A save that takes more than the bucket holds must be possible, also for an alarm, after a longer wait."""
        self.held = max(self.held, per_save / ALARM_SHARE)

    def take(self, amount: float, *, alarm: bool) -> None:
        self.left -= amount
        self.for_alarms -= amount if alarm else 0.0

    def allowance(self, name: str, unit: str, reach: Reach, per_save: float) -> Allowance:
        return Allowance(
            name=name,
            reach=reach,
            unit=unit,
            left=self.left,
            limit=self.held,
            per_save=per_save,
            for_alarms=min(self.left, self.for_alarms),
        )
