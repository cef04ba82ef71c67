"""Removal takes the manifest first and only what is ours; orphans are parts that no manifest names."""

from __future__ import annotations

import pytest

from mementum.errors import StoreError
from mementum.execute.remove import clear, clear_outdated, discard, orphans, outdated, refusal
from mementum.format import index
from mementum.format import manifest as manifests
from mementum.records import DataFile, Granularity, Health, Index, Manifest, StoredFile
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk
from removal import remove

FOLDER = "step_0000000003"
INDEX = "index-00000.json"
PARTS = ("model.safetensors", "optimizer.blocks", INDEX, "context-00000.json")
SECOND = ("model.safetensors", "optimizer-2.blocks", "index-00000-2.json", "context-00000.json")


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


def manifest(*names: str, id: str = "c1", generation: int = 1) -> Manifest:
    return Manifest(
        id=id,
        generation=generation,
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


def filled(*names: str, **written: Manifest) -> RecordingStore:
    """A folder with these files, and manifests by the names `meta` and `meta_2`."""
    store = RecordingStore(*inside(*names))
    for name, each in written.items():
        store.put(f"{FOLDER}/{name.replace('_', '-')}.json", [manifests.render(each)])
    return store


def inside(*names: str) -> list[str]:
    return [f"{FOLDER}/{name}" for name in names]


def test_the_manifest_goes_first_and_nothing_is_left() -> None:
    store = filled(*PARTS, meta=manifest(*PARTS))
    store.put("step_0000000004/meta.json", [b"x"])
    assert remove(manifest(*PARTS), store, FOLDER) is None
    assert store.deleted == inside("meta.json", "model.safetensors", "optimizer.blocks", "context-00000.json", INDEX)
    assert store.keys() == ["step_0000000004/meta.json"]


def test_what_somebody_else_put_there_stays() -> None:
    mine = ("notes.txt", "x.safetensors", "my.blocks", "index-00001.json")
    store = filled(*PARTS, *mine, meta=manifest(*PARTS))
    assert remove(manifest(*PARTS), store, FOLDER) is None
    assert sorted(store.keys()) == sorted(inside(*mine))
    assert orphans(store) == tuple(inside("index-00001.json"))  # the one name that is ours in every run


def test_a_removal_that_was_cut_is_finished_by_a_sweep() -> None:
    store = filled(*PARTS, meta=manifest(*PARTS))
    store.refused = f"{FOLDER}/{INDEX}"
    with pytest.raises(StoreError):
        remove(manifest(*PARTS), store, FOLDER)
    left = inside(INDEX)
    assert store.keys() == left
    store.refused = ""
    assert remove(manifest(*PARTS), store, FOLDER) is None
    assert store.keys() == left  # without a manifest it could be what a later attempt is writing
    assert orphans(store) == tuple(left)
    clear(store, orphans(store))
    assert store.keys() == []


def test_a_manifest_that_cannot_be_removed_keeps_its_parts() -> None:
    store = filled(*PARTS, meta=manifest(*PARTS))
    store.refused = f"{FOLDER}/meta.json"
    with pytest.raises(StoreError):
        remove(manifest(*PARTS), store, FOLDER)
    assert len(store.keys()) == 5


def test_another_checkpoint_in_the_folder_stays() -> None:
    """Who was superseded and stood still; the later attempt has gone back and saved the same step again."""
    store = filled(*PARTS, meta=manifest(*PARTS, id="c2"))
    wrong = f"{FOLDER}/meta.json is not the manifest of c1"
    assert refusal(manifest(*PARTS), store, FOLDER) == wrong
    assert remove(manifest(*PARTS), store, FOLDER) == wrong
    assert store.deleted == []
    assert refusal(manifest(*PARTS, id="c2"), store, FOLDER) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_a_manifest_whose_end_rotted_is_still_known_by_its_id(damaged: bool) -> None:
    store = RecordingStore(*inside(*PARTS))
    data = manifests.render(manifest(*PARTS))
    store.put(f"{FOLDER}/meta.json", [data[:-5] if damaged else data])
    assert remove(manifest(*PARTS), store, FOLDER) is None
    assert store.keys() == []


def test_lower_generations_go_first_then_the_parts_of_both() -> None:
    """A settling was killed before it had removed anything."""
    first, second = manifest(*PARTS), manifest(*SECOND, generation=2)
    store = filled(*{*PARTS, *SECOND}, meta=first, meta_2=second)
    assert remove(second, store, FOLDER) is None
    assert store.deleted[:2] == inside("meta.json", "meta-2.json")
    assert sorted(store.deleted[-2:]) == inside("index-00000-2.json", INDEX)
    assert store.keys() == []


@pytest.mark.parametrize("listed", [1, 2])
def test_whatever_generation_the_catalog_knows_all_goes(listed: int) -> None:
    second = manifest(*SECOND, generation=2)
    store = filled(*SECOND, meta_2=second)
    assert remove(second if listed == 2 else manifest(*PARTS), store, FOLDER) is None
    assert store.keys() == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (inside("meta.json", *PARTS), []),
        (inside(*PARTS), sorted(inside(*PARTS))),
        (inside("meta-2.json", *PARTS), []),
        (inside("meta-2.json", *SECOND), []),
        (inside(*SECOND), sorted(inside(*SECOND))),
        (inside("model.frozen.safetensors", "x.frozen.safetensors"), inside("model.frozen.safetensors")),
        (inside("optimizer-00002.blocks", "optimizer-00002-3.blocks"), None),
        (inside("optimizer-1.blocks", "optimizer-02.blocks", "optimizer-x.blocks", "other.blocks"), []),
        (inside("x.safetensors", "model-2.safetensors", "model.safetensors.bak"), []),
        (inside("notes.txt", "meta.yaml"), []),
        (["step_0000000003-2/optimizer.blocks"], ["step_0000000003-2/optimizer.blocks"]),
        (["step_12345678901/optimizer.blocks"], ["step_12345678901/optimizer.blocks"]),
        (["step_3/optimizer.blocks", "step_000000000a/optimizer.blocks", "step_0000000003x/optimizer.blocks"], []),
        (["step_0000000003/sub/optimizer.blocks", "step_0000000003/sub/index-00000.json"], []),
        (["journal/0001.jsonl", "attempts/0001.json", "other/model.safetensors"], []),
        (["step_0000000003/.blocks", "step_0000000003/index-.json", "step_0000000003/a.blocks.bak"], []),
        (
            [*inside("meta.json", *PARTS), "step_0000000003-2/model.safetensors"],
            ["step_0000000003-2/model.safetensors"],
        ),
    ],
)
def test_orphans_are_our_parts_in_folders_without_a_manifest(keys: list[str], expected: list[str] | None) -> None:
    assert list(orphans(RecordingStore(*keys))) == (sorted(keys) if expected is None else expected)


