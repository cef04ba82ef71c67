"""Records cannot be changed, have no room for more, and say little but that rightly."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from mementum import records
from mementum.records import Entry, Exactness, Granularity, Health, Manifest, Reach, Skip, StoredFile

RECORDS = [each for _, each in inspect.getmembers(records, inspect.isclass) if dataclasses.is_dataclass(each)]


def entry(seq: int, attempt: int, id: str) -> Entry:
    manifest = Manifest(
        id=id,
        seq=seq,
        task="t",
        attempt=attempt,
        parent=None,
        step=1,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        reason="asked",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(StoredFile(name="a", size=3), StoredFile(name="b", size=4, digest="x")),
    )
    return Entry(manifest=manifest, folder="f")


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_is_frozen_slotted_and_by_keyword(kind: type) -> None:
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert "__slots__" in vars(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_a_record_cannot_be_changed_or_grow() -> None:
    skip = Skip(reason="no")
    with pytest.raises(dataclasses.FrozenInstanceError):
        skip.reason = "yes"  # type: ignore[misc]
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        skip.more = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Skip("no")  # type: ignore[misc]


def test_a_manifests_size_is_that_of_its_files() -> None:
    assert entry(1, 1, "a").manifest.size == 7


def test_entries_are_ordered_by_sequence_then_attempt_then_id() -> None:
    orders = [entry(2, 9, "z").order, entry(10, 1, "b").order, entry(10, 2, "a").order, entry(10, 2, "b").order]
    assert orders == sorted(orders)


def test_each_reach_includes_the_ones_before_it() -> None:
    assert Reach.PROCESS < Reach.REBOOT < Reach.MACHINE


def test_numbers_and_words_on_disk_are_these() -> None:
    assert [int(each) for each in Granularity] == [0, 1, 2, 3]
    assert [each.value for each in Health] == ["clean", "suspect", "diverged"]


@pytest.mark.parametrize(
    ("exactness", "exact", "words"),
    [
        (Exactness(), True, "exact"),
        (Exactness(conditions=("a", "b")), True, "exact, if a, if b"),
        (Exactness(reasons=("x", "y")), False, "not exact: x; y"),
        (Exactness(reasons=("x",), conditions=("a",)), False, "not exact: x"),
    ],
)
def test_exactness_in_words(exactness: Exactness, exact: bool, words: str) -> None:
    assert (exactness.exact, str(exactness)) == (exact, words)
