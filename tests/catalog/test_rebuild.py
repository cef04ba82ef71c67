"""A refresh brings a catalog to what lies in the store, from nothing and from anywhere in between."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from mementum.catalog import facts
from mementum.catalog.rebuild import learn, refresh
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.format import manifest as manifests
from mementum.mirroring import FETCH
from mementum.records import Damage, Fact, Granularity, Health, Manifest
from mementum.storage.local import LocalStore
from mementum.storage.store import size_of
from mementum.testing.simdisk import SimDisk

HOME = "20261130/t_000001"
TIME = "2026-11-30T06:10:09.000000Z"


def manifest(seq: int, **fields: object) -> Manifest:
    return Manifest(
        **{
            "id": f"c{seq}",
            "seq": seq,
            "task": "t",
            "attempt": 1,
            "parent": None,
            "step": seq,
            "epoch": 0,
            "time": TIME,
            "reason": "asked",
            "granularity": Granularity.FULL,
            "health": Health.CLEAN,
            "files": (),
            **fields,
        }
    )


def folder(seq: int) -> str:
    return f"step_{seq:010d}"


def commit(store: LocalStore, seq: int, **fields: object) -> None:
    store.put(f"{folder(seq)}/meta.json", [manifests.render(manifest(seq, **fields))])


def newer(data: bytes) -> bytes:
    """A manifest as a later version would write it: of another format, and with a digest that is right."""
    changed = data.replace(b'"format": 1', b'"format": 9')
    head, _, tail = changed.rpartition(json.loads(data)["digest"].encode())
    return head + manifests.digest(head + manifests.ZEROS.encode() + tail).encode() + tail


def told(step: int, **values: object) -> bytes:
    return facts.render(Fact(kind="metrics", time=TIME, step=step, values=values))


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(SimDisk(), "root")


@pytest.fixture
def catalog() -> SqlCatalog:
    return open_sqlite(None)


def ids(catalog: SqlCatalog) -> list[str]:
    return [entry.manifest.id for entry in catalog.entries(HOME)]


def test_an_empty_store_is_an_empty_catalog(store: LocalStore, catalog: SqlCatalog) -> None:
    assert refresh(catalog, HOME, store) == ()
    assert ids(catalog) == []


def test_everything_is_found_from_nothing(store: LocalStore, catalog: SqlCatalog) -> None:
    for seq in (3, 1, 2, 12_345_678_901):
        commit(store, seq)
    store.put("step_0000000002-2/meta.json", [manifests.render(manifest(5, step=2))])
    store.append("journal/0001.jsonl", told(2, acc=0.5))
    store.put("facts/a.json", [facts.render(Fact(kind="damaged", time=TIME, checkpoint="c1", values={"what": "x"}))])
    assert refresh(catalog, HOME, store) == ()
    assert ids(catalog) == ["c1", "c2", "c3", "c5", "c12345678901"]
    assert [entry.folder for entry in catalog.entries(HOME)][3] == "step_0000000002-2"
    assert [entry.metrics for entry in catalog.entries(HOME)] == [{}, {"acc": 0.5}, {}, {"acc": 0.5}, {}]
    assert catalog.entries(HOME)[0].damaged == "x"


@pytest.mark.parametrize(
    "key",
    ["step_1/meta.json", "step_0000000001/meta.json.bak", "step_0000000001/sub/meta.json", "step_000000000x/meta.json"],
)
def test_other_files_are_no_manifests(store: LocalStore, catalog: SqlCatalog, key: str) -> None:
    store.put(key, [manifests.render(manifest(1))])
    assert refresh(catalog, HOME, store) == ()
    assert ids(catalog) == []


def test_what_was_deleted_is_forgotten(store: LocalStore, catalog: SqlCatalog) -> None:
    for seq in (1, 2, 3):
        commit(store, seq)
    refresh(catalog, HOME, store)
    store.delete(f"{folder(2)}/meta.json")
    refresh(catalog, HOME, store)
    assert ids(catalog) == ["c1", "c3"]


class ReadingStore(LocalStore):
    """A store that notes what is read."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.reads: list[tuple[str, int, int | None]] = []

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self.reads.append((key, start, size))
        return super().get(key, start, size)