def described(*names: str) -> bytes:
    return index.render(
        Index(rank=0, files=tuple(DataFile(name=name, size=0, blocks=()) for name in names), tensors=())
    )


def test_weights_of_other_names_are_known_by_the_index_beside_them() -> None:
    store = RecordingStore(*inside("actor.safetensors", "critic.safetensors", "mine.safetensors"))
    assert orphans(store) == ()
    store.put(f"{FOLDER}/index-00000.json", [described("actor.safetensors")])
    assert orphans(store) == tuple(inside("actor.safetensors", "index-00000.json"))


def test_weights_of_other_names_are_known_by_other_manifests_of_the_task() -> None:
    """A save that was killed before its index."""
    store = RecordingStore(*inside("actor.safetensors", "actor.frozen.safetensors", "mine.safetensors"))
    store.put("step_0000000002/meta.json", [manifests.render(manifest("actor.safetensors", "optimizer.blocks"))])
    assert orphans(store) == tuple(inside("actor.frozen.safetensors", "actor.safetensors"))


def test_an_index_that_cannot_be_read_names_nothing() -> None:
    store = RecordingStore(*inside("actor.safetensors"))
    store.put(f"{FOLDER}/index-00000.json", [described("actor.safetensors")[:-9]])
    assert orphans(store) == tuple(inside("index-00000.json"))


