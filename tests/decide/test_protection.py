"""What nothing may take: newest, verified, pinned, damaged, waited for, and whose files those need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from made import entry, named
from mementum.decide.protection import needed_by, protected
from mementum.decide.retain import Retention, retain
from mementum.records import Granularity, Health

WEIGHTS, SUSPECT = Granularity.WEIGHTS, Health.SUSPECT


def test_nothing_is_nothing() -> None:
    assert protected([]) == {}


def test_the_newest_of_every_kind_that_a_person_goes_back_to() -> None:
    entries = [
        entry(1),
        entry(2, verified="t"),
        entry(3, judged=SUSPECT, verified="t"),
        entry(4),
        entry(5, judged=SUSPECT),
        entry(6, granularity=WEIGHTS),
    ]
    assert protected(entries) == {
        "c5": "the newest full one",
        "c4": "the newest full one that is clean",
        "c3": "the newest full one that was verified",
        "c2": "the newest clean full one that was verified",
    }


def test_where_there_is_none_but_of_weights_the_newest_stays() -> None:
    some = [entry(1, granularity=WEIGHTS), entry(2, granularity=WEIGHTS, damaged="x"), entry(3, granularity=WEIGHTS)]
    left = {"c3": "the newest one", "c2": "damaged (x): left for a person"}
    assert protected(some) == left
    assert protected([*some, entry(4, granularity=WEIGHTS)]) == {"c4": "the newest one", "c2": left["c2"]}
    assert protected([entry(0), *some]) == {"c0": "the newest full one", "c2": left["c2"]}


def test_what_is_known_of_one_alone_comes_first() -> None:
    entries = [entry(1, damaged="x"), entry(2, pinned="mine"), entry(3), entry(4)]
    assert protected(entries, waiting={"c3": "it is on its way to nas", "c9": "gone"}) == {
        "c1": "damaged (x): left for a person",
        "c2": "pinned: mine",
        "c3": "it is on its way to nas",
        "c4": "the newest full one",
    }


def test_a_damaged_one_is_not_the_newest() -> None:
    found = protected([entry(1), entry(2, damaged="x")])
    assert found == {"c1": "the newest full one", "c2": "damaged (x): left for a person"}


def test_what_a_kept_one_names_is_needed_and_what_that_names() -> None:
    entries = [entry(1), entry(2, files=[named(1)]), entry(3, files=[named(2)]), entry(4), entry(5)]
    assert needed_by(entries, {"c5"}) == {}
    assert needed_by(entries, {"c3", "c5"}) == {
        "c2": "checkpoint c3 needs its files",
        "c1": "checkpoint c2 needs its files",
    }
    assert needed_by(entries, {"c2", "c1"}) == {}
    assert protected([entry(1), replace(entries[1], pinned="mine"), entry(3)])["c1"] == "checkpoint c2 needs its files"


def test_a_folder_that_is_not_there_is_for_verification_to_tell() -> None:
    assert needed_by([entry(2, files=[named(1)])], {"c2"}) == {}


@pytest.mark.parametrize("last", [1, 2])
def test_retention_keeps_what_it_keeps_whole(last: int) -> None:
    entries = [entry(1), entry(2), entry(3, files=[named(1)]), entry(4, files=[named(1)])]
    verdicts = {one.id: one for one in retain(entries, Retention(last=last))}
    assert verdicts["c1"].keep
    assert verdicts["c1"].reason == f"checkpoint c{5 - last} needs its files"
    assert verdicts["c3"].keep == (last == 2)
    assert not verdicts["c2"].keep


def test_when_the_last_that_names_it_goes_it_goes_too() -> None:
    entries = [entry(1), entry(2, files=[named(1)]), entry(3)]
    assert [one.id for one in retain(entries, Retention(last=1)) if not one.keep] == ["c2", "c1"]


def test_a_release_protects_by_its_pin() -> None:
    held = replace(entry(1), pinned="v3 (release:byte-gpt:3)", pinned_by=frozenset({"release:byte-gpt:3"}))
    reasons = {one.id: one.reason for one in retain([held, entry(2)], Retention(last=1)) if one.keep}
    assert reasons == {"c1": "pinned: v3 (release:byte-gpt:3)", "c2": "one of the newest 1"}


def test_what_is_waited_for_stays_with_all_it_needs() -> None:
    entries = [entry(1), entry(2, files=[named(1)]), entry(3)]
    verdicts = retain(entries, Retention(last=1), waiting={"c2": "it is on its way to nas"})
    assert {one.id: one.reason for one in verdicts} == {
        "c3": "one of the newest 1",
        "c2": "it is on its way to nas",
        "c1": "checkpoint c2 needs its files",
    }
