"""A checkpoint is copied from one store to another: what is listed there is whole, and nothing is sent twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from copies import SIZE, content, folder_of, save, whole
from mementum.errors import KeyTaken, Superseded
from mementum.execute.halves import clear_halves
from mementum.execute.transfer import Owners
from mementum.lodging import know_frozen
from mementum.placing import Copied, Form, Uncopied, place
from mementum.records import Entry, Granularity
from mementum.recover.verify import read_manifest
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat, Store
from mementum.testing.simdisk import SimDisk

AT = folder_of(3)


class Linkless:
    """A store that cannot give an object a second name, as those of objects; it tells what is put and deleted."""

    def __init__(self) -> None:
        self._inner = LocalStore(SimDisk(), "far")
        self.told: list[str] = []
        self.lost = ""  # the name of an object whose answer is lost

    def put(self, key: str, chunks: Any) -> Stat:
        self.told.append(f"put {key}")
        stat = self._inner.put(key, chunks)
        if self.lost and key.endswith(self.lost):
            raise KeyTaken(key)
        return stat

    def delete(self, key: str) -> None:
        self.told.append(f"delete {key}")
        self._inner.delete(key)

    def __getattr__(self, name: str) -> Any:
        if name in ("link", "hold", "append", "taken"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.fixture
def near() -> LocalStore:
    return LocalStore(SimDisk(), "near")


def copied(entry: Entry, source: Store, target: Any, **wishes: Any) -> Copied | Uncopied:
    given: dict[str, Any] = {"require_newest": lambda: None, "pause": lambda: None, **wishes}
    return place(entry, source=source, target=target, **given)


def after(blocks: int) -> Callable[[], str | None]:
    """A reason to stop, after so many blocks."""
    left = iter(range(blocks))
    return lambda: None if next(left, None) is not None else "the run ends"


def test_what_is_copied_is_the_same_and_comes_in_its_order(near: LocalStore) -> None:
    entry, far = save(near, 3), Linkless()
    done = copied(entry, near, far)
    assert done == Copied(manifest=entry.manifest, folder=AT, sent=sum(file.size for file in entry.manifest.files))
    assert content(far) == content(near)
    assert [told.removeprefix(f"put {AT}/") for told in far.told] == [
        "placing-c3.json",
        "model.safetensors",
        "optimizer.blocks",
        "index-00000.json",
        "context-00000.json",
        "meta.json",
        f"delete {AT}/placing-c3.json",
    ]
    assert copied(entry, near, far) == Copied(manifest=entry.manifest, folder=AT, sent=0)


def test_a_half_copy_is_gone_on_with(near: LocalStore) -> None:
    entry, far = save(near, 3), Linkless()
    assert copied(entry, near, far, pause=after(1)) == Uncopied(reason="the run ends")
    assert set(content(far)) == {f"{AT}/placing-c3.json", f"{AT}/model.safetensors"}
    far.told.clear()
    done = copied(entry, near, far)
    assert isinstance(done, Copied)
    assert f"put {AT}/model.safetensors" not in far.told
    assert done.sent == sum(file.size for file in entry.manifest.files) - entry.manifest.files[0].size
    assert content(far) == content(near)


def test_another_ones_half_copy_is_cleared_first(near: LocalStore) -> None:
    far = Linkless()
    older = save(near, 3, id="cold")
    copied(older, near, far, pause=after(1))
    again = LocalStore(SimDisk(), "again")
    entry = save(again, 3, id="cnew", seed=9)
    assert isinstance(copied(entry, again, far), Copied)
    assert content(far) == content(again)


def test_another_ones_whole_copy_of_the_step_stays(near: LocalStore) -> None:
    far = Linkless()
    copied(save(near, 3, id="cold"), near, far)
    again = LocalStore(SimDisk(), "again")
    done = copied(save(again, 3, id="cnew", seed=9), again, far)
    assert isinstance(done, Copied)
    assert done.folder == f"{AT}-2"
    assert (whole(far, AT).id, whole(far, f"{AT}-2").id) == ("cold", "cnew")
    assert copied(Entry(manifest=done.manifest, folder=AT), again, far) == replace(done, sent=0)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json"])
@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_source_is_never_placed(near: LocalStore, name: str, how: str) -> None:
    entry, far = save(near, 3), Linkless()
    data = bytearray(near.get(f"{AT}/{name}"))
    data[len(data) // 2] ^= 1
    near.delete(f"{AT}/{name}")
    if how == "flipped":
        near.put(f"{AT}/{name}", [bytes(data)])
    done = copied(entry, near, far)
    assert isinstance(done, Uncopied)
    assert done.damage is not None
    assert done.damage.key == f"{AT}/{name}"
    assert content(far) == {}


@pytest.mark.parametrize("name", ["meta.json", "model.safetensors", "index-00000.json"])
def test_a_lost_answer_is_read_back(near: LocalStore, name: str) -> None:
    entry, far = save(near, 3), Linkless()
    far.lost = name
    assert isinstance(copied(entry, near, far), Copied)
    assert whole(far, AT).id == "c3"
    assert content(far) == content(near)


def test_a_manifest_of_somebody_else_is_never_taken_for_ours(near: LocalStore) -> None:
    entry, far = save(near, 3), Linkless()

    def somebody() -> None:
        far._inner.put(f"{AT}/meta.json", [b"theirs"])

    with pytest.raises(KeyTaken):
        copied(entry, near, far, require_newest=somebody)
    assert bytes(far.get(f"{AT}/meta.json")) == b"theirs"


def test_who_was_superseded_places_no_manifest(near: LocalStore) -> None:
    entry, far = save(near, 3), Linkless()

    def superseded() -> None:
        raise Superseded("t", attempt=1, by=2, host="other", pid=7)

    with pytest.raises(Superseded):
        copied(entry, near, far, require_newest=superseded)
    assert f"{AT}/meta.json" not in content(far)


@pytest.mark.parametrize(
    ("levels", "left", "granularity"),
    [
        ((0, 1), {"model.safetensors", "optimizer.blocks"}, Granularity.WEIGHTS_AND_OPTIMIZER),
        ((0, 2), {"model.safetensors"}, Granularity.WEIGHTS),
        ((1, 2), {"optimizer.blocks"}, Granularity.ESSENTIALS),
    ],
)
def test_levels_that_do_not_go_there(near: LocalStore, levels: Any, left: set[str], granularity: Granularity) -> None:
    entry, far = save(near, 3), Linkless()
    done = copied(entry, near, far, form=Form(levels=levels))
    assert isinstance(done, Copied)
    assert (done.manifest.levels, done.manifest.granularity, done.manifest.generation) == (levels, granularity, 2)
    names = {key.removeprefix(f"{AT}/") for key in content(far)}
    assert names - {"meta-2.json", "index-00000-2.json", "context-00000.json", "context-00000-2.json"} == left
    assert whole(far, AT) == done.manifest


def test_optimizer_state_in_the_codec_of_the_place(near: LocalStore) -> None:
    entry, far, back = save(near, 3), Linkless(), LocalStore(SimDisk(), "back")
    done = copied(entry, near, far, form=Form(codec="zstd:1"))
    assert isinstance(done, Copied)
    sizes = {file.name: file.size for file in done.manifest.files}
    assert sizes["optimizer-2.blocks"] < SIZE // 10
    assert whole(far, AT) == done.manifest
    again = copied(Entry(manifest=done.manifest, folder=AT), far, back, form=Form(codec="raw"))
    assert isinstance(again, Copied)
    assert bytes(back.get(f"{AT}/optimizer-3.blocks")) == bytes(near.get(f"{AT}/optimizer.blocks"))
    same = copied(Entry(manifest=done.manifest, folder=AT), far, LocalStore(SimDisk(), "x"), form=Form(codec="zstd:1"))
    assert isinstance(same, Copied)
    assert same.manifest == done.manifest  # it is in that codec already


def test_frozen_weights_go_there_once(near: LocalStore) -> None:
    far, owners = Linkless(), Owners()
    first, second = save(near, 3, frozen=1), save(near, 4, frozen=1)
    copied(first, near, far, owners=owners)
    done = copied(second, near, far, owners=owners)
    assert isinstance(done, Copied)
    frozen = next(file for file in done.manifest.files if "frozen" in file.name)
    assert (frozen.folder, frozen.size) == (AT, SIZE)
    assert f"{folder_of(4)}/model.frozen.safetensors" not in content(far)
    assert whole(far, folder_of(4)) == done.manifest
    back = LocalStore(SimDisk(), "back")
    assert isinstance(copied(Entry(manifest=done.manifest, folder=folder_of(4)), far, back), Copied)
    assert bytes(back.get(f"{folder_of(4)}/model.frozen.safetensors")) == bytes(
        near.get(f"{AT}/model.frozen.safetensors")
    )


def test_a_later_process_learns_which_frozen_weights_are_there(near: LocalStore) -> None:
    far = Linkless()
    done = copied(save(near, 3, frozen=1), near, far, owners=Owners())
    assert isinstance(done, Copied)
    owners = Owners()
    know_frozen(far, AT, done.manifest, owners)  # type: ignore[arg-type]
    second = copied(save(near, 4, frozen=1), near, far, owners=owners)
    assert isinstance(second, Copied)
    know_frozen(far, folder_of(4), second.manifest, owners)  # type: ignore[arg-type]
    third = copied(save(near, 5, frozen=1), near, far, owners=owners)
    assert isinstance(third, Copied)
    folders = {file.folder for file in third.manifest.files if "frozen" in file.name}
    assert folders == {AT}  # the owner, never another that only names it


def test_where_links_are_they_are_taken(near: LocalStore) -> None:
    far, owners = LocalStore(SimDisk(), "far"), Owners()
    copied(save(near, 3, frozen=1), near, far, owners=owners)
    entry = save(near, 4, frozen=1)
    done = copied(entry, near, far, owners=owners)
    assert isinstance(done, Copied)
    assert done.manifest == entry.manifest
    assert done.sent == sum(file.size for file in entry.manifest.files) - SIZE
    assert content(far) == content(near)


def test_an_owner_that_was_removed_there_withdraws_the_copy(near: LocalStore) -> None:
    far, owners = Linkless(), Owners()
    copied(save(near, 3, frozen=1), near, far, owners=owners)
    entry = save(near, 4, frozen=1)
    done = copied(entry, near, far, owners=owners, require_newest=lambda: far.delete(f"{AT}/meta.json"))
    assert done == Uncopied(reason=f"the checkpoint in {AT}, whose files it needs, was removed there")
    assert not any(key.startswith(f"{folder_of(4)}/meta") for key in content(far))
    assert isinstance(copied(entry, near, far, owners=owners), Copied)
    assert whole(far, folder_of(4)).files == entry.manifest.files


def test_a_checkpoint_that_is_compressed_meanwhile_is_copied_as_it_is_then(near: LocalStore) -> None:
    entry, far = save(near, 3), Linkless()
    compressed = LocalStore(SimDisk(), "compressed")
    made = copied(entry, near, compressed, form=Form(codec="zstd:1"))
    assert isinstance(made, Copied)

    class Compressing:
        """The next generation comes when the optimizer's state is first read."""

        done = False

        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            if key.endswith("/optimizer.blocks") and not self.done:
                self.done = True
                for name in ("optimizer-2.blocks", "index-00000-2.json", "meta-2.json"):
                    near.put(f"{AT}/{name}", [bytes(compressed.get(f"{AT}/{name}"))])
                for name in ("meta.json", "optimizer.blocks", "index-00000.json"):
                    near.delete(f"{AT}/{name}")
            return near.get(key, start, size)

        def __getattr__(self, name: str) -> Any:
            return getattr(near, name)

    source: Any = Compressing()
    done = copied(entry, source, far)
    assert done == Copied(manifest=made.manifest, folder=AT, sent=made.manifest.size)
    assert content(far) == content(near)
    found = read_manifest(near, AT)
    assert found == made.manifest


def test_half_copies_that_nobody_wants_are_cleared(near: LocalStore) -> None:
    far = Linkless()
    for step in (3, 4):
        copied(save(near, step), near, far, pause=after(1))
    copied(save(near, 5), near, far)
    far.put(f"{folder_of(5)}/placing-c5.json", [b"{}"])  # its put came back after the manifest
    store: Any = far
    assert clear_halves(store, lambda id: id == "c4") == (AT,)
    assert set(content(far)) == {
        f"{folder_of(4)}/placing-c4.json",
        f"{folder_of(4)}/model.safetensors",
        *(key for key in content(near) if key.startswith(folder_of(5))),
    }
