"""A lineage follows parents, and over gaps what is older, clean and of no later step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mementum.decide.lineage import lineage, with_siblings
from mementum.records import Entry, Granularity, Health, Manifest


def entry(seq: int, parent: int | None, *, step: int | None = None, judged: Health | None = None) -> Entry:
    manifest = Manifest(
        id=f"c{seq:03d}",
        seq=seq,
        task="t",
        attempt=1,
        parent=None if parent is None else f"c{parent:03d}",
        step=seq * 10 if step is None else step,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="asked",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(),
    )
    return Entry(manifest=manifest, folder=f"step_{seq:010d}", judged=judged)


def line(entries: list[Entry], newest: int) -> list[int]:
    return [found.manifest.seq for found in lineage(entries, f"c{newest:03d}")]


def test_nothing_has_no_lineage() -> None:
    assert lineage([], "c001") == ()
    assert line([entry(5, None)], 4) == []


def test_parents_are_followed_whatever_the_order() -> None:
    entries = [entry(1, None), entry(2, 1), entry(3, 2)]
    assert line(entries, 3) == line(entries[::-1], 3) == [3, 2, 1]
    assert line(entries, 2) == [2, 1]


def test_a_branch_that_was_left_is_not_in_it() -> None:
    left = [entry(3, 2), entry(4, 3)]
    entries = [entry(1, None), entry(2, 1), *left, entry(5, 2, step=30), entry(6, 5, step=40)]
    assert line(entries, 6) == [6, 5, 2, 1]
    assert line(entries, 4) == [4, 3, 2, 1]


def test_over_a_gap_the_line_goes_on_from_the_newest_older_one() -> None:
    entries = [entry(1, None), entry(2, 1), entry(5, 4), entry(6, 5)]
    assert line(entries, 6) == [6, 5, 2, 1]
    assert line(entries, 9) == [6, 5, 2, 1]  # a snapshot in memory, or one that was removed
    assert line(entries, 4) == [2, 1]


def test_no_state_comes_over_a_gap_from_one_that_had_trained_for_longer() -> None:
    entries = [entry(1, None), entry(2, 1), entry(3, 2, step=900), entry(6, 5, step=40)]
    assert line(entries, 6) == [6, 2, 1]


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.DIVERGED])
def test_what_is_not_clean_is_passed_by_over_a_gap(health: Health) -> None:
    left = [entry(3, 2, judged=health), entry(4, 3, judged=health)]
    entries = [entry(1, None), entry(2, 1), *left, entry(6, 5, step=60)]  # the first one after the rollback is gone
    assert line(entries, 6) == [6, 2, 1]
    assert line([*entries, entry(7, 4)], 7) == [7, 4, 3, 2, 1]  # a parent that is there is one


def test_manifests_that_name_one_another_end() -> None:
    assert line([entry(1, 2), entry(2, 1)], 2) == [2, 1]
    assert line([entry(1, 1)], 1) == [1]


def test_a_copy_of_a_checkpoint_is_in_it_once() -> None:
    first = entry(1, None)
    copy = Entry(manifest=first.manifest, folder="step_0000000010-2")
    assert lineage([first, copy, entry(2, 1)], "c002") == (entry(2, 1), first)


def test_random_trees_are_followed_to_their_roots(rng: Random) -> None:
    for _ in range(30):
        parents: dict[int, int | None] = {}
        for seq in range(1, 40):
            parents[seq] = rng.choice(list(parents)) if parents and rng.random() < 0.9 else None
        entries = [entry(seq, parent) for seq, parent in parents.items()]
        rng.shuffle(entries)
        at: int | None = rng.randint(1, 39)
        found, expected = line(entries, at), []
        while at is not None:
            expected.append(at)
            at = parents[at]
        assert found == expected


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ((), [6, 5, 4, 2, 1]),  # 4 lay in memory when 5 was saved
        (((4, 20),), [6, 5, 2, 1]),  # a rollback went back behind it
        (((4, 40),), [6, 5, 4, 2, 1]),  # one that went back to it
        (((2, 10),), [6, 5, 4, 2, 1]),  # one from before it
    ],
)
def test_what_was_saved_between_is_of_the_branch_too(left: tuple[tuple[int, int], ...], expected: list[int]) -> None:
    other = entry(3, 2)
    other = replace(other, manifest=replace(other.manifest, attempt=2))
    later = entry(7, 4, step=70)
    entries = [entry(1, None), entry(2, 1), other, entry(4, 2), entry(5, 2), entry(6, 5), later]
    found = with_siblings(lineage(entries, "c006"), entries, left)
    assert [one.manifest.seq for one in found] == expected
