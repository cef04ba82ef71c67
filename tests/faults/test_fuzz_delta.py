"""Checkpoints that need another one, with anything in manifest, index and base: refused or read, never more."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import Mutation, as_json, mutate, mutations, with_digest

from deltas import Moving, folder
from mementum.errors import MementumError
from mementum.format.manifest import digest
from mementum.records import Damage, Entry
from mementum.recover.verify import read_manifest, verify
from mementum.resuming import newest_whole
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

META, INDEX = f"{folder(2)}/meta-2.json", f"{folder(2)}/index-00000-2.json"
CASES = {META: 400, INDEX: 600}
FLIPS = 300


@cache
def root() -> dict[str, bytes]:
    """Two checkpoints, the second of which is coded against the first."""
    moving = Moving(Random(1))
    moving.settled(1)
    moving.settled(2)
    return {stat.key: bytes(moving.store.get(stat.key)) for stat in moving.store.list()}


def forged(key: str, changes: list[Mutation]) -> dict[str, bytes]:
    """The same with one file changed, and all digests after it made right again."""
    fields = json.loads(root()[META])
    changed = mutate(fields if key == META else json.loads(root()[INDEX]), changes)
    if key == META:
        return {**root(), key: with_digest(changed) if isinstance(changed, dict) else as_json(changed)}
    data = as_json(changed)
    for file in fields["files"]:
        if file["name"] == key.rpartition("/")[2]:
            file["size"], file["blake3"] = len(data), digest(data)
    return {**root(), key: data, META: with_digest(fields)}


def examine(files: dict[str, bytes]) -> str:
    """All that reads the second one; what came of it. Any error but ours ends the test."""
    store = LocalStore(SimDisk(), "root")
    for key, data in files.items():
        store.put(key, [data])
    try:
        manifest = read_manifest(store, folder(2))
        if isinstance(manifest, Damage):
            return "damaged"
        damage = verify(store, folder(2), manifest, deep=True)
        entry = Entry(manifest=manifest, folder=folder(2))
        newest_whole([entry], store, emit=lambda event: None, mark=lambda id, what: None)
    except MementumError as error:
        return type(error).__name__
    assert damage == (), "what was loaded is whole"
    return "loaded"


def test_what_was_not_changed_is_loaded() -> None:
    assert examine(root()) == "loaded"


@pytest.mark.parametrize("key", CASES)
def test_no_error_but_ours(key: str) -> None:
    outcomes: dict[str, int] = {}

    @settings(max_examples=CASES[key], database=None)
    @given(changes=mutations)
    def check(changes: list[Mutation]) -> None:
        outcome = examine(forged(key, changes))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    check()
    assert sum(outcomes.values()) >= CASES[key]
    assert outcomes["loaded"] > 0
    assert max(outcomes.values()) < sum(outcomes.values())


@settings(max_examples=FLIPS, database=None)
@given(data=st.data())
def test_a_changed_byte_is_never_accepted(data: st.DataObject) -> None:
    """Of the delta or of its base, in what the second checkpoint needs."""
    needed = [key for key in root() if key.startswith(folder(2)) or key.endswith("/optimizer-2.blocks")]
    key = data.draw(st.sampled_from(sorted(needed)))
    at, flip = data.draw(st.integers(0, len(root()[key]) - 1)), data.draw(st.integers(1, 255))
    content = root()[key]
    assert examine({**root(), key: content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :]}) != "loaded"


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_base_that_was_cut_off_is_never_accepted(cut: int) -> None:
    key = f"{folder(1)}/optimizer-2.blocks"
    assert examine({**root(), key: root()[key][:cut]}) == "NothingToResume"