def test_of_a_known_manifest_only_the_id_is_read_again(catalog: SqlCatalog) -> None:
    store = ReadingStore()
    commit(store, 1)
    refresh(catalog, HOME, store)
    commit(store, 2)
    store.reads.clear()
    refresh(catalog, HOME, store)
    assert store.reads == [
        (f"{folder(1)}/meta.json", 0, manifests.HEAD),
        (f"{folder(2)}/meta.json", 0, size_of(store, f"{folder(2)}/meta.json")),  # no more than was listed
    ]


def test_another_checkpoint_in_a_known_folder_takes_the_old_ones_place(store: LocalStore, catalog: SqlCatalog) -> None:
    commit(store, 1)
    refresh(catalog, HOME, store)
    store.delete(f"{folder(1)}/meta.json")
    commit(store, 1, id="cother")
    refresh(catalog, HOME, store)
    assert ids(catalog) == ["cother"]


@pytest.mark.parametrize("id", ["c", "c1", 'c"1', "c\\1", "größe"])
def test_ids_that_begin_alike_are_told_apart(store: LocalStore, catalog: SqlCatalog, id: str) -> None:
    commit(store, 1, id="c12")
    refresh(catalog, HOME, store)
    store.delete(f"{folder(1)}/meta.json")
    commit(store, 1, id=id)
    for _ in range(2):
        refresh(catalog, HOME, store)
        assert ids(catalog) == [id]


def test_the_highest_generation_takes_the_place_of_the_others(store: LocalStore, catalog: SqlCatalog) -> None:
    commit(store, 1)
    commit(store, 2)
    refresh(catalog, HOME, store)
    for generation in (2, 10):
        key = f"{folder(1)}/meta-{generation}.json"
        store.put(key, [manifests.render(manifest(1, generation=generation))])
        assert refresh(catalog, HOME, store) == ()
        assert [entry.manifest.generation for entry in catalog.entries(HOME)] == [generation, 1]
    store.delete(f"{folder(1)}/meta.json")
    store.delete(f"{folder(1)}/meta-10.json")  # by hand
    assert refresh(catalog, HOME, store) == ()
    assert [entry.manifest.generation for entry in catalog.entries(HOME)] == [2, 1]


@pytest.mark.parametrize("name", ["meta-1.json", "meta-02.json", "meta-10000.json", "meta-2.json.bak", "meta-x.json"])
def test_other_names_are_no_generations(store: LocalStore, catalog: SqlCatalog, name: str) -> None:
    commit(store, 1)
    store.put(f"{folder(1)}/{name}", [manifests.render(manifest(1, generation=2))])
    assert refresh(catalog, HOME, store) == ()
    assert [entry.manifest.generation for entry in catalog.entries(HOME)] == [1]


def test_a_generation_under_the_name_of_another_is_damage(store: LocalStore, catalog: SqlCatalog) -> None:
    store.put(f"{folder(1)}/meta-3.json", [manifests.render(manifest(1, generation=2))])
    (damage,) = refresh(catalog, HOME, store)
    assert damage.key == f"{folder(1)}/meta-3.json"
    assert "is generation 2 of its manifest, under another one's name" in damage.what
    assert ids(catalog) == []


