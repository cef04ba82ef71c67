"""Tests of the folder in which a copy lies, has begun, or can begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copies import content, folder_of, save
from mementum.execute.compress import GaveUp
from mementum.lodging import find_room, require_there
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

AT = folder_of(3)


@pytest.fixture
def far() -> LocalStore:
    return LocalStore(SimDisk(), "far")


def test_where_nothing_is_it_begins(far: LocalStore) -> None:
    room = find_room(far, AT, "c3")
    assert (room.folder, dict(room.there), room.stands) == (AT, {}, None)


def test_what_is_there_is_found_in_any_folder_of_the_step(far: LocalStore) -> None:
    entry = save(far, 3)
    again = LocalStore(far._disk, "far").below("x")
    save(again, 3, id="cnew")
    for key, data in content(again).items():
        far.put(key.replace(AT, f"{AT}-2"), [data])
    room = find_room(far, AT, "cnew")
    assert room.folder == f"{AT}-2"
    assert room.stands is not None
    assert room.stands.id == "cnew"
    require_there(room, room.stands)
    assert find_room(far, f"{AT}-2", "c3").stands == entry.manifest
    assert find_room(far, AT, "cthird").folder == f"{AT}-3"


def test_a_copy_that_lacks_a_file_is_left_to_a_repair(far: LocalStore) -> None:
    entry = save(far, 3)
    far.delete(f"{AT}/optimizer.blocks")
    room = find_room(far, AT, "c3")
    with pytest.raises(GaveUp, match=r"optimizer\.blocks is missing or cut off"):
        require_there(room, entry.manifest)
    far.put(f"{AT}/optimizer.blocks", [b"short"])
    with pytest.raises(GaveUp, match=r"optimizer\.blocks is missing or cut off"):
        require_there(replace(room, there={**room.there, "optimizer.blocks": 5}), entry.manifest)


def test_only_folders_of_checkpoints(far: LocalStore) -> None:
    with pytest.raises(GaveUp, match="x is not the folder of a checkpoint"):
        find_room(far, "x", "c3")
