"""A checkpoint is coded against an older one where that pays, and never stands on what may go or is not whole."""

from __future__ import annotations

from random import Random

import pytest
import torch

from deltas import CODEC, COUNT, Moving, folder
from mementum import basing
from mementum.errors import StoreError
from mementum.events import Failed, Settled
from mementum.execute.remove import needed_elsewhere, orphans, outdated, unlist
from mementum.format import blocks
from mementum.format.codec import is_delta
from mementum.records import Entry, Fact, Health, Manifest, StoredFile
from mementum.recover.load import Loaded, load
from mementum.recover.verify import Proved, examine, verify
from mementum.rewriting import Unsettled

BASE = StoredFile(name="optimizer-2.blocks", size=0, folder=folder(1))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


@pytest.fixture
def moving(rng: Random) -> Moving:
    return Moving(rng)


def base_of(manifest: Manifest) -> str | None:
    return next((file.folder for file in manifest.files if file.folder is not None), None)


def test_the_second_is_coded_against_the_first(moving: Moving) -> None:
    first, second = moving.settled(1), moving.settled(2)
    (own,) = (file for file in first.files if file.name == "optimizer-2.blocks")
    assert second.files[-1] == StoredFile(name="optimizer-2.blocks", size=own.size, folder=folder(1))
    assert second.size == sum(file.size for file in second.files[:-1])
    assert second.files[1].size < 0.5 * own.size
    assert moving.names(2) == {
        "meta-2.json",
        "model.safetensors",
        "optimizer-2.blocks",
        "index-00000-2.json",
        "context-00000.json",
    }
    proved = examine(moving.store, folder(2), second)
    assert isinstance(proved, Proved)
    assert [file.base for file in proved.index.files] == [None, f"{folder(1)}/optimizer-2.blocks"]
    assert {block.codec for block in proved.index.files[1].blocks} == {"delta:4+planes:4+zstd:1"}
    assert [moving.raw(1), moving.raw(2)] == [moving.raws[1], moving.raws[2]]
    assert verify(moving.store, folder(2), second, deep=True) == ()
    told = [event for event in moving.events if isinstance(event, Settled)]
    assert [(one.base, one.why_no_base) for one in told] == [
        (None, "none of the 8 checkpoints before it holds the same tensors, whole"),
        ("c1", None),
    ]


def test_it_loads(moving: Moving) -> None:
    moving.settled(1)
    after = moving.settled(2)
    loaded = load(moving.store, folder(2), after)
    assert isinstance(loaded, Loaded)
    held = loaded.tensors["optimizer"]["0.exp_avg"]
    assert held.shape == (COUNT,)
    assert held.view(torch.uint8).numpy().tobytes() == moving.raws[2]


def test_bases_are_never_deltas_and_never_far(moving: Moving) -> None:
    found = {number: base_of(moving.settled(number)) for number in range(1, basing.BASE_SPAN + 4)}
    full = basing.BASE_SPAN + 2
    assert found == {
        number: None if number in (1, full) else folder(1) if number < full else folder(full) for number in found
    }
    assert all(moving.raw(number) == moving.raws[number] for number in found)


def test_without_delta_in_the_codec_there_is_none(moving: Moving) -> None:
    moving.settled(1)
    after = moving.settled(2, codec="planes+zstd:1")
    assert base_of(after) is None
    assert moving.events[-1] == Settled(
        id="c2", step=2, size_before=moving.events[-1].size_before, size=after.size, duration_s=0.0
    )  # type: ignore[union-attr]


def test_where_it_does_not_pay_there_is_none(rng: Random) -> None:
    moving = Moving(rng, by=1 << 24)
    moving.settled(1)
    assert base_of(moving.settled(2)) is None
    assert moving.events[-1].why_no_base == "the difference from c1 would save 9.2%"  # type: ignore[union-attr]


def damage(moving: Moving, key: str, at: int = 0) -> None:
    data = bytes(moving.store.get(key))
    moving.store.delete(key)
    moving.store.put(key, [data[:at], bytes([data[at] ^ 1]), data[at + 1 :]])


def test_a_damaged_base_is_not_used(moving: Moving) -> None:
    moving.settled(1)
    damage(moving, f"{folder(1)}/optimizer-2.blocks")
    assert base_of(moving.settled(2)) is None
    assert moving.events[-1].why_no_base == (  # type: ignore[union-attr]
        f"{folder(1)}/optimizer-2.blocks: the block at 0 does not match its digest"
    )
    assert moving.raw(2) == moving.raws[2]


def test_damage_of_the_base_between_the_samples_is_found_too(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basing, "SAMPLES", 1)
    first = moving.settled(1)
    (own,) = (file for file in first.files if file.name == "optimizer-2.blocks")
    damage(moving, f"{folder(1)}/optimizer-2.blocks", own.size - 1)
    assert base_of(moving.settled(2)) is None
    assert "does not match its digest" in moving.events[-1].why_no_base  # type: ignore[union-attr,operator]
    assert moving.raw(2) == moving.raws[2]


