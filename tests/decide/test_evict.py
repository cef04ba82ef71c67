"""Where room is needed, what is worth least for its bytes goes first, and never what is protected."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from made import entry, folder, named
from mementum.decide.evict import COPIED, Eviction, evict
from mementum.decide.protection import protected
from mementum.records import Blob, Entry, Granularity, Health, Place

WEIGHTS, SUSPECT, DIVERGED = Granularity.WEIGHTS, Health.SUSPECT, Health.DIVERGED
NAS = Place(tier="nas", url="/mnt/nas", time="t")


def gone(found: Eviction) -> list[int]:
    return sorted(int(one.id[1:]) for one in found.verdicts if not one.keep)


def first(entries: list[Entry], **wishes: object) -> int:
    """What goes first."""
    (one,) = gone(evict(entries, need=1, **wishes))  # type: ignore[arg-type]
    return one


def test_without_a_need_nothing_goes() -> None:
    found = evict([entry(1), entry(2)], need=0)
    assert (gone(found), found.freed, found.missing) == ([], 0, 0)
    assert [one.reason for one in found.verdicts] == ["the newest full one", "there is room enough with it"]
    assert evict([], need=5) == Eviction(verdicts=(), freed=0, missing=5)


def test_bad_health_goes_first_then_what_is_not_full() -> None:
    entries = [
        entry(1, judged=SUSPECT),
        entry(2, judged=DIVERGED),
        entry(3, granularity=WEIGHTS),
        *(entry(seq) for seq in range(4, 8)),
    ]
    order: list[int] = []
    for need in range(100, 701, 100):
        order += [one for one in gone(evict(entries, need=need)) if one not in order]
    assert order[:3] == [2, 1, 3]
    assert 7 not in order
    found = evict(entries, need=700)
    assert (found.freed, found.missing) == (600, 100)


def test_the_worth_is_what_the_formula_says() -> None:
    """Ages 0, 10, 40, 50 steps; the run's beginning is 60 back."""
    entries = [entry(1, step=10), entry(2, step=20), entry(3, step=50), entry(4, step=60)]
    worth = {1: math.log(50 / 40) * 10, 2: math.log(40 / 10) * 10, 3: math.log(10 / 1) * 30}
    found = evict(entries, need=100)
    assert gone(found) == [1]
    reason = {one.id: one.reason for one in found.verdicts}["c1"]
    assert reason == f"room is needed: clean and full, worth {worth[1]:.3g} steps of work, for 1e-07 GB"
    # Without it the beginning is what comes next behind the second.
    assert worth[3] < math.log(40 / 10) * 20 + 45
    assert gone(evict(entries, need=200)) == [1, 2]


def test_those_that_stay_are_spaced_by_ratios() -> None:
    entries = [entry(seq) for seq in range(1, 257)]
    found = evict(entries, need=100 * 248)
    stay = sorted(2560 - int(one.id[1:]) * 10 for one in found.verdicts if one.keep)
    assert len(stay) == 8
    assert stay[0] == 0
    assert stay[-1] > 1000
    assert stay[1] <= 40
    assert all(1.3 < older / newer < 6 for newer, older in itertools.pairwise(stay[1:]))


def test_what_costs_more_bytes_goes_before_what_costs_less() -> None:
    entries = [entry(seq, size=1000 if seq == 3 else 100) for seq in range(1, 7)]
    assert first(entries) == 3


def test_a_copy_elsewhere_makes_it_worth_less() -> None:
    entries = [entry(seq) for seq in range(1, 7)]
    plain = first(entries)
    copied = [replace(one, places=(NAS,)) if one.manifest.seq == 4 else one for one in entries]
    assert plain != 4
    assert first(copied) == 4
    reason = next(one.reason for one in evict(copied, need=1).verdicts if not one.keep)
    assert ", a tier has it, for" in reason
    weights_only = [replace(one, places=(replace(NAS, levels=(0,)),)) for one in entries]
    assert first(weights_only) == plain
    assert COPIED < 1


def test_a_loss_that_fell_and_a_quick_restore_are_worth_more() -> None:
    entries = [entry(seq) for seq in range(1, 7)]
    lowest = first(entries)
    losses = dict.fromkeys(range(1, 7), 1.0) | dict.fromkeys(range(lowest, 7), 0.5)
    improved = [replace(one, metrics={"loss": losses[one.manifest.seq]}) for one in entries]
    assert first(improved) == lowest if lowest == 1 else first(improved) != lowest
    quick = [replace(one, restore_s=1.0 if one.manifest.seq == lowest else 10.0) for one in entries]
    assert first(quick) != lowest
    slow = [replace(one, restore_s=100.0 if one.manifest.seq == lowest else 10.0) for one in entries]
    assert first(slow) == lowest


def test_shared_bytes_come_free_with_their_last_name() -> None:
    entries = [entry(seq) for seq in range(1, 5)]
    frozen = Blob(key="1:77", size=10_000)
    holdings = {folder(seq): (Blob(key=f"own {seq}", size=1), frozen) for seq in range(1, 5)}
    found = evict(entries, need=100, holdings=holdings)
    assert (gone(found), found.freed, found.missing) == ([1, 2, 3], 3, 97)
    del holdings[folder(4)]
    found = evict(entries, need=100, holdings=holdings)
    assert (gone(found), found.freed) == ([1, 2, 3], 10_003)


def test_what_frees_nothing_stays() -> None:
    entries = [entry(1, size=0), entry(2, size=0), entry(3)]
    found = evict(entries, need=5)
    assert (gone(found), found.missing) == ([], 5)


def test_whose_files_are_needed_goes_after_those_that_need_them() -> None:
    entries = [entry(1, size=1000), entry(2, size=1, files=[named(1, size=1000)]), entry(3, size=1), entry(4)]
    assert gone(evict(entries, need=900)) == [1, 2]  # first what names it, then itself
    pinned = [replace(one, pinned="mine") if one.manifest.seq == 2 else one for one in entries]
    found = evict(pinned, need=900)
    assert (gone(found), found.missing) == ([3], 899)
    assert {one.id: one.reason for one in found.verdicts}["c1"] == "checkpoint c2 needs its files"


@pytest.mark.parametrize("round", range(30))
def test_whatever_is_needed_the_protected_stay_and_the_count_is_right(round: int, rng: random.Random) -> None:
    entries = []
    for seq in range(1, rng.randrange(2, 25)):
        files = [named(rng.randrange(1, seq), size=100)] if seq > 1 and rng.random() < 0.3 else []
        known = {"pinned": rng.choice([None, None, None, "x"]), "damaged": rng.choice([None] * 6 + ["x"])}
        entries.append(
            entry(
                seq,
                size=rng.choice([1, 100, 5000]),
                files=files,
                judged=rng.choice([None, None, SUSPECT, DIVERGED]),
                granularity=rng.choice([Granularity.FULL, Granularity.FULL, WEIGHTS]),
                **known,
            )
        )
    need = rng.randrange(0, 20_000)
    found = evict(entries, need=need)
    went = set(gone(found))
    assert not {f"c{seq}" for seq in went} & protected(entries).keys()
    assert found.freed == sum(one.manifest.size for one in entries if one.manifest.seq in went)
    assert found.missing == max(0, need - found.freed)
    stay = [one for one in entries if one.manifest.seq not in went]
    present = {one.folder for one in stay}
    assert all(file.folder in present for one in stay for file in one.manifest.files if file.folder is not None)
    if found.missing:
        assert {one.manifest.id for one in stay if one.manifest.size} <= protected(entries).keys()
