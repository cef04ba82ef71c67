"""Manifests, indexes and contexts of anybody's making, with digests that are right: refused or read, and never more."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from mutations import Mutation, as_json, mutate, mutations, with_digest
from tiny_runs import folders_of, tiny_run

from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.errors import MementumError
from mementum.format import manifest as manifests
from mementum.format.manifest import digest
from mementum.records import Damage, Entry, Manifest
from mementum.recover.verify import read_manifest, verify
from mementum.resuming import newest_whole
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

HOME, FOLDER = "20261130/tiny_000001", "step_0000000001"
LISTED = 12  # of so many cases one goes through a catalog too, which takes ten times as long as all else
CASES = {"meta.json": 2_000, "index-00000.json": 1_500, "context-00000.json": 1_500}
SAMPLE = 4  # one in so many of them; a soak tries all


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("fuzz")
    tiny_run(root)
    return {path.name: path.read_bytes() for path in folders_of(root)[0].iterdir()}


@cache
def catalog() -> SqlCatalog:
    return open_sqlite(None)


def forged(parts: dict[str, bytes], name: str, changes: list[Mutation]) -> dict[str, bytes]:
    """The files of a checkpoint of which one was changed, and all digests after it made right again."""
    fields = json.loads(parts["meta.json"])
    if name == "meta.json":
        changed = mutate(fields, changes)
        return {**parts, name: with_digest(changed) if isinstance(changed, dict) else as_json(changed)}
    data = as_json(mutate(json.loads(parts[name]), changes))
    for file in fields["files"]:
        if file["name"] == name:
            file["size"], file["blake3"] = len(data), digest(data)
    return {**parts, name: data, "meta.json": with_digest(fields)}


def examine(parts: dict[str, bytes], *, listed: bool) -> str:
    """All that reads a checkpoint, one after the other; what came of it. Any error but ours ends the test."""
    store = LocalStore(SimDisk(), "root")
    for name, data in parts.items():
        store.put(f"{FOLDER}/{name}", [data])
    try:
        if listed:
            refresh(catalog(), HOME, store)
            catalog().entries(HOME)
        manifest = read_manifest(store, FOLDER)
        if isinstance(manifest, Damage):
            return "damaged"
        damage = verify(store, FOLDER, manifest, deep=True)
        entry = Entry(manifest=manifest, folder=FOLDER)
        newest_whole([entry], store, emit=lambda event: None, mark=lambda id, what: None)
    except MementumError as error:
        return type(error).__name__
    assert damage == (), "what was loaded is whole"
    return "loaded"


def test_what_was_not_changed_is_loaded(parts: dict[str, bytes]) -> None:
    for name in CASES:
        same = forged(parts, name, [(0, "double", 0)])
        assert examine(same, listed=True) == "loaded"
        assert isinstance(manifests.parse(same["meta.json"]), Manifest)


@pytest.mark.parametrize("name", CASES)
def test_no_error_but_ours(parts: dict[str, bytes], name: str) -> None:
    check_cases(parts, name, CASES[name] // SAMPLE)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_no_error_but_ours_in_all_cases(parts: dict[str, bytes], name: str) -> None:
    check_cases(parts, name, CASES[name])


def check_cases(parts: dict[str, bytes], name: str, cases: int) -> None:
    outcomes: dict[str, int] = {}

    @settings(max_examples=cases, database=None)
    @given(changes=mutations)
    def check(changes: list[Mutation]) -> None:
        outcome = examine(forged(parts, name, changes), listed=changes[0][0] % LISTED == 0)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    check()
    assert sum(outcomes.values()) >= cases
    assert outcomes["loaded"] > 10  # some changes mean nothing, so that all of the reading is reached
    assert max(outcomes.values()) < sum(outcomes.values())
