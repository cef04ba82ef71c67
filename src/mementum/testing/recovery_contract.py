"""What every catalog must answer to the question for the best checkpoint to come back to, as a test class."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from mementum.catalog.catalog import Catalog
from mementum.catalog.recovery import best
from mementum.records import Entry, Fact, Granularity, Health, Manifest, record
from mementum.testing.catalog_contract import HOME, JOURNAL, OTHER, CatalogBed, fact, folder, manifest

KINDS = ("health", "damaged", "verified", "restored", "pin")
STEPS = 40  # of which random histories are made


@record
class Added:
    """A checkpoint is entered in its folder."""

    manifest: Manifest
    folder: str


@record
class Forgotten:
    """The checkpoint of a folder is dropped."""

    folder: str


@record
class Learnt:
    """What a source says from a byte on is taken in."""

    source: str
    facts: tuple[Fact, ...]
    size: int
    begin: int


Happening = Added | Forgotten | Learnt


def happen(catalog: Catalog, home: str, happenings: Iterable[Happening]) -> None:
    """Tell a catalog what has happened."""
    for one in happenings:
        match one:
            case Added():
                catalog.add(home, one.manifest, one.folder)
            case Forgotten():
                catalog.forget(home, one.folder)
            case Learnt():
                catalog.learn(home, one.source, one.facts, size=one.size, begin=one.begin)


def _but_folder(entry: Entry | None) -> Entry | None:
    """A copy of a folder is as good as its original."""
    return None if entry is None else replace(entry, folder="")


def require_best(catalog: Catalog, home: str, steps: Iterable[int | None]) -> None:
    """The answer is what a look at all entries says, before each of `steps`."""
    entries = catalog.entries(home)
    for step in steps:
        found, wanted = catalog.recovery_point(home, before_step=step), best(entries, before_step=step)
        assert _but_folder(found) == _but_folder(wanted), f"before {step}"


def history(choose: random.Random, many: int) -> list[Happening]:
    """So many things that happen to a task, by chance: rollbacks, damage, health that changes, copies of folders."""
    known = [f"c{number:03d}" for number in range(1, 12)]
    sizes: dict[str, int] = {}
    made: list[Happening] = []
    parents = {id: choose.choice((None, *known[:place])) for place, id in enumerate(known)}
    for _ in range(many):
        match choose.choice(("add", "add", "learn", "learn", "forget")):
            case "add":
                number = choose.randrange(1, 12)
                one = manifest(
                    number,
                    attempt=choose.choice((1, 1, 2)),
                    step=choose.randrange(STEPS),
                    parent=parents[known[number - 1]],
                    granularity=choose.choice((Granularity.FULL, Granularity.FULL, Granularity.WEIGHTS)),
                    health=choose.choice(tuple(Health)),
                )
                made.append(Added(manifest=one, folder=f"f{choose.randrange(12)}"))
            case "forget":
                made.append(Forgotten(folder=f"f{choose.randrange(12)}"))
            case "learn":
                source = choose.choice(("journal/0001.jsonl", "journal/0002.jsonl", "facts/a.json"))
                begin = choose.choice((0, sizes.get(source, 0), sizes.get(source, 0)))
                sizes[source] = begin + choose.randrange(100, 300)
                told = tuple(_fact(choose, known) for _ in range(choose.randrange(5)))
                made.append(Learnt(source=source, facts=told, size=sizes[source], begin=begin))
    return made


def _fact(choose: random.Random, known: list[str]) -> Fact:
    kind = choose.choice((*KINDS, "metrics"))
    if kind == "metrics":
        newest = choose.choice((None, *known))
        return fact(kind, choose.randrange(60), checkpoint=newest, step=choose.randrange(STEPS), acc=choose.random())
    values: dict[str, dict[str, Any]] = {
        "health": {"health": choose.choice(("clean", "suspect", "diverged", "?"))},
        "restored": {"seconds": choose.choice((0, 0.25, 3.5, 100, "long"))},
    }
    return fact(kind, choose.randrange(60), checkpoint=choose.choice(known), **values.get(kind, {"why": "because"}))


class RecoveryContract(CatalogBed):
    """Subclass it beside `CatalogContract`."""

    def test_of_nothing_there_is_no_best(self, catalog: Catalog) -> None:
        assert catalog.recovery_point(HOME) is None
        assert catalog.recovery_point(HOME, before_step=100) is None
        catalog.add(OTHER, manifest(1), folder(1))
        assert catalog.recovery_point(HOME) is None

    def test_the_newest_whatever_its_step(self, catalog: Catalog) -> None:
        for seq, step in ((9, 90), (10, 40), (8, 300)):
            catalog.add(HOME, manifest(seq, step=step), folder(seq))
        assert self._best(catalog) == "c010"
        catalog.add(HOME, manifest(10, attempt=2, id="later", step=5), "step_0000000005")
        assert self._best(catalog) == "later"

    def test_the_healthy_before_the_newer(self, catalog: Catalog) -> None:
        found = [(1, Health.CLEAN), (2, Health.SUSPECT), (3, Health.DIVERGED)]
        catalog.add_all(HOME, [(manifest(seq, health=health), folder(seq)) for seq, health in found])
        for best_of, gone in (("c001", 1), ("c002", 2), ("c003", 3)):
            assert self._best(catalog) == best_of
            catalog.forget(HOME, folder(gone))
        assert self._best(catalog) is None

    def test_only_full_ones_that_are_not_known_to_be_damaged(self, catalog: Catalog) -> None:
        catalog.add(HOME, manifest(1), folder(1))
        catalog.add(HOME, manifest(2), folder(2))
        catalog.add(HOME, manifest(3, granularity=Granularity.WEIGHTS), folder(3))
        assert self._best(catalog) == "c002"
        catalog.learn(HOME, JOURNAL, [fact("damaged", 1, checkpoint="c002", what="index")], size=90)
        assert self._best(catalog) == "c001"
        catalog.learn(HOME, JOURNAL, [fact("verified", 2, checkpoint="c002")], size=180, begin=90)
        assert self._best(catalog) == "c002"
        catalog.add(HOME, replace(manifest(2), generation=2, granularity=Granularity.WEIGHTS), folder(2))
        assert self._best(catalog) == "c001"

    @pytest.mark.parametrize(("before", "expected"), [(31, "c003"), (30, "c002"), (11, "c001"), (10, None), (0, None)])
    def test_before_a_step(self, catalog: Catalog, before: int, expected: str | None) -> None:
        catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in (1, 2, 3, 4)])
        catalog.learn(HOME, JOURNAL, [fact("damaged", 1, checkpoint="c004", what="index")], size=90)
        assert self._best(catalog, before_step=before) == expected

    def test_before_a_step_that_is_far_behind(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in range(1, 1102)])
        for before, expected in ((11_011, "c1101"), (11_010, "c1100"), (15, "c001"), (10, None)):
            assert self._best(catalog, before_step=before) == expected

    def test_of_equally_new_ones_the_one_that_is_back_sooner(self, catalog: Catalog) -> None:
        for id in ("slow", "fast", "unknown"):
            catalog.add(HOME, manifest(5, id=id), id)
        assert self._best(catalog) == "unknown"  # the greatest id
        told = [fact("restored", 1, checkpoint=id, seconds=seconds) for id, seconds in (("slow", 9.5), ("fast", 9.25))]
        catalog.learn(HOME, JOURNAL, told, size=200)
        assert self._best(catalog) == "fast"
        catalog.learn(HOME, JOURNAL, [fact("restored", 3, checkpoint="slow", seconds=0)], size=300, begin=200)
        assert self._best(catalog) == "slow"

    def test_it_is_a_whole_entry(self, catalog: Catalog) -> None:
        catalog.add_all(HOME, [(manifest(1), folder(1)), (manifest(2, parent="c001"), folder(2))])
        told = [fact("metrics", 1, step=20, checkpoint="c002", acc=0.5), fact("pin", 2, checkpoint="c002", why="mine")]
        told += [fact("restored", 3, checkpoint="c002", seconds=4), fact("verified", 4, checkpoint="c002")]
        told.append(fact("placed", 5, checkpoint="c002", tier="s3", url="s3://b"))
        catalog.learn(HOME, JOURNAL, told, size=400)
        (_, expected) = catalog.entries(HOME)
        assert catalog.recovery_point(HOME) == expected
        assert (expected.metrics, expected.pinned, expected.restore_s) == ({"loss": 0.5, "acc": 0.5}, "mine", 4.0)

    @pytest.mark.parametrize("number", range(6))
    def test_whatever_happens_it_is_what_a_look_at_all_says(self, catalog: Catalog, number: int) -> None:
        choose = random.Random(number)
        for _ in range(3):
            happen(catalog, HOME, history(choose, 12))
            require_best(catalog, HOME, (None, *range(0, STEPS + 1, 7)))

    def _best(self, catalog: Catalog, *, before_step: int | None = None) -> str | None:
        found = catalog.recovery_point(HOME, before_step=before_step)
        return None if found is None else found.manifest.id
