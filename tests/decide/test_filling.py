"""How much must come free at which filling, and that what a policy names by more than its age goes last."""

from __future__ import annotations

import pytest

from made import entry, named
from mementum.decide.evict import Eviction
from mementum.decide.filling import COUNTED_CHECKPOINTS, COUNTED_MIN, Marks, Needs, give, needs
from mementum.decide.retain import Retention
from mementum.records import Health, Usage

MARKS = Marks(clean_from=0.8, clean_to=0.7, emergency=0.9)
BUDGET = Marks(clean_from=0.8, clean_to=0.7, emergency=0.9, bounded=False)
ALL = Retention(last=None)


@pytest.mark.parametrize(
    ("used", "coming", "clean", "save"),
    [
        (799, 0, 0, 0),  # between the marks nothing happens, on the way up as on the way down
        (800, 0, 100, 0),
        (900, 0, 200, 0),
        (1000, 0, 300, 0),
        (799, 100, 0, 0),
        (790, 110, 0, 0),  # to the mark itself
        (790, 111, 0, 1),
        (850, 100, 150, 50),
        (500, 700, 0, 300),
        (950, 0, 250, 0),
        (950, 1, 250, 51),
    ],
)
def test_what_must_come_free(used: int, coming: int, clean: int, save: int) -> None:
    found = needs(Usage(used=used, size=1000), MARKS, coming=coming)
    assert (found.clean, found.save, found.most) == (clean, save, max(clean, save))
    assert found.limit == (900 if coming else 800)


def test_of_a_very_large_disk_only_a_part_counts() -> None:
    size, counted = 1000 * COUNTED_MIN, COUNTED_MIN
    at = round(size - 0.2 * counted)
    assert needs(Usage(used=at - 1, size=size), MARKS).clean == 0
    assert needs(Usage(used=at, size=size), MARKS).clean == pytest.approx(0.1 * counted, abs=2)
    assert needs(Usage(used=at, size=size), BUDGET).clean == pytest.approx(at - 0.7 * size, abs=2)


def test_a_thousand_checkpoints_are_never_more_than_is_looked_after() -> None:
    full = COUNTED_MIN // 100
    size = COUNTED_CHECKPOINTS * full
    usage = Usage(used=round(0.8 * size), size=size)
    assert needs(usage, MARKS, full=full).clean == pytest.approx(0.1 * size, abs=2)
    assert needs(usage, MARKS, full=full // 10) == Needs(clean=0, save=0, limit=round(size - 0.2 * COUNTED_MIN))


def test_a_place_of_no_size_is_full() -> None:
    assert Usage(used=0, size=0).share == 1.0
    assert Usage(used=7, size=5).free == 0
    assert needs(Usage(used=0, size=0), MARKS, coming=5).save == 5


def gone(found: Eviction) -> list[int]:
    return sorted(int(one.id[1:]) for one in found.verdicts if not one.keep)


def reasons(found: Eviction) -> dict[str, str]:
    return {one.id: one.reason for one in found.verdicts}


def test_the_best_and_multiples_and_spread_ones_go_last() -> None:
    """Twelve of 100 bytes, each ten steps apart; the second is the best, the sixth a multiple of 60."""
    entries = [entry(seq, loss=0.1 if seq == 2 else 1.0) for seq in range(1, 13)]
    policy = Retention(last=None, best=1, every_steps=60, spread=2)
    kept_by_policy = {2, 6, 12, 11, 9}  # the best, a multiple (12 too, the newest), and 10 and 30 steps back
    first = give(entries, policy, need=700)
    assert not set(gone(first)) & {2, 6, 12}
    assert (first.freed, first.missing) == (700, 0)
    assert reasons(first)["c2"] == "the best by loss: 0.1"
    assert reasons(first)["c6"] == "step 60 is a multiple of 60"
    assert set(range(1, 13)) - set(gone(first)) == kept_by_policy
    more = give(entries, policy, need=900)
    assert set(gone(first)) < set(gone(more))
    assert (more.freed, more.missing) == (900, 0)
    assert 12 not in gone(more)
    everything = give(entries, policy, need=5000)
    assert gone(everything) == list(range(1, 12))
    assert (everything.freed, everything.missing) == (1100, 3900)
    assert [one.id for one in everything.verdicts] == [f"c{seq}" for seq in range(12, 0, -1)]


def test_what_is_pinned_waited_for_or_needed_never_goes() -> None:
    entries = [
        entry(1),
        entry(2, files=(named(1),)),
        entry(3, pinned="mine", pinned_by=frozenset({"me"})),
        entry(4, judged=Health.DIVERGED),
        entry(5),
    ]
    found = give(entries, ALL, need=10_000, waiting={"c2": "it is on its way to nas"})
    assert gone(found) == [4]
    assert reasons(found)["c1"] == "checkpoint c2 needs its files"
    assert reasons(found)["c2"] == "it is on its way to nas"


def test_of_nothing_nothing_goes() -> None:
    assert give([], ALL, need=7) == Eviction(verdicts=(), freed=0, missing=7)
    assert give([entry(1)], ALL, need=0).freed == 0
