"""Removal takes the manifest first and only what is ours; orphans are parts that no manifest names."""

from __future__ import annotations

import pytest

from mementum.errors import StoreError
from mementum.execute.remove import discard, orphans, remove
from mementum.records import Granularity, Health, Manifest, StoredFile
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

FOLDER = "step_0000000003"
PARTS = ("model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json")


class RecordingStore(LocalStore):
    """A store that notes what is deleted, and can refuse a key."""

    def __init__(self, *keys: str, refused: str = "") -> None:
        super().__init__(SimDisk(), "root")
        self.deleted: list[str] = []
        self.refused = refused
        for key in keys:
            self.put(key, [b"x"])

    def delete(self, key: str) -> None:
        if key == self.refused:
            raise StoreError(key, "refused")
        self.deleted.append(key)
        super().delete(key)

    def keys(self) -> list[str]:
        return [stat.key for stat in self.list()]


def manifest(*names: str) -> Manifest:
    return Manifest(
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
        files=tuple(StoredFile(name=name, size=1) for name in names),
    )


def inside(*names: str) -> list[str]:
    return [f"{FOLDER}/{name}" for name in names]


def test_the_manifest_goes_first_and_nothing_is_left() -> None:
    store = RecordingStore(*inside("meta.json", *PARTS), "step_0000000004/meta.json")
    remove(manifest(*PARTS), store, FOLDER)
    assert store.deleted == inside("meta.json", *PARTS)
    assert store.keys() == ["step_0000000004/meta.json"]


def test_what_somebody_else_put_there_stays() -> None:
    store = RecordingStore(*inside("meta.json", "notes.txt", *PARTS))
    remove(manifest(*PARTS), store, FOLDER)
    assert store.keys() == inside("notes.txt")
    assert orphans(store) == ()


def test_a_removal_that_was_cut_is_done_again() -> None:
    store = RecordingStore(*inside("meta.json", *PARTS), refused=f"{FOLDER}/index-00000.json")
    with pytest.raises(StoreError):
        remove(manifest(*PARTS), store, FOLDER)
    assert store.keys() == inside("context-00000.json", "index-00000.json")
    assert orphans(store) == tuple(inside("context-00000.json", "index-00000.json"))
    store.refused = ""
    remove(manifest(*PARTS), store, FOLDER)
    assert store.keys() == []


def test_a_manifest_that_cannot_be_removed_keeps_its_parts() -> None:
    store = RecordingStore(*inside("meta.json", *PARTS), refused=f"{FOLDER}/meta.json")
    with pytest.raises(StoreError):
        remove(manifest(*PARTS), store, FOLDER)
    assert len(store.keys()) == 5


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (inside("meta.json", *PARTS), []),
        (inside(*PARTS), sorted(inside(*PARTS))),
        (inside("meta-2.json", *PARTS), []),
        (inside("notes.txt", "meta.yaml"), []),
        (["step_0000000003-2/a.blocks"], ["step_0000000003-2/a.blocks"]),
        (["step_12345678901/a.blocks"], ["step_12345678901/a.blocks"]),
        (["step_3/a.blocks", "step_000000000a/a.blocks", "step_0000000003x/a.blocks"], []),
        (["step_0000000003/sub/a.blocks", "step_0000000003/sub/index-00000.json"], []),
        (["journal/0001.jsonl", "attempts/0001.json", "other/model.safetensors"], []),
        (["step_0000000003/.blocks", "step_0000000003/index-.json", "step_0000000003/a.blocks.bak"], []),
        (
            [*inside("meta.json", *PARTS), "step_0000000003-2/model.safetensors"],
            ["step_0000000003-2/model.safetensors"],
        ),
    ],
)
def test_orphans_are_our_parts_in_folders_without_a_manifest(keys: list[str], expected: list[str]) -> None:
    assert list(orphans(RecordingStore(*keys))) == expected


def test_parts_beside_a_manifest_that_became_a_folder_are_no_orphans() -> None:
    store = RecordingStore(*inside(*PARTS), "step_0000000004/a.blocks")
    store._disk.mkdir(f"root/{FOLDER}/meta.json")
    assert orphans(store) == ("step_0000000004/a.blocks",)
    store.sweep()
    assert orphans(store) == ("step_0000000004/a.blocks",)


def test_a_discard_takes_the_manifest_first_and_the_folder_alone() -> None:
    store = RecordingStore(*inside("a.blocks", "meta.json", "z.json"), "step_0000000003-2/meta.json")
    discard(store, FOLDER)
    assert store.deleted == inside("meta.json", "a.blocks", "z.json")
    assert store.keys() == ["step_0000000003-2/meta.json"]
    discard(store, "step_0000000099")


def test_the_root_of_the_task_stays_when_its_last_checkpoint_goes() -> None:
    store = RecordingStore(*inside("meta.json"))
    remove(manifest(), store, FOLDER)
    store.put("step_0000000004/meta.json", [b""])
    assert store.keys() == ["step_0000000004/meta.json"]
