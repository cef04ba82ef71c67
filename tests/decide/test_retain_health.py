"""Retention keeps what is clean, pinned or proved, and older clean ones further and further back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.retain import FURTHER_BACK, TROUBLED_LAST, Retention, retain
from mementum.records import Entry, Granularity, Health, Manifest

CLEAN, SUSPECT, DIVERGED = Health.CLEAN, Health.SUSPECT, Health.DIVERGED
FULL, WEIGHTS = Granularity.FULL, Granularity.WEIGHTS


def entry(
    seq: int, health: Health = CLEAN, *, step: int | None = None, granularity: Granularity = FULL, **known: str | None
) -> Entry:
    manifest = Manifest(
        id=f"c{seq}",
        seq=seq,
        task="t",
        attempt=1,
        parent=None,
        step=seq * 10 if step is None else step,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="asked",
        granularity=granularity,
        health=CLEAN,
        files=(),
    )
    return Entry(manifest=manifest, folder=f"step_{manifest.step:010d}", judged=health, **known)


def reasons(entries: Sequence[Entry], **wishes: int | None) -> dict[int, str]:
    """Of those that stay."""
    verdicts = retain(entries, Retention(**{"last": 1, **wishes}))
    return {int(one.id[1:]): one.reason for one in verdicts if one.keep}


def kept(entries: Sequence[Entry], **wishes: int | None) -> list[int]:
    return sorted(reasons(entries, **wishes))


def test_states_that_are_not_clean_push_out_none_that_is() -> None:
    entries = [entry(1), entry(2), *(entry(seq, SUSPECT) for seq in range(3, 9)), entry(9, DIVERGED)]
    assert kept(entries, last=2) == [1, 2, 8, 9]
    assert reasons(entries, last=2) == {
        9: "diverged, and one of the newest 2 that are not clean",
        8: "suspect, and one of the newest 2 that are not clean",
        2: "one of the newest 2",
        1: "one of the newest 2",
    }
    gone = {one.id: one.reason for one in retain(entries, Retention(last=2)) if not one.keep}
    assert gone == {f"c{seq}": "suspect, and older than the newest 2 that are not clean" for seq in range(3, 8)}


def test_those_that_are_not_clean_go_when_enough_clean_ones_are_newer() -> None:
    entries = [entry(1), entry(2, SUSPECT), entry(3, SUSPECT), entry(4)]
    assert kept(entries) == [2, 3, 4]
    assert kept([*entries, entry(5)]) == [5]
    gone = [one.reason for one in retain([*entries, entry(5)], Retention(last=1)) if not one.keep]
    assert gone == ["older than the newest 1", *["suspect, and older than the newest 1"] * 2, "older than the newest 1"]
    assert kept([*entries, entry(5)], last=2) == [2, 3, 4, 5]


def test_lighter_ones_that_are_not_clean_push_out_no_lighter_one_that_is() -> None:
    light = [entry(seq, SUSPECT, granularity=WEIGHTS) for seq in (4, 5, 6)]
    assert kept([entry(1), entry(2, granularity=WEIGHTS), entry(3, granularity=WEIGHTS), *light]) == [1, 3, 5, 6]
    assert kept([entry(1), *light, entry(7), entry(8)]) == [8]


def test_a_milestone_stays_in_bad_health_too() -> None:
    entries = [entry(1), entry(5, DIVERGED), entry(6, SUSPECT), entry(7, SUSPECT), entry(8), entry(9)]
    assert kept(entries, every_steps=50) == [5, 9]
    assert reasons(entries, every_steps=50)[5] == "step 50 is a multiple of 50"


def test_what_is_pinned_stays_with_the_reason() -> None:
    entries = [entry(1, SUSPECT, pinned="I look at it"), entry(2, pinned="before step 30 (flight recorder)"), entry(3)]
    assert reasons(entries) == {
        1: "pinned: I look at it",
        2: "pinned: before step 30 (flight recorder)",
        3: "one of the newest 1",
    }
    assert kept([replace(one, pinned=None) for one in entries]) == [3]
    damaged = replace(entries[0], damaged="x")
    assert reasons([damaged, entry(3)])[1] == "damaged (x): left for a person"


def test_the_newest_of_which_every_byte_was_read_stays() -> None:
    entries = [entry(1, verified="t"), entry(2, verified="t"), entry(3, SUSPECT, verified="t"), entry(4), entry(5)]
    assert reasons(entries) == {
        2: "the newest clean full one that was verified",
        3: "the newest full one that was verified",
        5: "one of the newest 1",
    }
    assert kept([*entries, entry(6, verified="t")]) == [6]
    assert kept([entry(1, granularity=WEIGHTS, verified="t"), entry(2), entry(3)]) == [3]


@pytest.mark.parametrize("health", [SUSPECT, DIVERGED])
def test_where_none_is_clean_the_newest_stay(health: Health) -> None:
    assert kept([entry(seq, health) for seq in range(1, 6)], last=3) == [4, 5]
    assert kept([entry(1, health)]) == [1]


def test_older_clean_ones_stay_further_and_further_back() -> None:
    entries = [entry(seq) for seq in range(1, 101)]
    assert kept(entries, last=3, spread=3) == [46, 82, 94, 98, 99, 100]
    assert reasons(entries, last=3, spread=3)[82] == (
        "180 steps back: of older clean ones 3 stay, each further back than the last"
    )
    suspect = [replace(one, judged=SUSPECT) if one.manifest.seq in (46, 82) else one for one in entries]
    assert kept(suspect, last=3, spread=3) == [49, 83, 94, 98, 99, 100]
    assert kept(entries, last=None, spread=3) == list(range(1, 101))
    assert kept(entries[:3], last=3, spread=3) == [1, 2, 3]


def test_where_nothing_lies_within_reach_the_next_one_stays() -> None:
    entries = [
        entry(1),
        entry(2, step=1000),
        entry(3, step=2000),
        *(entry(seq, step=5000 + seq) for seq in range(4, 9)),
    ]
    assert kept(entries, last=3, spread=2) == [3, 4, 6, 7, 8]


def test_going_back_to_an_earlier_step_makes_nothing_younger() -> None:
    before = [entry(seq) for seq in range(1, 11)]
    after = [entry(seq, step=30 + 10 * (seq - 10)) for seq in range(11, 41)]
    assert kept([*before, *after], last=2, spread=4) == [1, 13, 31, 37, 39, 40]


INTERVALS: dict[str, Callable[[Random], int]] = {
    "even": lambda rng: 10,
    "random": lambda rng: rng.randint(1, 30),
    "bursts": lambda rng: rng.choice((1, 1, 1, 60)),
    "slower and slower": lambda rng: rng.randint(1, 4) ** 3,
}


@pytest.mark.parametrize("kind", INTERVALS)
@pytest.mark.parametrize(("last", "spread"), [(1, 3), (3, 2), (10, 3), (5, 6)])
def test_while_a_run_goes_on_there_is_a_clean_one_near_every_age(
    rng: Random, kind: str, last: int, spread: int
) -> None:
    """At each save of long runs: few are kept, and a trouble of any age up to the oldest kept finds a clean one from
    before it that is at most FURTHER_BACK times as old, or as far as the saves themselves were apart."""
    present: list[Entry] = []
    step = 0
    steps: list[int] = []
    for seq in range(1, 250):
        step += INTERVALS[kind](rng)
        steps.append(step)
        present.append(entry(seq, step=step))
        verdicts = retain(present, Retention(last=last, spread=spread))
        stay = {one.id for one in verdicts if one.keep}
        present = [one for one in present if one.manifest.id in stay]
        assert len(present) <= last + spread
        ages = [step - one.manifest.step for one in reversed(present)]
        assert ages[:last] == [step - saved for saved in steps[::-1][:last]]
        longest = max((newer - older for older, newer in pairwise(steps)), default=0)
        for younger, older in pairwise(ages[last - 1 :]):
            assert older <= max(FURTHER_BACK * max(younger, 1), younger + longest)
    if kind == "even":
        window = max(last - 1, 1) * 10
        assert ages[-1] >= (5 if (last, spread) == (10, 3) else 2 ** (spread - 1)) * window


KNOWN = st.fixed_dictionaries(
    {
        "health": st.sampled_from(Health),
        "granularity": st.sampled_from((FULL, FULL, WEIGHTS)),
        "damaged": st.sampled_from((None, None, None, "x")),
        "pinned": st.sampled_from((None, None, "mine")),
        "verified": st.sampled_from((None, None, "t")),
        "took": st.integers(-30, 40),
    }
)
WISHES = st.fixed_dictionaries(
    {
        "last": st.none() | st.integers(1, 4),
        "every_steps": st.none() | st.integers(1, 50),
        "spread": st.integers(0, 3),
    }
)


def protected(entries: Sequence[Entry]) -> set[str]:
    """What no retention takes away, said plainly."""
    found = {one.manifest.id for one in entries if one.damaged is not None or one.pinned is not None}
    exact = [one for one in entries if one.damaged is None and one.manifest.granularity is FULL]
    for some in (
        exact,
        [one for one in exact if one.health is CLEAN],
        [one for one in exact if one.verified is not None],
    ):
        found |= {one.manifest.id for one in some[-1:]}
    return found


@given(saves=st.lists(KNOWN, max_size=25), changes=st.lists(st.tuples(st.integers(0, 24), KNOWN)), wishes=WISHES)
def test_what_is_protected_survives_whatever_happens(
    saves: list[dict[str, object]], changes: list[tuple[int, dict[str, object]]], wishes: dict[str, int | None]
) -> None:
    """Saves, each followed by a removal; between them facts that came late: of health, pins, damage, verification."""
    retention = Retention(**wishes)  # type: ignore[arg-type]
    present: list[Entry] = []
    step = 50
    late = dict(changes)
    for seq, known in enumerate(saves, start=1):
        known = dict(known)
        step = max(0, step + int(str(known.pop("took"))))
        present.append(entry(seq, step=step, **known))  # type: ignore[arg-type]
        if seq in late and present:
            change = {name: late[seq][name] for name in ("damaged", "pinned", "verified")}
            at = seq % len(present)
            present[at] = replace(present[at], judged=late[seq]["health"], **change)  # type: ignore[arg-type]
        verdicts = retain(present, retention)
        assert [one.id for one in verdicts] == [one.manifest.id for one in reversed(present)]
        assert all(one.reason for one in verdicts)
        stay = {one.id for one in verdicts if one.keep}
        assert protected(present) <= stay
        clean = [e for e in present if e.damaged is None and e.manifest.granularity is FULL and e.health is CLEAN]
        if retention.last is not None:
            assert {one.manifest.id for one in clean[-retention.last :]} <= stay
            without = [e for e in present if e.health is CLEAN or e.damaged is not None]
            alone = {one.id for one in retain(without, retention) if one.keep}
            assert {one.manifest.id for one in clean} & alone <= stay  # those in trouble push out none of them
        present = [one for one in present if one.manifest.id in stay]
        again = retain(present, retention)
        assert all(one.keep for one in again)


def test_no_more_than_a_few_that_are_not_clean_stay() -> None:
    entries = [entry(seq, SUSPECT) for seq in range(1, 1000)]
    assert len(kept(entries, last=10, spread=3)) == TROUBLED_LAST
