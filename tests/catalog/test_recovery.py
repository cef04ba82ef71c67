"""Which checkpoint a run comes back to, of entries in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.catalog.recovery import best, rank
from mementum.records import Entry, Granularity, Health, Manifest


def entry(id: str, seq: int, **fields: object) -> Entry:
    made = Manifest(
        id=id,
        seq=seq,
        task="t",
        attempt=1,
        parent=None,
        step=seq,
        epoch=0,
        time="",
        reason="",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(),
    )
    return replace(Entry(manifest=made, folder=id), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("granularity", "health", "damaged", "expected"),
    [
        (Granularity.FULL, Health.CLEAN, None, 2),
        (Granularity.FULL, Health.SUSPECT, None, 1),
        (Granularity.FULL, Health.DIVERGED, None, 0),
        (Granularity.FULL, Health.CLEAN, "index", None),
        (Granularity.WEIGHTS, Health.CLEAN, None, None),
        (Granularity.ESSENTIALS, Health.CLEAN, None, None),
    ],
)
def test_what_one_comes_back_to(
    granularity: Granularity, health: Health, damaged: str | None, expected: int | None
) -> None:
    assert rank(granularity, health, damaged) == expected


def test_the_healthiest_then_the_newest_then_the_one_that_is_back_soonest() -> None:
    suspect = entry("a", 9, judged=Health.SUSPECT)
    old, slow, fast = entry("b", 1), entry("c", 5, restore_s=9.0), entry("d", 5, restore_s=2.0)
    assert best([suspect, old]) == old
    assert best([slow, old, fast]) == fast
    assert best([entry("z", 5), slow]) == slow  # what was never measured is behind what was
    assert best([entry("y", 5), entry("z", 5), entry("x", 5)]) == entry("z", 5)
    assert best([suspect, old], before_step=1) is None
    assert best([suspect, fast], before_step=5) is None
    assert best([suspect, fast], before_step=6) == fast
    assert best([]) is None
