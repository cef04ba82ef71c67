"""A commit puts the manifest, once; its identifiers are unique and sort by time."""

from __future__ import annotations

import re

import pytest

from mementum.errors import KeyTaken
from mementum.execute.commit import ALPHABET, commit, new_id
from mementum.format import manifest as manifests
from mementum.records import Granularity, Health, Manifest
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

MANIFEST = Manifest(
    id="c1",
    seq=1,
    task="t",
    attempt=1,
    parent=None,
    step=3,
    epoch=0,
    time="2026-11-30T06:10:09.000000Z",
    reason="asked",
    granularity=Granularity.FULL,
    health=Health.CLEAN,
    files=(),
)


def test_the_manifest_lies_in_its_folder() -> None:
    store = LocalStore(SimDisk(), "root")
    assert commit(MANIFEST, store, "step_0000000003") is MANIFEST
    assert [stat.key for stat in store.list()] == ["step_0000000003/meta.json"]
    assert manifests.parse(store.get("step_0000000003/meta.json")) == MANIFEST


def test_a_checkpoint_is_committed_once() -> None:
    store = LocalStore(SimDisk(), "root")
    commit(MANIFEST, store, "step_0000000003")
    before = bytes(store.get("step_0000000003/meta.json"))
    with pytest.raises(KeyTaken):
        commit(MANIFEST, store, "step_0000000003")
    assert bytes(store.get("step_0000000003/meta.json")) == before


def test_identifiers_sort_by_time() -> None:
    times_s = [0.0, 1.0, 1.5, 1_764_000_000.0, 1_764_000_000.25, 1_764_000_001.0, 30_000_000_000.0]
    made = [new_id(time_s) for time_s in times_s]
    assert made == sorted(made)
    assert all(re.fullmatch(f"c[{ALPHABET}]{{16}}", id) for id in made)
    assert made[0].startswith("c000000000")


def test_identifiers_of_one_moment_differ() -> None:
    made = {new_id(1_764_000_000.0) for _ in range(1000)}
    assert len(made) == 1000
    assert len({id[:10] for id in made}) == 1


def test_the_alphabet_has_no_letter_that_looks_like_a_digit() -> None:
    assert len(set(ALPHABET)) == 32
    assert not set("ilou") & set(ALPHABET)
    assert sorted(ALPHABET) == list(ALPHABET)  # else identifiers would not sort
