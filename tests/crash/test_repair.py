"""No power cut while a checkpoint is repaired loses a good byte; the next repair finishes."""

from __future__ import annotations

import pytest

from copies import content, save, whole
from mementum.placing import Copied, Form, place
from mementum.records import Entry, Index
from mementum.recover.donors import Donor
from mementum.recover.verify import read_index
from mementum.repairing import Intact, Repaired, repair
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.testing.choices import power_cuts
from mementum.testing.simdisk import SimDisk

SURVIVORS_MAX = 64  # of one cut
FORMS = {"as it is": Form(), "coded": Form(codec="zstd:1")}


def nobody() -> None:
    """No later attempt comes."""


def far_copy(form: Form) -> tuple[LocalStore, Entry]:
    near, far = LocalStore(SimDisk(), "near"), LocalStore(SimDisk(), "far")
    entry = save(near, 3, frozen=1)
    done = place(entry, source=near, target=far, form=form, require_newest=nobody, pause=lambda: None)
    assert isinstance(done, Copied)
    return far, entry


def damage(store: Store, entry: Entry) -> None:
    """One block of one file, a file that is gone, a context and the manifest."""
    key = f"{entry.folder}/optimizer.blocks"
    data = bytearray(store.get(key))
    data[1100] ^= 1
    store.replace(key, [bytes(data)])
    store.delete(f"{entry.folder}/model.frozen.safetensors")
    for name in ("context-00000.json", "meta.json"):
        text = bytes(store.get(f"{entry.folder}/{name}"))
        store.replace(f"{entry.folder}/{name}", [text[: len(text) // 2]])


def mend(store: Store, entry: Entry, far: Store) -> Intact | Repaired:
    done = repair(entry, store=store, donors=[Donor(name="far", store=far)], require_newest=nobody, pause=lambda: None)
    assert isinstance(done, Intact | Repaired), done
    return done


def good_blocks(store: Store, entry: Entry, proof: Index) -> set[tuple[str, int]]:
    """Blocks that are as they were written."""
    from mementum.format import blocks

    found: set[tuple[str, int]] = set()
    held = content(store)
    for file in proof.files:
        data = held.get(f"{entry.folder}/{file.name}", b"")
        for block in file.blocks:
            if blocks.damage(block, data[block.offset : block.offset + block.size]) is None:
                found.add((file.name, block.offset))
    return found


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_nothing_good_is_lost_at_any_cut(form: str, journaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.format.blocks.BLOCK", 1024)
    far, entry = far_copy(FORMS[form])
    plain = LocalStore(SimDisk(), "near")
    assert save(plain, 3, frozen=1) == entry
    proof = read_index(plain, entry.folder, entry.manifest)
    assert isinstance(proof, Index)
    good, left = content(plain), content(far)
    damage(plain, entry)
    hurt = good_blocks(plain, entry, proof)
    assert 0 < len(hurt) < sum(len(file.blocks) for file in proof.files)

    def run(disk: SimDisk, told: set[str]) -> None:
        store = LocalStore(disk, "near")
        save(store, 3, frozen=1)
        damage(store, entry)
        told.add("damaged")
        mend(store, entry, far)
        told.add("repaired")

    tried, seen = 0, set[object]()
    for _, told, disk in power_cuts(run, journaled=journaled, at_most=SURVIVORS_MAX):
        if "damaged" not in told:
            continue
        store = LocalStore(disk, "near")
        tried += 1
        held = content(store)
        mark = (frozenset(told), tuple(held.items()))
        if mark in seen:
            continue
        seen.add(mark)
        assert hurt <= good_blocks(store, entry, proof)
        if "repaired" in told:
            assert held == good
        store.sweep()  # what a start does
        mend(store, entry, far)
        assert content(store) == good
        assert whole(store, entry.folder) == entry.manifest
    assert tried > 30
    assert len(seen) > 5
    assert content(far) == left


def test_a_new_copy_in_the_place_of_what_nobody_can_read() -> None:
    """Where no manifest fits what lies there, it is cleared and copied anew: at any cut one of both is there."""
    near = LocalStore(SimDisk(), "near")
    entry = save(near, 3)

    def run(disk: SimDisk, told: set[str]) -> None:
        far = LocalStore(disk, "far")
        place(entry, source=near, target=far, form=FORMS["coded"], require_newest=nobody, pause=lambda: None)
        for name in ("meta-2.json", "index-00000-2.json"):
            key = f"{entry.folder}/{name}"
            far.replace(key, [bytes(far.get(key))[:-7]])
        told.add("damaged")
        done = mend(far, entry, near)
        assert isinstance(done, Repaired)
        assert done.anew

    tried = 0
    for _, told, disk in power_cuts(run, journaled=True, at_most=SURVIVORS_MAX):
        if "damaged" not in told:
            continue
        tried += 1
        far = LocalStore(disk, "far")
        far.sweep()
        done = place(entry, source=near, target=far, require_newest=nobody, pause=lambda: None)
        if not isinstance(done, Copied):  # its torn manifest is still there
            mend(far, entry, near)
            done = place(entry, source=near, target=far, require_newest=nobody, pause=lambda: None)
        assert isinstance(done, Copied)
        whole(far, done.folder)
    assert tried > 10
    assert content(near) == content(near, entry.folder)