def test_a_file_that_is_too_large_for_a_manifest_is_not_read(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReadingStore()
    commit(store, 1)
    store.put(f"{folder(2)}/meta.json", [b" " * 5000])
    monkeypatch.setattr(manifests, "SIZE_MAX", 4000)
    monkeypatch.setattr(manifests, "READ_MAX", 4001)
    (damage,) = refresh(catalog, HOME, store)
    assert "has over 4000 bytes" in damage.what
    assert store.reads[-1] == (f"{folder(2)}/meta.json", 0, 4001)
    assert ids(catalog) == ["c1"]


class BusyStore(LocalStore):
    """A store in which somebody else is at work: before the first read of a manifest, `meanwhile` happens."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.meanwhile = list[tuple[str, bytes | None]]()

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        while self.meanwhile:
            other, data = self.meanwhile.pop(0)
            self.delete(other) if data is None else self.put(other, [data])
        return super().get(key, start, size)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_settled_or_removed_while_it_is_read_is_no_damage(catalog: SqlCatalog, known: bool) -> None:
    store = BusyStore()
    commit(store, 1)
    commit(store, 2)
    if known:
        refresh(catalog, HOME, store)
    second = manifests.render(manifest(1, generation=2))
    store.meanwhile = [(f"{folder(1)}/meta-2.json", second), (f"{folder(1)}/meta.json", None)]
    assert refresh(catalog, HOME, store) == ()
    assert [(entry.manifest.id, entry.manifest.generation) for entry in catalog.entries(HOME)] == [("c1", 2), ("c2", 1)]
    store.meanwhile = [(f"{folder(2)}/meta.json", None)]
    assert refresh(catalog, HOME, store) == ()
    assert ids(catalog) == ["c1"]


@pytest.mark.parametrize("name", ["meta.json", "meta-2.json"])
def test_a_manifest_that_became_a_folder_is_told(store: LocalStore, catalog: SqlCatalog, name: str) -> None:
    store.put(f"{folder(1)}/index-00000-2.json", [b"x"])
    store._disk.mkdir(f"root/{folder(1)}/{name}")
    (damage,) = refresh(catalog, HOME, store)
    assert damage == Damage(key=f"{folder(1)}/{name}", what="a link or a folder stands in its place")


def test_a_journal_that_grew_is_read_again_and_one_that_did_not_is_not(catalog: SqlCatalog) -> None:
    store = ReadingStore()
    commit(store, 1)
    store.append("journal/0001.jsonl", told(1, acc=0.1))
    refresh(catalog, HOME, store)
    assert catalog.entries(HOME)[0].metrics == {"acc": 0.1}
    store.append("journal/0001.jsonl", told(1, acc=0.2, more=1.0))
    refresh(catalog, HOME, store)
    assert catalog.entries(HOME)[0].metrics == {"acc": 0.2, "more": 1.0}
    store.reads.clear()
    refresh(catalog, HOME, store)
    assert [read for read in store.reads if read[0].startswith("journal/")] == []


def test_a_torn_line_is_passed_over_and_read_when_it_is_whole(store: LocalStore, catalog: SqlCatalog) -> None:
    commit(store, 1)
    line = told(1, acc=0.1)
    store.append("journal/0001.jsonl", told(1, a=1) + line[:20])
    assert refresh(catalog, HOME, store) == ()
    assert catalog.entries(HOME)[0].metrics == {"a": 1}
    store.append("journal/0001.jsonl", line[20:])
    refresh(catalog, HOME, store)
    assert catalog.entries(HOME)[0].metrics == {"a": 1, "acc": 0.1}


def test_of_a_journal_that_grew_only_what_is_new_is_read(catalog: SqlCatalog) -> None:
    store = ReadingStore()
    commit(store, 1)
    first = told(1, a=1)
    store.append("journal/0001.jsonl", first + told(1, b=2)[:9])
    refresh(catalog, HOME, store)
    assert catalog.read_sizes(HOME) == {"journal/0001.jsonl": len(first)}
    store.append("journal/0001.jsonl", told(1, b=2)[9:] + told(1, c=3))
    for entered in ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}):
        store.reads.clear()
        learn(catalog, HOME, store)
        assert catalog.entries(HOME)[0].metrics == entered
    assert store.reads == []
    store.append("journal/0001.jsonl", told(1, a=4))
    learn(catalog, HOME, store)
    assert store.reads == [("journal/0001.jsonl", len(first + told(1, b=2) + told(1, c=3)), None)]
    assert catalog.entries(HOME)[0].metrics == {"a": 4, "b": 2, "c": 3}


def test_a_journal_that_a_power_cut_made_shorter_is_read_from_its_beginning(
    store: LocalStore, catalog: SqlCatalog
) -> None:
    commit(store, 1)
    store.append("journal/0001.jsonl", told(1, a=1) + told(1, b=2))
    refresh(catalog, HOME, store)
    store.delete("journal/0001.jsonl")
    store.append("journal/0001.jsonl", told(1, a=7))
    refresh(catalog, HOME, store)
    assert catalog.entries(HOME)[0].metrics == {"a": 7}


def test_a_file_of_facts_needs_no_end_of_line(catalog: SqlCatalog) -> None:
    store = ReadingStore()
    commit(store, 1)
    pin = Fact(kind="pin", time=TIME, checkpoint="c1", values={"why": "mine"})
    store.put("facts/a.json", [facts.render(pin).rstrip()])
    refresh(catalog, HOME, store)
    store.reads.clear()
    learn(catalog, HOME, store)
    assert (catalog.entries(HOME)[0].pinned, store.reads) == ("mine", [])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b"\0" * 50, "is not JSON"),
        (b"[]", "is not an object"),
        (b"{}", "digest should be"),
        (b'{"format": 1, "digest": ""}', "was changed"),
        (b'{"format": 9}', "digest should be"),
        (newer(manifests.render(manifest(2))), "has format 9"),
        (manifests.render(manifest(2)).replace(b"asked", b"bsked"), "was changed"),
        (manifests.render(manifest(2))[:-20], "is not JSON"),
    ],
)
def test_a_manifest_that_cannot_be_read_comes_back_as_damage(
    store: LocalStore, catalog: SqlCatalog, content: bytes, what: str
) -> None:
    commit(store, 1)
    store.put(f"{folder(2)}/meta.json", [content])
    commit(store, 3)
    for _ in range(2):
        (damage,) = refresh(catalog, HOME, store)
        assert damage.key == f"{folder(2)}/meta.json"
        assert what in damage.what
        assert ids(catalog) == ["c1", "c3"]
    assert bytes(store.get(f"{folder(2)}/meta.json")) == content


def test_damage_is_plain_data(store: LocalStore, catalog: SqlCatalog) -> None:
    store.put(f"{folder(2)}/meta.json", [b"[]"])
    key = f"{folder(2)}/meta.json"
    assert refresh(catalog, HOME, store) == (Damage(key=key, what=f"{key} is not an object but list"),)


def test_from_nothing_equals_step_by_step(rng: Random) -> None:
    """Random saves, removals and facts, with a refresh now and then; at the end a new catalog says the same."""
    for _ in range(10):
        store, stepwise = LocalStore(SimDisk(), "root"), open_sqlite(None)
        present: list[int] = []
        for seq in range(1, 25):
            match rng.choice(("save", "save", "remove", "fact", "damaged", "health", "outside", "refresh")):
                case "save":
                    commit(store, seq, metrics={"loss": float(seq)})
                    present.append(seq)
                    if rng.random() < 0.5:
                        stepwise.add(HOME, manifest(seq, metrics={"loss": float(seq)}), folder(seq))
                case "remove" if present:
                    gone = present.pop(rng.randrange(len(present)))
                    store.delete(f"{folder(gone)}/meta.json")
                case "fact" if present:
                    journal = f"journal/{rng.randint(1, 3):04d}.jsonl"
                    store.append(journal, told(rng.choice(present), acc=rng.random()))
                case "damaged" if present:
                    fact = Fact(kind=rng.choice(("damaged", "verified")), time=TIME, checkpoint=f"c{present[-1]}")
                    store.append("journal/0001.jsonl", facts.render(replace(fact, values={"what": str(seq)})))
                case "health":  # also of checkpoints that are not there yet, or no more
                    where, id = f"journal/{rng.randint(1, 3):04d}.jsonl", f"c{rng.randint(1, 25)}"
                    values = {"health": rng.choice(tuple(Health)).value, "why": str(seq)}
                    store.append(where, facts.render(Fact(kind="health", time=TIME, checkpoint=id, values=values)))
                case "outside":
                    id = f"c{rng.randint(1, 25)}"
                    fact = Fact(kind=rng.choice(("pin", "unpin")), time=TIME, checkpoint=id, values={"why": str(seq)})
                    store.put(f"facts/{seq:04d}.json", [facts.render(fact)])
                case "refresh":
                    refresh(stepwise, HOME, store)
        refresh(stepwise, HOME, store)
        anew = open_sqlite(None)
        refresh(anew, HOME, store)
        assert anew.entries(HOME) == stepwise.entries(HOME)
        assert anew.read_sizes(HOME) == stepwise.read_sizes(HOME)
        assert ids(anew) == [f"c{seq}" for seq in present]


def test_whoever_only_fetches_is_no_attempt_in_a_catalog(store: LocalStore, catalog: SqlCatalog) -> None:
    told = {"task": "t", "time": TIME, "host": "h", "pid": 1}
    store.put("attempts/0001.json", [json.dumps(told).encode()])
    store.put("attempts/0002.json", [json.dumps({**told, **FETCH}).encode()])
    refresh(catalog, HOME, store)  # as by `mementum ls`, while it is fetched
    assert [start.number for start in catalog.starts(HOME)] == [1]
