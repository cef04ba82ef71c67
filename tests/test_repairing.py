"""A damaged checkpoint is put back bit for bit from copies elsewhere, or nothing of it is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from copies import content, folder_of, save, whole
from deltas import Moving
from mementum.errors import Unreachable
from mementum.execute.transfer import Owners
from mementum.placing import Form
from mementum.records import Entry
from mementum.recover.donors import Donor
from mementum.repairing import Intact, Repaired, Unrepairable, repair
from mementum.storage.around import Around
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from mementum.storage.tiers import open_store
from mementum.testing.simdisk import SimDisk
from mendings import copy, flip, mend, nobody, two

STEPS = (3, 4, 5)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.format.blocks.BLOCK", 1024)


def test_nothing_to_do() -> None:
    near, far = two()
    entry = save(near, 3)
    assert mend(entry, near, far) == Intact(manifest=entry.manifest)


@pytest.mark.usefixtures("small_blocks")
def test_two_damaged_copies_mend_each_other() -> None:
    near, far = two()
    entry = save(near, 3)
    there, before = copy(entry, near, far), content(near)
    flip(near, f"{entry.folder}/optimizer.blocks", 100)
    flip(far, f"{entry.folder}/optimizer.blocks", 3000)
    done = mend(entry, near, far)
    assert isinstance(done, Repaired)
    assert (done.keys, done.donors, done.size) == ((f"{entry.folder}/optimizer.blocks",), ("donor 0",), 1024)
    assert content(near) == before
    assert isinstance(mend(there, far, near), Repaired)
    assert content(far) == before


@pytest.mark.usefixtures("small_blocks")
def test_a_third_place_has_what_the_second_lacks() -> None:
    near, far = two()
    third = LocalStore(SimDisk(), "third")
    entry = save(near, 3)
    copy(entry, near, far)
    copy(entry, near, third)
    before, key = content(near), f"{entry.folder}/optimizer.blocks"
    near.delete(key)
    flip(far, key, 100)
    flip(third, key, 3000)
    done = mend(entry, near, far, third)
    assert isinstance(done, Repaired)
    assert set(done.donors) == {"donor 0", "donor 1"}
    assert content(near) == before


@pytest.mark.usefixtures("small_blocks")
def test_the_same_block_damaged_everywhere_is_refused() -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    key = f"{entry.folder}/optimizer.blocks"
    flip(near, key, 1100)
    flip(near, key, 3000)
    flip(near, f"{entry.folder}/context-00000.json")
    flip(far, key, 1200)
    left, there = content(near), content(far)
    done = mend(entry, near, far)
    assert isinstance(done, Unrepairable)
    assert [(one.key, one.what) for one in done.damage] == [
        (key, "the bytes from 1024 to 2048 (they do not match their digest)")
    ]
    assert (content(near), content(far)) == (left, there)


def test_no_copy_at_all() -> None:
    near, far = two()
    entry = save(near, 3)
    flip(near, f"{entry.folder}/index-00000.json")
    left = content(near)
    done = mend(entry, near, far)
    assert isinstance(done, Unrepairable)
    assert done.damage[0].key == f"{entry.folder}/index-00000.json"
    assert content(near) == left


def test_another_checkpoint_under_the_same_name() -> None:
    near, far = two()
    entry, other = save(near, 3), save(far, 3, id="cother", seed=9)
    flip(near, f"{entry.folder}/optimizer.blocks")
    left, there = content(near), content(far)
    assert isinstance(mend(entry, near, far), Unrepairable)
    refused = mend(entry, far, near)
    assert isinstance(refused, Unrepairable)
    assert refused.reason == f"checkpoint {other.manifest.id} lies in {entry.folder}, and not {entry.manifest.id}"
    assert (content(near), content(far)) == (left, there)
    copied = copy(entry, save_again(near, entry), far)
    assert copied.folder != entry.folder
    flip(near, f"{entry.folder}/optimizer.blocks")
    assert isinstance(mend(entry, near, far), Repaired)  # it is found under its other name


def save_again(near: LocalStore, entry: Entry) -> LocalStore:
    """As it was before the damage."""
    for key in content(near):
        near.delete(key)
    assert save(near, 3).manifest == entry.manifest
    return near


def test_a_place_that_does_not_answer_is_named() -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    asked: list[str] = []

    class Silent(Around):
        def list(self, prefix: str = "") -> Iterator[Stat]:
            asked.append(prefix)
            raise Unreachable(prefix, "nobody answers")

    flip(near, f"{entry.folder}/optimizer.blocks")
    flip(near, f"{entry.folder}/context-00000.json")
    done = mend(entry, near, Silent(far))
    assert isinstance(done, Unrepairable)
    assert (dict(done.silent), len(asked)) == ({"donor 0": "nobody answers"}, 1)
    done = mend(entry, near, Silent(far), far)
    assert isinstance(done, Repaired)
    assert done.donors == ("donor 1",)
    whole(near, entry.folder)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["optimizer.blocks", "index-00000.json", "meta.json"])
def test_from_a_copy_in_another_codec(name: str) -> None:
    near, far = two()
    entry = save(near, 3, frozen=1)
    there = copy(entry, near, far, form=Form(codec="zstd:1"))
    assert there.manifest.generation == 2
    before, coded = content(near), content(far)
    near.delete(f"{entry.folder}/{name}")
    assert isinstance(mend(entry, near, far), Repaired)
    assert content(near) == before
    if name == "optimizer.blocks":  # and back again: what is coded the same way has the same digest
        key = f"{there.folder}/optimizer-2.blocks"
        flip(far, key)
        assert isinstance(mend(there, far, near), Repaired)
        assert content(far) == coded


def test_what_fewer_levels_have() -> None:
    near, far = two()
    entry = save(near, 3)
    there = copy(entry, near, far, form=Form(levels=(0, 2)))
    before = content(near)
    flip(near, f"{entry.folder}/model.safetensors")
    assert isinstance(mend(entry, near, far), Repaired)
    assert content(near) == before
    flip(near, f"{entry.folder}/optimizer.blocks")
    assert isinstance(mend(entry, near, far), Unrepairable)
    flip(far, f"{there.folder}/model.safetensors")
    assert isinstance(mend(there, far, near), Repaired)
    whole(far, there.folder)


def test_frozen_weights_that_a_file_of_another_one_has(s3_url: str, s3_options: dict[str, str]) -> None:
    near, far = LocalStore(SimDisk(), "near"), open_store(s3_url, s3_options)
    owners = Owners()
    entries = [save(near, step, frozen=1) for step in STEPS]
    there = [copy(entry, near, far, owners=owners) for entry in entries]
    assert [file.folder for file in there[2].manifest.files][2] == folder_of(3)
    before = content(far)
    flip(far, f"{folder_of(3)}/model.frozen.safetensors")
    assert isinstance(mend(there[2], far, near), Repaired)
    assert content(far) == before
    flip(near, f"{folder_of(5)}/model.frozen.safetensors")
    assert isinstance(mend(entries[2], near, far), Repaired)
    whole(near, folder_of(5))


def test_all_names_of_a_damaged_file_are_mended(tmp_path: Path) -> None:
    near, far = LocalStore(PosixDisk(), str(tmp_path / "near")), LocalStore(SimDisk(), "far")
    entries = [save(near, step, frozen=step) for step in STEPS]
    there = [copy(entry, near, far) for entry in entries]
    shared = f"{folder_of(3)}/model.frozen.safetensors"
    del there
    path = near.locate(shared)
    assert path is not None
    name = f"{folder_of(4)}/model.frozen.safetensors"
    near.delete(name)
    assert near.link(shared, name)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)  # as a disk would: both names are damaged
    done = mend(entries[0], near, far)
    assert isinstance(done, Repaired)
    assert near.get(shared) == near.get(name) == far.get(shared)
    mended, other = near.locate(shared), near.locate(name)
    assert mended is not None
    assert other is not None
    assert mended.samefile(other)


@pytest.mark.parametrize("which", [1, 2])
def test_a_delta_and_its_base(which: int) -> None:
    moving = Moving(Random(3))
    moving.save(1)
    after = moving.settled(2)
    assert any(file.folder is not None for file in after.files), after
    far = LocalStore(SimDisk(), "far")
    entries = {number: moving.entry(number) for number in (1, 2)}
    for entry in entries.values():
        copy(entry, moving.store, far)  # each of them full there
    before = content(moving.store)
    names = [key for key in before if key.startswith(entries[which].folder) and key.endswith(".blocks")]
    flip(moving.store, names[-1])
    done = mend(entries[2], moving.store, far)
    assert isinstance(done, Repaired)
    assert done.keys == (names[-1],)
    assert content(moving.store) == before


def test_a_manifest_that_the_place_alone_had_is_made_anew() -> None:
    near, far = two()
    entry = save(near, 3)
    there = copy(entry, near, far, form=Form(codec="zstd:1"))
    flip(far, f"{there.folder}/meta-2.json", 300)
    flip(far, f"{there.folder}/index-00000-2.json")
    lost = replace(there, manifest=entry.manifest)  # what is known of it is the root's
    found = mend(lost, far, near, dry_run=True)
    assert isinstance(found, Repaired)
    assert found.anew
    done = repair(
        lost,
        store=far,
        donors=[Donor(name="near", store=near)],
        form=Form(codec="zstd:1"),
        require_newest=nobody,
        pause=lambda: None,
    )
    assert isinstance(done, Repaired)
    assert (done.anew, done.folder) == (True, there.folder)
    assert whole(far, there.folder) == there.manifest
    assert not any("placing-" in key for key in content(far))


def test_a_torn_generation_above_one_that_is_whole_goes() -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    before = content(near)
    near.put(f"{entry.folder}/meta-2.json", [b"torn"])
    assert isinstance(mend(entry, near, far), Repaired)
    assert content(near) == before


def test_a_dry_run_changes_nothing() -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    flip(near, f"{entry.folder}/optimizer.blocks")
    left = content(near)
    done = mend(entry, near, far, dry_run=True)
    assert isinstance(done, Repaired)
    assert done.keys == (f"{entry.folder}/optimizer.blocks",)
    assert content(near) == left


@pytest.mark.parametrize("turn", [1, 2])
def test_a_training_that_removes_it_meanwhile(turn: int) -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    flip(near, f"{entry.folder}/optimizer.blocks")
    flip(near, f"{entry.folder}/context-00000.json")
    looks = iter(range(10))

    def look() -> None:
        if next(looks) == turn:
            for key in sorted(content(near), key=lambda key: "meta" not in key):
                near.delete(key)

    done = repair(entry, store=near, donors=[Donor(name="far", store=far)], require_newest=look, pause=lambda: None)
    assert isinstance(done, Unrepairable)
    assert "removed, or rewritten" in done.reason
    assert content(near) == {}


def test_a_training_that_compresses_it_meanwhile() -> None:
    moving = Moving(Random(3))
    entry = moving.save(1)
    far = LocalStore(SimDisk(), "far")
    copy(entry, moving.store, far)
    flip(moving.store, f"{entry.folder}/model.safetensors", 20)
    looks = iter(range(10))

    def look() -> None:
        if next(looks) == 0:
            moving.settle(1, codec="zstd:1")

    wanted = {"donors": [Donor(name="far", store=far)], "pause": lambda: None}
    done = repair(entry, store=moving.store, require_newest=look, **wanted)  # type: ignore[arg-type]
    assert isinstance(done, Unrepairable)
    assert moving.entry(1).manifest.generation == 2
    again = repair(moving.entry(1), store=moving.store, require_newest=nobody, **wanted)  # type: ignore[arg-type]
    assert isinstance(again, Repaired)
    assert whole(moving.store, entry.folder).generation == 2


def test_it_stops_between_two_blocks() -> None:
    near, far = two()
    entry = save(near, 3)
    copy(entry, near, far)
    flip(near, f"{entry.folder}/optimizer.blocks")
    left, rounds = content(near), iter((None, None))
    done = repair(
        entry,
        store=near,
        donors=[Donor(name="far", store=far)],
        require_newest=nobody,
        pause=lambda: next(rounds, "the run ends"),
    )
    assert done == Unrepairable(damage=(), reason="the run ends")
    assert content(near) == left
