"""What goes beyond the machine counts, whatever it was saved for, and waits where a day's budget is used up."""

from __future__ import annotations

from mementum.perceive.budgets import GB, Budget, Budgets
from mementum.perceive.costs import SaveCost
from mementum.perceive.day import DAY_S
from mementum.records import Reach

BEGAN_S = 1_700_000_000.0
FAR = "far"


def cost(reach: Reach, size: float) -> SaveCost:
    return SaveCost(reach=reach, lost_s=1.0, snapshot_s=1.0, durable_s=1.0, size=int(size), memory=1, measured=1)


def budgets(**limits: object) -> Budgets:
    given: dict[str, object] = {"bytes_a_day": {Reach.REBOOT: 100 * GB, Reach.MACHINE: 10 * GB}} | limits
    return Budgets(Budget(**given), began_s=BEGAN_S, first_s=1.0)  # type: ignore[arg-type]


def left(made: Budgets, unit: str, at_s: float = 0.0) -> float:
    allowances = made.allowances(at_s, [cost(Reach.MACHINE, GB)])
    return next(each.left for each in allowances if each.unit == unit)


def test_a_save_for_less_counts_where_it_is_sent() -> None:
    made = budgets()
    made.spent(0.0, cost(Reach.REBOOT, 4 * GB), id="c1")
    assert made.sending.begin(1.0, FAR, "c1", 4 * GB) is None
    assert left(made, "bytes to the store") == 6 * GB  # set apart, though nothing is there yet
    made.sending.sent(2.0, FAR, "c1", 1 * GB)
    assert left(made, "bytes to the store") == 6 * GB
    made.sending.end(FAR, "c1")  # it was compressed: the rest is free again
    assert (left(made, "bytes to the store"), left(made, "bytes to the ssd")) == (9 * GB, 96 * GB)


def test_what_does_not_fit_waits_and_says_so() -> None:
    made = budgets()
    assert made.sending.begin(0.0, FAR, "c1", 7 * GB) is None
    told = "budgets.bytes_per_day.object_store: 3 GB of 10 GB are left of this day, and it takes 4 GB"
    assert made.sending.begin(0.0, "other", "c2", 4 * GB) == told
    assert made.sending.begin(0.0, "other", "c2", 3 * GB) is None
    for place, id, size in ((FAR, "c1", 7 * GB), ("other", "c2", 3 * GB)):
        made.sending.sent(0.0, place, id, size)
        made.sending.end(place, id)
    assert made.sending.begin(DAY_S - 1, FAR, "c3", 1.0) is not None
    assert made.sending.begin(DAY_S + 1, FAR, "c3", 1.0) is None


def test_a_save_that_was_charged_when_it_was_decided_is_not_charged_twice() -> None:
    made = budgets()
    made.spent(0.0, cost(Reach.MACHINE, 6 * GB), id="c1")
    made.corrected(0.0, cost(Reach.MACHINE, 6 * GB), lost_s=1.0, written=int(7 * GB), id="c1")
    assert left(made, "bytes to the store") == 3 * GB
    assert made.sending.begin(1.0, FAR, "c1", 7 * GB) is None  # though less is left
    made.sending.sent(1.0, FAR, "c1", 7 * GB)
    made.sending.end(FAR, "c1")
    assert left(made, "bytes to the store") == 3 * GB
    assert made.sending.begin(1.0, "second", "c1", 7 * GB) is not None  # a second place is not paid
    assert made.sending.begin(1.0, "second", "c1", 2 * GB) is None
    made.sending.sent(1.0, "second", "c1", 2 * GB)
    made.sending.end("second", "c1")
    assert left(made, "bytes to the store") == 1 * GB


def test_money_of_a_copy_is_the_store_s_alone() -> None:
    made = budgets(bytes_a_day={}, money_a_day=3.0, prices={Reach.REBOOT: 1.0, Reach.MACHINE: 0.5})
    made.spent(0.0, cost(Reach.REBOOT, GB), id="c1")
    assert left(made, "a day") == 2.0
    assert made.sending.begin(0.0, FAR, "c1", 5 * GB) == "budgets.money: 2 of 3 are left of this day, and it takes 2.5"
    assert made.sending.begin(0.0, FAR, "c1", 2 * GB) is None
    made.sending.sent(0.0, FAR, "c1", 2 * GB)
    made.sending.end(FAR, "c1")
    assert left(made, "a day") == 1.0


def test_without_a_budget_all_goes() -> None:
    made = budgets(bytes_a_day={})
    assert made.sending.begin(0.0, FAR, "c1", 1e18) is None


def test_what_was_sent_and_written_before_counts_each_for_itself() -> None:
    made = budgets()
    made.written_before([(BEGAN_S - 5.0, Reach.MACHINE, 4 * GB), (BEGAN_S - 9.0, Reach.REBOOT, 5 * GB)])
    assert (left(made, "bytes to the store"), left(made, "bytes to the ssd")) == (6 * GB, 95 * GB)