FIRST_OF_TWO, SECOND_OF_TWO = manifest(*PARTS), manifest(*SECOND, generation=2)
BOTH = tuple(sorted({*PARTS, *SECOND}))


@pytest.mark.parametrize(
    ("names", "written", "expected"),
    [
        (PARTS, {"meta": FIRST_OF_TWO}, ()),
        (SECOND, {"meta_2": SECOND_OF_TWO}, ()),
        ((*PARTS, "optimizer-2.blocks"), {"meta": FIRST_OF_TWO}, ("optimizer-2.blocks",)),
        (BOTH, {"meta": FIRST_OF_TWO}, ("index-00000-2.json", "optimizer-2.blocks")),
        (
            BOTH,
            {"meta": FIRST_OF_TWO, "meta_2": SECOND_OF_TWO},
            ("meta.json", "index-00000.json", "optimizer.blocks"),
        ),
        ((*SECOND, "index-00000.json"), {"meta_2": SECOND_OF_TWO}, ("index-00000.json",)),
        ((*PARTS, "optimizer-3.blocks", "x.safetensors", "model-2.safetensors"), {"meta": FIRST_OF_TWO}, ()),
        (BOTH, {"meta": FIRST_OF_TWO, "meta_2": manifest(*SECOND, generation=2, id="c2")}, ()),
        (BOTH, {}, ()),
    ],
)
def test_outdated_is_what_a_settling_left(
    names: tuple[str, ...], written: dict[str, Manifest], expected: tuple[str, ...]
) -> None:
    store = filled(*names, **written)
    found = outdated(store)
    assert found == tuple(inside(*expected))
    clear_outdated(store, found)
    assert outdated(store) == ()
    assert set(inside(*names)) - set(store.keys()) == set(found) - set(inside("meta.json"))


def test_beside_a_manifest_that_cannot_be_read_nothing_is_outdated() -> None:
    store = RecordingStore(*inside(*BOTH))
    store.put(f"{FOLDER}/meta.json", [manifests.render(FIRST_OF_TWO)])
    store.put(f"{FOLDER}/meta-2.json", [manifests.render(SECOND_OF_TWO)[:-3]])
    assert outdated(store) == ()
    assert orphans(store) == ()


def test_the_manifest_that_holds_is_made_durable_before_the_old_one_goes() -> None:
    store = filled(*BOTH, meta=FIRST_OF_TWO, meta_2=SECOND_OF_TWO)
    clear_outdated(store, outdated(store))
    assert store.deleted == inside("meta-3.json", "meta.json", "optimizer.blocks", INDEX)


def test_parts_beside_a_manifest_that_became_a_folder_are_no_orphans() -> None:
    for parts, name in ((PARTS, "meta.json"), (SECOND, "meta-2.json")):
        store = RecordingStore(*inside(*parts), "step_0000000004/optimizer.blocks")
        store._disk.mkdir(f"root/{FOLDER}/{name}")
        assert orphans(store) == ("step_0000000004/optimizer.blocks",)
        store.sweep()
        assert orphans(store) == ("step_0000000004/optimizer.blocks",)


def test_a_discard_takes_the_manifest_first_and_the_folder_alone() -> None:
    store = RecordingStore(*inside("a.blocks", "meta.json", "z.json"), "step_0000000003-2/meta.json")
    discard(store, FOLDER)
    assert store.deleted == inside("meta.json", "a.blocks", "z.json")
    assert store.keys() == ["step_0000000003-2/meta.json"]
    discard(store, "step_0000000099")


def test_the_root_of_the_task_stays_when_its_last_checkpoint_goes() -> None:
    store = filled(meta=manifest())
    remove(manifest(), store, FOLDER)
    store.put("step_0000000004/meta.json", [b""])
    assert store.keys() == ["step_0000000004/meta.json"]
