"""Retention keeps the newest by sequence number, never by step or time, and never the last good one's life."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.retain import Retention, retain
from mementum.records import Entry, Granularity, Health, Manifest


def entry(
    seq: int,
    step: int | None = None,
    *,
    granularity: Granularity = Granularity.FULL,
    damaged: str | None = None,
    time: str = "2026-11-30T06:10:09.000000Z",
    judged: Health | None = None,
    pinned: str | None = None,
    verified: str | None = None,
) -> Entry:
    manifest = Manifest(
        id=f"c{seq}",
        seq=seq,
        task="t",
        attempt=1,
        parent=None,
        step=seq if step is None else step,
        epoch=0,
        time=time,
        reason="asked",
        granularity=granularity,
        health=Health.CLEAN,
        files=(),
    )
    return Entry(
        manifest=manifest,
        folder=f"step_{manifest.step:010d}",
        damaged=damaged,
        judged=judged,
        pinned=pinned,
        verified=verified,
    )


def kept(entries: list[Entry], last: int | None, every: int | None = None, spread: int = 0) -> list[int]:
    verdicts = retain(entries, Retention(last=last, every_steps=every, spread=spread))
    assert len(verdicts) == len(entries)
    return sorted(int(verdict.id[1:]) for verdict in verdicts if verdict.keep)


def test_nothing_is_nothing() -> None:
    assert retain([], Retention(last=1)) == ()


@pytest.mark.parametrize(
    ("last", "expected"), [(1, [5]), (2, [4, 5]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])]
)
def test_the_newest_stay(last: int | None, expected: list[int]) -> None:
    for order in itertools.permutations([entry(seq) for seq in range(1, 6)]):
        assert kept(list(order), last) == expected


def test_newest_is_by_sequence_number_not_by_step_or_time() -> None:
    entries = [
        entry(1, step=900, time="2030-01-01T00:00:00.000000Z"),
        entry(2, step=100, time="1970-01-01T00:00:00.000000Z"),
        entry(3, step=50, time="1980-01-01T00:00:00.000000Z"),
    ]
    assert kept(entries, 1) == [3]
    assert kept(entries, 2) == [2, 3]


def test_milestones_stay_beside_the_newest() -> None:
    entries = [entry(seq, step=seq * 50) for seq in range(1, 8)]
    assert kept(entries, 2, every=100) == [2, 4, 6, 7]
    assert kept(entries, 1, every=1) == [1, 2, 3, 4, 5, 6, 7]
    assert kept([entry(1, step=0), entry(2, step=1)], 1, every=10) == [1, 2]


def test_no_number_takes_the_newest_away() -> None:
    assert kept([entry(1), entry(2)], 0) == [2]


def test_damaged_ones_take_no_place_and_are_not_deleted() -> None:
    entries = [entry(1), entry(2), entry(3, damaged="index: it is missing"), entry(4, damaged="x")]
    assert kept(entries, 1) == [2, 3, 4]
    verdicts = {verdict.id: verdict.reason for verdict in retain(entries, Retention(last=1))}
    assert verdicts == {
        "c1": "older than the newest 1",
        "c2": "one of the newest 1",
        "c3": "damaged (index: it is missing): left for a person",
        "c4": "damaged (x): left for a person",
    }


def test_partial_ones_do_not_replace_the_newest_exact_one() -> None:
    weights = [entry(seq, granularity=Granularity.WEIGHTS) for seq in (3, 4, 5)]
    assert kept([entry(1), entry(2), *weights], 1) == [2, 5]
    assert kept([entry(1), entry(2), *weights], 2) == [1, 2, 4, 5]
    assert kept([entry(1), *weights, entry(6)], 1) == [5, 6]
    assert kept([entry(1), *weights, entry(6), entry(7)], 1) == [7]  # older than every exact one that stays


def test_reasons_say_why() -> None:
    reasons = [v.reason for v in retain([entry(100), entry(101), entry(102)], Retention(last=1, every_steps=100))]
    assert reasons == ["one of the newest 1", "older than the newest 1", "step 100 is a multiple of 100"]
    assert [v.reason for v in retain([entry(1)], Retention(last=None))] == ["everything is kept"]


def test_equal_sequence_numbers_are_told_apart_by_attempt() -> None:
    first, second = entry(5), entry(5)
    later = Entry(manifest=Manifest(**{**_fields(second), "id": "c6", "attempt": 2}), folder="step_0000000006")
    assert kept([later, first], 1) == kept([first, later], 1) == [6]


def _fields(entry: Entry) -> dict[str, object]:
    return {name: getattr(entry.manifest, name) for name in Manifest.__dataclass_fields__}


ENTRIES = st.lists(
    st.tuples(st.integers(0, 300), st.sampled_from(Granularity), st.sampled_from([None, "damaged"])), max_size=12
).map(lambda rows: [entry(n, step, granularity=g, damaged=d) for n, (step, g, d) in enumerate(rows, start=1)])


@given(entries=ENTRIES, last=st.none() | st.integers(1, 5), every=st.none() | st.integers(1, 100))
def test_the_newest_whole_exact_one_always_stays_and_judging_twice_changes_nothing(
    entries: list[Entry], last: int | None, every: int | None
) -> None:
    stay = kept(entries, last, every)
    exact = [e for e in entries if e.damaged is None and e.manifest.granularity is Granularity.FULL]
    assert not exact or exact[-1].manifest.seq in stay
    assert all(e.manifest.seq in stay for e in entries if e.damaged is not None)
    remaining = [e for e in entries if e.manifest.seq in stay]
    assert kept(remaining, last, every) == stay