def not_whole(moving: Moving) -> None:
    moving.store.delete(f"{folder(1)}/optimizer-2.blocks")


def no_index(moving: Moving) -> None:
    damage(moving, f"{folder(1)}/index-00000-2.json", 100)


def known_damage(moving: Moving) -> None:
    fact = Fact(kind="damaged", time="2026-11-30T06:10:09.000000Z", checkpoint="c1", values={"what": "x"})
    moving.catalog.learn("20261130/t_000001", "facts/1.json", [fact], size=1)


def doubted(moving: Moving) -> None:
    fact = Fact(
        kind="health", time="2026-11-30T06:10:09.000000Z", checkpoint="c1", values={"health": "suspect", "why": "x"}
    )
    moving.catalog.learn("20261130/t_000001", "facts/1.json", [fact], size=1)


@pytest.mark.parametrize("happens", [not_whole, no_index, known_damage, doubted])
def test_only_a_whole_and_clean_one_is_a_base(moving: Moving, happens: object) -> None:
    moving.settled(1)
    happens(moving)  # type: ignore[operator]
    assert base_of(moving.settled(2)) is None


def test_one_that_landed_raw_may_be_a_base(moving: Moving) -> None:
    moving.save(1)
    after = moving.settled(2)
    assert after.files[-1] == StoredFile(name="optimizer.blocks", size=4 * COUNT, folder=folder(1))
    assert moving.raw(2) == moving.raws[2]


def test_other_tensors_are_no_base(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    moving.settled(1)
    monkeypatch.setattr(blocks, "BLOCK", 512)
    assert base_of(moving.settled(2)) is None


def test_a_base_that_goes_before_the_commit_is_seen(moving: Moving) -> None:
    moving.settled(1)
    before = moving.save(2)
    entry = moving.entry(1)

    def removed() -> None:
        unlist(entry.manifest, moving.store, folder(1))

    found = moving.settle(2, require_newest=removed)
    assert found == Unsettled(reason=f"the checkpoint in {folder(1)}, whose files it needs, was removed")
    assert isinstance(moving.events[-1], Failed)
    assert (moving.entry(2), moving.raw(2)) == (before, moving.raws[2])
    assert "meta.json" in moving.names(2)
    assert outdated(moving.store) == ()


def test_what_a_base_is_needed_for_is_known_to_sweeps(moving: Moving) -> None:
    moving.settled(1)
    moving.settled(2)
    key = f"{folder(1)}/optimizer-2.blocks"
    assert needed_elsewhere(moving.store) == {key}
    moving.store.delete(f"{folder(1)}/meta-2.json")  # by hand
    assert key not in orphans(moving.store)
    assert f"{folder(1)}/index-00000-2.json" in orphans(moving.store)
    assert moving.raw(2) == moving.raws[2]


@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_base_is_damage_that_names_both(moving: Moving, deep: bool) -> None:
    moving.settled(1)
    after = moving.settled(2)
    key = f"{folder(1)}/optimizer-2.blocks"
    moving.store.delete(key)
    (found,) = verify(moving.store, folder(2), after, deep=deep)
    assert (found.key, found.what) == (key, f"it is missing; {folder(2)} (c2) needs it")
    assert load(moving.store, folder(2), after) == (found,)


def test_a_flipped_byte_of_a_base_is_damage_that_names_both(moving: Moving) -> None:
    moving.settled(1)
    after = moving.settled(2)
    key = f"{folder(1)}/optimizer-2.blocks"
    damage(moving, key)
    assert verify(moving.store, folder(2), after, deep=False) == ()
    (found,) = verify(moving.store, folder(2), after, deep=True)
    told = f"the block at 0 does not match its digest; {folder(2)}/optimizer-2.blocks was coded against it"
    assert (found.key, found.what) == (key, told)
    assert load(moving.store, folder(2), after) == (found,)


def test_a_disk_that_refuses_leaves_it_as_it_was(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    moving.settled(1)
    before = moving.save(2)

    def refuse(*_: object) -> None:
        raise StoreError("meta-2.json", "the disk is full")

    monkeypatch.setattr("mementum.rewriting.commit", refuse)
    assert moving.settle(2) == Unsettled(reason="the disk is full")
    assert (moving.entry(2), moving.raw(2)) == (before, moving.raws[2])
    assert outdated(moving.store) == ()


def test_a_codec_of_one_width_is_told_as_it_is_stored(moving: Moving) -> None:
    moving.settled(1)
    after = moving.settled(2, codec="delta:4+zstd:1")
    proved = examine(moving.store, folder(2), after)
    assert isinstance(proved, Proved)
    assert all(is_delta(block.codec) for block in proved.index.files[1].blocks)
    assert CODEC not in {block.codec for block in proved.index.files[1].blocks}


def test_a_diverged_one_is_no_base(moving: Moving) -> None:
    entry: Entry = moving.save(1, health=Health.DIVERGED)
    assert entry.health is Health.DIVERGED
    assert base_of(moving.settled(2)) is None
