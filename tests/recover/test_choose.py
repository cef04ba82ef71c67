"""Candidates are tried exact ones only, clean before suspect before diverged, newest first, damaged last."""

from __future__ import annotations

import itertools
from dataclasses import replace

from mementum.records import Entry, Granularity, Health, Manifest
from mementum.recover.choose import candidates, healthier, newest_exact


def entry(
    seq: int,
    *,
    step: int = 0,
    attempt: int = 1,
    health: Health = Health.CLEAN,
    granularity: Granularity = Granularity.FULL,
    damaged: str | None = None,
    judged: Health | None = None,
) -> Entry:
    manifest = Manifest(
        id=f"c{seq}",
        seq=seq,
        task="t",
        attempt=attempt,
        parent=None,
        step=step,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="asked",
        granularity=granularity,
        health=health,
        files=(),
    )
    return Entry(manifest=manifest, folder=f"step_{seq:010d}", damaged=damaged, judged=judged)


def order(*entries: Entry) -> list[str]:
    """The same from every order of entries."""
    results = {tuple(e.manifest.id for e in candidates(list(each))) for each in itertools.permutations(entries)}
    assert len(results) == 1
    return list(results.pop())


def test_nothing_gives_nothing() -> None:
    assert candidates([]) == ()


def test_the_newest_by_sequence_number_comes_first() -> None:
    assert order(entry(1, step=900), entry(2, step=5), entry(3, step=100)) == ["c3", "c2", "c1"]


def test_a_record_without_weights_is_no_candidate() -> None:
    whole, record = entry(1, granularity=Granularity.WEIGHTS), entry(2, granularity=Granularity.ESSENTIALS)
    aged = replace(record, manifest=replace(record.manifest, levels=(2,)))
    assert candidates([whole, aged], inexact=True) == (whole,)
    assert candidates([whole, record], inexact=True) == (record, whole)


def test_of_equal_sequence_numbers_the_later_attempt_comes_first() -> None:
    first, second = entry(5, attempt=1), entry(5, attempt=2)
    assert candidates([first, second]) == candidates([second, first]) == (second, first)


def test_only_what_resumes_exactly() -> None:
    partial = [entry(10 + g, granularity=g) for g in Granularity if g is not Granularity.FULL]
    assert order(entry(1), *partial) == ["c1"]


def test_health_goes_before_age() -> None:
    entries = [
        entry(1),
        entry(2, health=Health.SUSPECT),
        entry(3, health=Health.DIVERGED),
        entry(4, health=Health.SUSPECT),
        entry(5, health=Health.DIVERGED),
    ]
    assert order(*entries) == ["c1", "c4", "c2", "c5", "c3"]


def test_damaged_ones_come_last_of_all_but_come() -> None:
    entries = [
        entry(1, health=Health.DIVERGED),
        entry(2),
        entry(3, damaged="x"),
        entry(4, damaged="x", health=Health.SUSPECT),
    ]
    assert order(*entries) == ["c2", "c1", "c3", "c4"]


def test_what_became_known_later_goes_before_what_was_known_at_the_save() -> None:
    entries = [
        entry(1),
        entry(2, health=Health.SUSPECT, judged=Health.CLEAN),
        entry(3, judged=Health.SUSPECT),
        entry(4, judged=Health.DIVERGED),
    ]
    assert order(*entries) == ["c2", "c1", "c3", "c4"]


def test_what_a_state_in_memory_is_measured_with() -> None:
    weights = entry(9, granularity=Granularity.WEIGHTS)
    entries = [entry(1), entry(2, damaged="x"), entry(3, judged=Health.SUSPECT), entry(4, judged=Health.DIVERGED)]
    newest = [newest_exact([*entries, weights], health) for health in Health]
    assert [found.manifest.id if found else None for found in newest] == ["c2", "c3", "c4"]
    better = [healthier([*entries, weights], health) for health in Health]
    assert [found.manifest.id if found else None for found in better] == [None, "c1", "c1"]
    assert healthier(entries[1:], Health.SUSPECT) is None  # what is damaged is nothing to go back to
    assert healthier(entries[1:], Health.DIVERGED) == entries[2]
    assert newest_exact([weights], Health.DIVERGED) is None
