"""Tests of half copies and their marks: of two writers at least one sees the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from copies import content, folder_of, save
from mementum.errors import StoreError
from mementum.execute.halves import MARKED, Half, TakenOver, clear_folder, mark_name, marks
from mementum.storage.around import Around
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

AT = folder_of(3)


@pytest.fixture
def far() -> LocalStore:
    return LocalStore(SimDisk(), "far")


def names(store: LocalStore) -> set[str]:
    return {key.removeprefix(f"{AT}/") for key in content(store)}


def test_who_takes_it_has_it(far: LocalStore) -> None:
    first, second = Half(far, AT, "c3"), Half(far, AT, "c3")
    assert first.take({"step": 3}) == {}
    assert first.is_ours()
    far.put(f"{AT}/a", [b"12"])
    assert second.take({"step": 3}) == {"a": 2}
    assert (first.is_ours(), second.is_ours()) == (False, True)
    assert json.loads(bytes(far.get(first.mark)))["step"] == 3
    with pytest.raises(TakenOver, match="another process copies it there"):
        first.remove(["a"])
    second.remove(["a"])
    second.end()
    assert names(far) == set()
    assert not second.is_ours()


def test_a_mark_that_is_none_is_nobodys(far: LocalStore) -> None:
    half = Half(far, AT, "c3")
    far.put(half.mark, [b"[1"])
    assert not half.is_ours()
    far.replace(half.mark, [b"[1]"])
    assert not half.is_ours()


def test_two_checkpoints_never_share_a_folder(far: LocalStore) -> None:
    Half(far, AT, "cother").take({})
    with pytest.raises(TakenOver):
        Half(far, AT, "c3").take({})
    assert names(far) == {mark_name("cother")}


def test_what_a_manifest_names_is_not_taken_away(far: LocalStore) -> None:
    save(far, 3)
    half = Half(far, AT, "c3")
    half.take({})
    far.put(f"{AT}/optimizer-2.blocks", [b"1"])
    half.remove(names(far) - {mark_name("c3")})
    assert names(far) == {
        "meta.json", "model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json",
        mark_name("c3"),
    }  # fmt: skip
    assert not half.clear()
    assert "meta.json" in names(far)
    assert mark_name("c3") not in names(far)


@pytest.mark.parametrize("how", ["remove", "clear"])
def test_a_manifest_that_comes_while_its_files_go_is_withdrawn(far: LocalStore, how: str) -> None:
    save(far, 3)
    manifest = bytes(far.get(f"{AT}/meta.json"))
    far.delete(f"{AT}/meta.json")

    class Between(Around):
        """The other one's manifest comes with the first delete."""

        def delete(self, key: str) -> None:
            if key.endswith("index-00000.json"):
                far.put(f"{AT}/meta.json", [manifest])
            far.delete(key)

    half = Half(Between(far), AT, "c3")
    half.take({})
    if how == "remove":
        half.remove(["index-00000.json"])
        assert names(far) == {"model.safetensors", "optimizer.blocks", "context-00000.json", mark_name("c3")}
    else:
        assert half.clear()
        assert names(far) == set()


def test_whoever_takes_a_half_copy_away_is_seen(far: LocalStore) -> None:
    writer = Half(far, AT, "c3")
    writer.take({})
    far.put(f"{AT}/a", [b"1"])
    seen: list[bool] = []

    class Watched(Around):
        def delete(self, key: str) -> None:
            seen.append(writer.is_ours())
            far.delete(key)

    assert clear_folder(Watched(far), AT, names(far))
    assert seen == [False, False]
    assert names(far) == set()


def test_what_marks_it_goes_last(far: LocalStore) -> None:
    half = Half(far, AT, "c3")
    half.take({})
    far.put(f"{AT}/a", [b"1"])
    far.put(f"{AT}/z", [b"1"])

    class Dying(Around):
        def delete(self, key: str) -> None:
            if key.endswith("/z"):
                raise StoreError(key, "dead")
            far.delete(key)

    dying: Any = Dying(far)
    with pytest.raises(StoreError, match="dead"):
        clear_folder(dying, AT, names(far))
    assert names(far) == {"z", mark_name("c3")}


def test_names_of_marks() -> None:
    assert marks(["placing-c3.json", "placing-C3.json", "meta.json"]) == ["c3"]
    assert MARKED.fullmatch(mark_name("c3")) is not None
