"""What every catalog must do, as test classes for authors of catalogs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog.catalog import Catalog
from mementum.records import NON_FINITE, Entry, Fact, Granularity, Health, Manifest, Place, Start, StoredFile

HOME, OTHER = "20261130/t_000001", "20261130/u_000002"
JOURNAL = "journal/0001.jsonl"
STRANGE_HOMES = ("20261130/größe_000003", "a:b", "a", "a:b:c", "a/b c%20'\"{}*?")


def manifest(seq: int, *, attempt: int = 1, id: str = "", step: int | None = None, **fields: Any) -> Manifest:
    """A manifest of a checkpoint that is called `c` and its number where nothing else is said."""
    known: dict[str, Any] = {
        "id": id or f"c{seq:03d}",
        "seq": seq,
        "task": "größe",
        "attempt": attempt,
        "parent": None,
        "step": seq * 10 if step is None else step,
        "epoch": 0,
        "time": "2026-11-30T06:10:09.000000Z",
        "reason": "asked",
        "granularity": Granularity.FULL,
        "health": Health.CLEAN,
        "files": (StoredFile(name="a.blocks", size=1 << 40),),
        "metrics": {"loss": 0.5},
        "user": {"path": ("a", 1)},
        **fields,
    }
    return Manifest(**known)


def folder(seq: int) -> str:
    """Where `manifest(seq)` lies."""
    return f"step_{seq * 10:010d}"


def fact(kind: str, second: int, *, checkpoint: str | None = None, step: int | None = None, **values: Any) -> Fact:
    """A fact that became known at this second of a minute."""
    time = f"2026-11-30T06:10:{second:02d}.000000Z"
    return Fact(kind=kind, time=time, checkpoint=checkpoint, step=step, values=values)


def ids(catalog: Catalog, home: str = HOME) -> list[str]:
    """Of all checkpoints, in their order."""
    return [entry.manifest.id for entry in catalog.entries(home)]


def only(catalog: Catalog) -> Entry:
    """The one entry that there is."""
    (entry,) = catalog.entries(HOME)
    return entry


class CatalogBed:
    """Where the tests of a contract get their catalog from."""

    def make_catalog(self, tmp_path: Path) -> Catalog:
        """A new, empty catalog."""
        raise NotImplementedError

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[Catalog]:
        made = self.make_catalog(tmp_path)
        yield made
        made.close()


class CatalogContract(CatalogBed):
    """Subclass it in your tests as `class TestMyCatalog(CatalogContract)` and give it a `make_catalog`."""

    def test_what_was_added_comes_back_whole(self, catalog: Catalog) -> None:
        one = manifest(1, health=Health.SUSPECT, parent="c000", debug_info=({"step": 1, "loss": math.inf},))
        catalog.add(HOME, one, folder(1))
        assert list(catalog.entries(HOME)) == [Entry(manifest=one, folder=folder(1), metrics={"loss": 0.5})]
        assert list(catalog.entries(OTHER)) == []

    def test_entries_are_in_order_of_sequence_numbers(self, catalog: Catalog) -> None:
        for seq, attempt in ((3, 1), (1, 1), (2, 2), (2, 1), (10, 1)):
            made = manifest(seq, attempt=attempt, id=f"c{seq}.{attempt}", step=100 - seq)
            catalog.add(HOME, made, f"step_{seq}.{attempt}")
        assert ids(catalog) == ["c1.1", "c2.1", "c2.2", "c3.1", "c10.1"]

    def test_adding_twice_is_adding_once_and_a_folder_has_one_entry(self, catalog: Catalog) -> None:
        for _ in range(2):
            catalog.add(HOME, manifest(1), folder(1))
        assert ids(catalog) == ["c001"]
        catalog.add(HOME, replace(manifest(1), generation=2, files=()), folder(1))
        assert only(catalog).manifest == replace(manifest(1), generation=2, files=())
        catalog.add(HOME, manifest(2), folder(1))
        assert ids(catalog) == ["c002"]
        point = catalog.recovery_point(HOME)
        assert point is not None
        assert point.manifest.id == "c002"

    def test_many_are_added_at_once(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(7, id="old"), folder(7))
        catalog.add(HOME, manifest(2000, id="before"), folder(2000))
        catalog.add_all(HOME, ((manifest(seq), folder(seq)) for seq in range(1, 600)))
        catalog.add_all(HOME, [])
        assert ids(catalog) == [f"c{seq:03d}" for seq in range(1, 600)] + ["before"]

    def test_of_one_folder_that_is_added_twice_at_once_the_later_stays(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(1), folder(1)), (manifest(2), folder(2)), (manifest(3), folder(1))])
        assert ids(catalog) == ["c002", "c003"]

    def test_homes_are_apart(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        catalog.add(OTHER, manifest(2), folder(1))
        catalog.learn(OTHER, JOURNAL, [fact("metrics", 1, step=10, loss=9.0)], size=5)
        catalog.begin(OTHER, Start(number=1, time="2026-11-30T06:10:09.000000Z"))
        assert (ids(catalog), ids(catalog, OTHER)) == (["c001"], ["c002"])
        assert only(catalog).metrics == {"loss": 0.5}
        assert (catalog.read_sizes(HOME), catalog.read_sizes(OTHER)) == ({}, {JOURNAL: 5})
        assert list(catalog.starts(HOME)) == []
        catalog.forget(HOME, folder(1))
        assert (ids(catalog), ids(catalog, OTHER)) == ([], ["c002"])

    def test_a_home_may_have_any_name(self, catalog: Catalog) -> None:
        for number, home in enumerate(STRANGE_HOMES, start=1):
            catalog.add(home, manifest(number), "a:b")
            catalog.learn(home, "facts/a:b.json", [fact("pin", 1, checkpoint=f"c{number:03d}", why=home)], size=number)
        for number, home in enumerate(STRANGE_HOMES, start=1):
            (entry,) = catalog.entries(home)
            assert (entry.manifest.seq, entry.folder, entry.pinned) == (number, "a:b", home)
            assert catalog.read_sizes(home) == {"facts/a:b.json": number}
        assert catalog.homes() == tuple(sorted(STRANGE_HOMES))

    def test_homes_are_those_of_which_anything_is_known(self, catalog: Catalog) -> None:
        assert catalog.homes() == ()
        catalog.add("b", manifest(1), folder(1))
        catalog.learn("c", JOURNAL, [], size=0)
        catalog.begin("a", Start(number=1, time="2026-11-30T06:10:09.000000Z"))
        catalog.add("d", manifest(1), folder(1))
        catalog.forget("d", folder(1))
        assert catalog.homes() == ("a", "b", "c")

    def test_forgetting_may_be_repeated(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in (1, 2)])
        for _ in range(2):
            catalog.forget(HOME, folder(2))
            assert ids(catalog) == ["c001"]
        catalog.forget(HOME, "never/was")
        point = catalog.recovery_point(HOME)
        assert point is not None
        assert point.manifest.id == "c001"
        catalog.add(HOME, manifest(2), folder(2))
        assert ids(catalog) == ["c001", "c002"]

    def test_facts_outlive_the_entry_that_they_are_of(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        catalog.learn(HOME, JOURNAL, [fact("damaged", 1, checkpoint="c001", what="index")], size=1)
        catalog.forget(HOME, folder(1))
        catalog.add(HOME, manifest(1), folder(1))
        assert only(catalog).damaged == "index"
        assert catalog.recovery_point(HOME) is None

    def test_starts_are_by_number(self, catalog: Catalog) -> None:
        starts = [
            Start(number=number, time=f"2026-11-30T06:10:{number:02d}.000000Z", host="größe", pid=100 + number, **more)
            for number, more in ((1, {}), (2, {"came_from": "c007"}), (10, {"came_from": None}))
        ]
        for start in (*reversed(starts), *starts):
            catalog.begin(HOME, start)
        assert list(catalog.starts(HOME)) == starts
        assert list(catalog.starts(OTHER)) == []
        catalog.begin(HOME, replace(starts[2], pid=7))  # the one before it gave way, and had never been an attempt
        assert list(catalog.starts(HOME)) == [*starts[:2], replace(starts[2], pid=7)]

    @pytest.mark.parametrize("first", ["journal", "start"])
    def test_how_an_attempt_went_is_what_its_journal_says(self, catalog: Catalog, first: str) -> None:
        start = Start(number=2, time="2026-11-30T06:10:09.000000Z", host="h", pid=7)
        if first == "start":
            catalog.begin(HOME, start)
        told = [
            fact("restored", 1, checkpoint="c004", seconds=2.5),
            fact("restored", 5, checkpoint="c002", seconds=1.0),
        ]
        catalog.learn(HOME, "journal/0002.jsonl", told, size=100)
        catalog.learn(HOME, "journal/0001.jsonl", [fact("ended", 9, why="OutOfMemory")], size=50)
        if first == "journal":
            catalog.begin(HOME, start)
        assert list(catalog.starts(HOME)) == [replace(start, came_from="c004")]
        catalog.learn(HOME, "journal/0002.jsonl", [fact("ended", 9, why="KeyboardInterrupt")], size=150, begin=100)
        assert list(catalog.starts(HOME)) == [replace(start, came_from="c004", ended="KeyboardInterrupt")]
        catalog.learn(HOME, "journal/0002.jsonl", [], size=100, begin=100)
        assert list(catalog.starts(HOME)) == [replace(start, came_from="c004")]

    def test_what_threads_do_at_once_is_not_lost(self, catalog: Catalog) -> None:
        def work(seq: int) -> None:
            catalog.add(HOME, manifest(seq), folder(seq))
            catalog.learn(HOME, f"facts/{seq}.json", [fact("pin", 1, checkpoint=f"c{seq:03d}")], size=seq)
            catalog.entries(HOME)

        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(work, range(10, 40))) == [None] * 30
        assert ids(catalog) == [f"c{seq:03d}" for seq in range(10, 40)]
        assert all(entry.pinned for entry in catalog.entries(HOME))
        assert catalog.read_sizes(HOME) == {f"facts/{seq}.json": seq for seq in range(10, 40)}


class FactsContract(CatalogBed):
    """The same of what became known after a manifest was written."""

    def test_learning_takes_the_place_of_what_was_learnt_from_the_same_source(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        told = [fact("metrics", 1, step=10, loss=1.0), fact("metrics", 2, step=10, acc=2.0)]
        catalog.learn(HOME, "a", told, size=10)
        catalog.learn(HOME, "b", [fact("metrics", 3, step=10, more=3.0)], size=7)
        assert only(catalog).metrics == {"loss": 1.0, "acc": 2.0, "more": 3.0}
        catalog.learn(HOME, "a", [fact("metrics", 1, step=10, loss=5.0)], size=20)
        assert only(catalog).metrics == {"loss": 5.0, "more": 3.0}
        assert catalog.read_sizes(HOME) == {"a": 20, "b": 7}
        catalog.learn(HOME, "a", [], size=0)
        assert only(catalog).metrics == {"loss": 0.5, "more": 3.0}
        assert catalog.read_sizes(HOME) == {"a": 0, "b": 7}

    def test_what_a_torn_journal_says_from_a_byte_on_takes_the_place_of_that(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        told = [fact("metrics", 1, step=10, a=1.0), fact("metrics", 1, step=10, b=1.0)]
        catalog.learn(HOME, JOURNAL, told, size=200)
        more = [
            fact("metrics", 1, step=10, a=2.0),
            fact("pin", 1, checkpoint="c001"),
            fact("damaged", 2, checkpoint="c001"),
        ]
        catalog.learn(HOME, JOURNAL, more, size=300, begin=200)
        found = only(catalog)
        assert (found.metrics, found.pinned) == ({"loss": 0.5, "a": 2.0, "b": 1.0}, "no reason was given")
        assert catalog.recovery_point(HOME) is None
        catalog.learn(HOME, JOURNAL, [fact("metrics", 1, step=10, b=3.0)], size=290, begin=200)
        found = only(catalog)
        assert (found.metrics, found.pinned, found.damaged) == ({"loss": 0.5, "a": 1.0, "b": 3.0}, None, None)
        assert catalog.read_sizes(HOME) == {JOURNAL: 290}
        assert catalog.recovery_point(HOME) == found

    def test_nothing_is_taken_in_behind_what_is_not_known(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        pin = [fact("pin", 1, checkpoint="c001")]
        assert catalog.learn(HOME, JOURNAL, pin, size=300, begin=200) == 0
        assert (only(catalog).pinned, catalog.read_sizes(HOME)) == (None, {})
        assert catalog.learn(HOME, JOURNAL, [fact("metrics", 1, step=10, a=1.0)], size=199) == 199
        assert catalog.learn(HOME, JOURNAL, pin, size=300, begin=200) == 199
        assert (only(catalog).pinned, catalog.read_sizes(HOME)) == (None, {JOURNAL: 199})
        assert catalog.learn(HOME, JOURNAL, pin, size=300, begin=199) == 300
        assert (only(catalog).pinned, only(catalog).metrics["a"]) == ("no reason was given", 1.0)

    def test_late_metrics_are_the_steps_own_and_the_latest_counts(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in (1, 2)])
        told = [fact("metrics", 9, step=10, acc=0.9), fact("metrics", 3, step=10, acc=0.3, big=math.inf)]
        told += [fact("cost", 10, step=10, acc=7.0), fact("metrics", 1, step=11, acc=1.0)]
        catalog.learn(HOME, JOURNAL, told, size=1)
        assert [entry.metrics for entry in catalog.entries(HOME)] == [
            {"loss": 0.5, "acc": 0.3, "big": math.inf},  # the line that came later, whatever its time
            {"loss": 0.5},
        ]
        assert catalog.entries(HOME)[0].manifest.metrics == {"loss": 0.5}

    def test_late_metrics_are_of_their_branch_alone(self, catalog: Catalog) -> None:
        made = [manifest(1, step=10), manifest(2, step=20, parent="c001"), manifest(3, step=20, parent="c001")]
        made.append(manifest(4, step=30, parent="c003"))
        for one in made:
            catalog.add(HOME, one, folder(one.seq))
        catalog.learn(HOME, JOURNAL, [fact("metrics", 1, step=20, checkpoint="c004", acc=0.7)], size=1)
        by_id = {entry.manifest.id: entry.metrics.get("acc") for entry in catalog.entries(HOME)}
        assert by_id == {"c001": None, "c002": None, "c003": 0.7, "c004": None}
        catalog.forget(HOME, folder(4))  # it goes on from the newest before it
        assert {entry.manifest.id: entry.metrics.get("acc") for entry in catalog.entries(HOME)}["c003"] == 0.7
        point = catalog.recovery_point(HOME)
        assert point is not None
        assert (point.manifest.id, point.metrics) == ("c003", {"loss": 0.5, "acc": 0.7})

    def test_the_later_of_damaged_and_verified_holds(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in (1, 2)])
        catalog.learn(HOME, "a", [fact("damaged", 5, checkpoint="c001", what="index: it is missing")], size=1)
        catalog.learn(HOME, "b", [fact("verified", 4, checkpoint="c001")], size=1)
        found = catalog.entries(HOME)
        assert [entry.damaged for entry in found] == ["index: it is missing", None]
        assert found[0].verified == "2026-11-30T06:10:04.000000Z"
        catalog.learn(HOME, "c", [fact("verified", 6, checkpoint="c001")], size=1)
        found = catalog.entries(HOME)
        assert (found[0].damaged, found[0].verified) == (None, "2026-11-30T06:10:06.000000Z")
        catalog.learn(HOME, "c", [], size=2)
        assert catalog.entries(HOME)[0].damaged == "index: it is missing"

    @pytest.mark.parametrize("first", ["facts", "checkpoint"])
    def test_health_and_pins_count_whichever_is_known_first(self, catalog: Catalog, first: str) -> None:
        if first == "checkpoint":
            catalog.add(HOME, manifest(1), folder(1))
        suspect = fact("health", 5, checkpoint="c001", health="suspect", why="the loss jumped", onset=9)
        catalog.learn(HOME, JOURNAL, [suspect, fact("pin", 6, checkpoint="c001", why="kept")], size=1)
        catalog.learn(HOME, "facts/b.json", [fact("health", 4, checkpoint="c001", health="clean")], size=1)
        if first == "facts":
            catalog.add(HOME, manifest(1), folder(1))
        found = only(catalog)
        assert (found.health, found.judged_why, found.pinned) == (Health.SUSPECT, "the loss jumped", "kept")
        assert found.manifest.health is Health.CLEAN
        calm = fact("health", 7, checkpoint="c001", health="clean", why="calm since step 20")
        catalog.learn(HOME, "facts/a.json", [calm, fact("unpin", 7, checkpoint="c001")], size=1)
        found = only(catalog)
        assert (found.health, found.judged_why, found.pinned) == (Health.CLEAN, "calm since step 20", None)

    def test_no_fact_makes_clean_what_is_not_finite(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1, health=Health.DIVERGED), folder(1))
        catalog.add(HOME, manifest(2, health=Health.DIVERGED, decision={NON_FINITE: "model.weight"}), folder(2))
        calm = [fact("health", 7, checkpoint=id, health="clean", why="calm") for id in ("c001", "c002")]
        catalog.learn(HOME, "facts/a.json", calm, size=1)
        assert [entry.health for entry in catalog.entries(HOME)] == [Health.CLEAN, Health.DIVERGED]
        point = catalog.recovery_point(HOME)
        assert point is not None
        assert point.manifest.id == "c001"

    def test_an_older_line_does_not_hold_because_the_clock_went_back(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        told = [fact("health", 50, checkpoint="c001", health="clean")]
        told.append(fact("health", 5, checkpoint="c001", health="diverged"))
        catalog.learn(HOME, "journal/0002.jsonl", told, size=1)
        assert only(catalog).health is Health.DIVERGED
        catalog.learn(HOME, "journal/0010.jsonl", [fact("health", 1, checkpoint="c001", health="suspect")], size=1)
        assert only(catalog).health is Health.SUSPECT

    def test_each_takes_back_its_own_pin_alone(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        mine = fact("pin", 1, checkpoint="c001", why="for the paper", by="me")
        its = fact("pin", 2, checkpoint="c001", why="x")
        catalog.learn(HOME, "facts/a.json", [mine], size=1)
        catalog.learn(HOME, JOURNAL, [its], size=1)
        assert (only(catalog).pinned, only(catalog).pinned_by) == (
            "for the paper (me)",
            frozenset({"me", "flight recorder"}),
        )
        catalog.learn(HOME, JOURNAL, [its, fact("unpin", 3, checkpoint="c001")], size=2)
        assert (only(catalog).pinned, only(catalog).pinned_by) == ("for the paper (me)", frozenset({"me"}))

    def test_the_later_of_placed_and_displaced_holds_for_each_tier(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        put = fact("placed", 3, checkpoint="c001", tier="s3", url="s3://b/p", generation=2, size=9, levels=[0, 2])
        ram = fact("placed", 4, checkpoint="c001", tier="ram", url="ram://")
        catalog.learn(HOME, JOURNAL, [put, ram], size=1)
        here = Place(tier="ram", url="ram://", time="2026-11-30T06:10:04.000000Z")
        there = Place(
            tier="s3", url="s3://b/p", time="2026-11-30T06:10:03.000000Z", generation=2, size=9, levels=(0, 2)
        )
        assert only(catalog).places == (here, there)
        catalog.learn(
            HOME, "journal/0002.jsonl", [fact("displaced", 5, checkpoint="c001", tier="ram", why="x")], size=1
        )
        assert only(catalog).places == (there,)
        put = fact("placed", 6, checkpoint="c001", tier="ram", url="ram://")
        catalog.learn(HOME, "journal/0003.jsonl", [put], size=1)
        assert [place.tier for place in only(catalog).places] == ["ram", "s3"]

    def test_the_last_measured_restore_is_told(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        assert only(catalog).restore_s is None
        catalog.learn(HOME, JOURNAL, [fact("restored", 1, checkpoint="c001", seconds=7)], size=1)
        assert only(catalog).restore_s == 7.0
        catalog.learn(HOME, "journal/0002.jsonl", [fact("restored", 1, checkpoint="c001", seconds=2.5)], size=1)
        assert only(catalog).restore_s == 2.5

    def test_the_parts_of_a_journal_are_in_its_order(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        parts = {
            "journal/0001-000000000000.jsonl": "suspect",
            "journal/0001-000000000090.jsonl": "diverged",
            "journal/0001-000000000200.jsonl": "clean",
        }
        for second, (source, health) in enumerate(reversed(parts.items())):
            told = fact("health", second, checkpoint="c001", health=health)
            catalog.learn(HOME, source, [told], size=90)
        assert only(catalog).health is Health.CLEAN

    def test_a_step_and_a_size_may_be_large(self, catalog: Catalog) -> None:
        step, size = (1 << 62) - 1, 1 << 50
        catalog.add(HOME, manifest(1, step=step), "f")
        catalog.learn(HOME, JOURNAL, [fact("metrics", 1, step=step, acc=1.0)], size=size)
        catalog.learn(HOME, JOURNAL, [fact("metrics", 1, step=step, acc=2.0)], size=size + 90, begin=size)
        assert only(catalog).metrics == {"loss": 0.5, "acc": 2.0}
        assert catalog.read_sizes(HOME) == {JOURNAL: size + 90}
        assert catalog.recovery_point(HOME, before_step=step) is None
        assert catalog.recovery_point(HOME, before_step=step + 1) == only(catalog)
