"""A copy that was begun before, or is being made by somebody else, or stands there with less."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from copies import content, folder_of, save, whole
from deltas import Moving
from mementum.errors import KeyTaken, Unreachable
from mementum.execute.halves import clear_halves
from mementum.execute.transfer import Owners
from mementum.placing import AS_IT_IS, Copied, Form, Uncopied, place
from mementum.pruning import sweep
from mementum.records import Damage, Entry, Manifest
from mementum.recover.verify import read_manifest
from mementum.storage.around import Around
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat, Store
from mementum.testing.simdisk import SimDisk
from mendings import flip

AT = folder_of(3)
PACKED = Form(codec="zstd:1")


class Meeting(Around):
    """A tier in which something happens right before the first manifest is put."""

    def __init__(self, inner: Store, happens: Any) -> None:
        super().__init__(inner)
        self._happens = happens

    def put(self, key: str, chunks: Any) -> Stat:
        if "/meta" in key and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return super().put(key, chunks)


@pytest.fixture
def near() -> LocalStore:
    return LocalStore(SimDisk(), "near")


@pytest.fixture
def far() -> LocalStore:
    return LocalStore(SimDisk(), "far")


def copied(entry: Entry, source: Store, target: Store, form: Form = AS_IT_IS) -> Copied | Uncopied:
    return place(entry, source=source, target=target, form=form, require_newest=lambda: None, pause=lambda: None)


def died() -> None:
    raise Unreachable("meta.json", "no connection")


@pytest.mark.parametrize(("first", "second"), [("zstd:1", "zstd:3"), ("zstd:3", "zstd:2"), ("zstd:1", "planes+zstd:1")])
def test_another_codec_than_at_the_first_try(near: LocalStore, far: LocalStore, first: str, second: str) -> None:
    """Indexes of one size tell of other blocks."""
    entry = save(near, 3)
    with pytest.raises(Unreachable):
        copied(entry, near, Meeting(far, died), Form(codec=first))
    done = copied(entry, near, far, Form(codec=second))
    assert isinstance(done, Copied)
    assert whole(far, AT) == done.manifest
    assert not any("placing" in key for key in content(far))


def test_a_source_that_was_rewritten_since_the_first_try(near: LocalStore, far: LocalStore) -> None:
    """What was coded on the way there has the name that the root's own rewriting gives, and other bytes."""
    entry, rewritten = save(near, 3), LocalStore(SimDisk(), "rewritten")
    with pytest.raises(Unreachable):
        copied(entry, near, Meeting(far, died), PACKED)
    made = copied(entry, near, rewritten, Form(codec="zstd:19"))
    assert isinstance(made, Copied)
    far.replace(f"{AT}/optimizer-2.blocks", [bytes(rewritten.get(f"{AT}/optimizer-2.blocks").nbytes)])
    done = copied(Entry(manifest=made.manifest, folder=AT), rewritten, far)
    assert isinstance(done, Copied)
    assert whole(far, AT) == made.manifest


@pytest.mark.parametrize("form", [PACKED, AS_IT_IS, Form(levels=(0, 2))])
@pytest.mark.parametrize("other", [PACKED, AS_IT_IS, Form(codec="zstd:3"), Form(levels=(0,))])
def test_two_that_copy_one_checkpoint(near: LocalStore, far: LocalStore, form: Form, other: Form) -> None:
    """The second comes when the first is about to put its manifest, and knows nothing of it."""
    entry = save(near, 3)
    theirs: list[Copied | Uncopied] = []
    try:
        done = copied(entry, near, Meeting(far, lambda: theirs.append(copied(entry, near, far, other))), form)
    except KeyTaken:  # both have a manifest of the same generation
        done = Uncopied(reason="taken")
    assert isinstance(theirs[0], Copied)
    assert isinstance(read_manifest(far, AT), type(entry.manifest))
    stands = whole(far, AT)
    assert stands in (theirs[0].manifest, done.manifest if isinstance(done, Copied) else None)


def test_one_whose_half_copy_is_taken_away_withdraws_it(near: LocalStore, far: LocalStore) -> None:
    entry = save(near, 3)
    done = copied(entry, near, Meeting(far, lambda: clear_halves(far, lambda id: False)))
    assert done == Uncopied(
        reason="another process copies it there at this moment, or takes its half copy away", damage=None
    )
    assert content(far) == {}
    assert isinstance(copied(entry, near, far), Copied)


def test_levels_that_a_place_has_no_more_come_back(near: LocalStore, far: LocalStore) -> None:
    entry = save(near, 3, frozen=1)
    less = copied(entry, near, far, Form(levels=(2,)))
    assert isinstance(less, Copied)
    back = copied(entry, near, far)
    assert isinstance(back, Copied)
    assert (back.manifest.levels, back.manifest.generation) == ((0, 1, 2), less.manifest.generation + 1)
    assert back.manifest.granularity == entry.manifest.granularity
    assert whole(far, AT) == back.manifest
    assert {key.removeprefix(f"{AT}/") for key in content(far)} == {
        f"meta-{back.manifest.generation}.json",
        *(file.name for file in back.manifest.files),
    }
    assert copied(entry, near, far) == Copied(manifest=back.manifest, folder=AT, sent=0)


def test_fewer_levels_take_none_away(near: LocalStore, far: LocalStore) -> None:
    entry = save(near, 3)
    copied(entry, near, far)
    assert copied(entry, near, far, Form(levels=(0,))) == Copied(manifest=entry.manifest, folder=AT, sent=0)


def test_a_packed_source_brings_levels_back_beside_packed_ones(near: LocalStore, far: LocalStore) -> None:
    """Both have a file of one name with other bytes."""
    entry, packed = save(near, 3), LocalStore(SimDisk(), "packed")
    made = copied(entry, near, packed, PACKED)
    less = copied(entry, near, far, Form(levels=(1, 2), codec="zstd:3"))
    assert isinstance(made, Copied)
    assert isinstance(less, Copied)
    back = copied(Entry(manifest=made.manifest, folder=AT), packed, far)
    assert isinstance(back, Copied)
    assert back.manifest.levels == (0, 1, 2)
    assert whole(far, AT) == back.manifest


def test_levels_come_back_to_what_is_removed_meanwhile(near: LocalStore, far: LocalStore) -> None:
    entry = save(near, 3)
    copied(entry, near, far, Form(levels=(2,)))
    done = copied(entry, near, Meeting(far, lambda: far.delete(f"{AT}/meta-2.json")))
    assert done == Uncopied(reason="it was removed there meanwhile")
    assert read_manifest(far, AT) != entry.manifest
    assert not any("/meta" in key for key in content(far))


@pytest.mark.parametrize("when", ["before", "while"])
def test_what_is_removed_on_its_way_is_not_damaged(near: LocalStore, far: LocalStore, when: str) -> None:
    entry = save(near, 3)

    def remove() -> None:
        for key in (f"{AT}/meta.json", *content(near)):
            near.delete(key)

    class Removing(Around):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            if key.endswith("/optimizer.blocks"):
                remove()
            return near.get(key, start, size)

    if when == "before":
        remove()
    assert copied(entry, Removing(near), far) == Uncopied(reason="it was removed meanwhile")
    assert content(far) == {}


def test_what_is_missing_is_told_with_its_key_once(near: LocalStore, far: LocalStore) -> None:
    entry = save(near, 3)
    near.delete(f"{AT}/index-00000.json")
    done = copied(entry, near, far)
    assert isinstance(done, Uncopied)
    assert done.reason == f"{AT}/index-00000.json: it is missing"
    assert done.damage is not None


class Killed(BaseException):
    """Ends a process between two lines."""


@pytest.mark.parametrize("end", ["", "killed"])
def test_frozen_weights_of_a_copy_that_never_came_are_not_named(near: LocalStore, far: LocalStore, end: str) -> None:
    """A place without links: a sweep takes what the half copy has brought."""
    owners, (one, two, three) = Owners(), (save(near, step, frozen=7) for step in (1, 2, 3))

    class Ending(Around):
        def put(self, key: str, chunks: Any) -> Stat:
            stat = super().put(key, chunks)
            if end and "/meta" in key:
                raise Killed
            return stat

    def sent(entry: Entry, target: Store) -> Copied:
        done = place(entry, source=near, target=target, owners=owners, require_newest=lambda: None, pause=lambda: None)
        assert isinstance(done, Copied), done
        return done

    with pytest.raises(Unreachable):
        sent(one, Meeting(far, died))
    if end:
        with pytest.raises(Killed):
            sent(two, Ending(far))
    else:
        sent(two, Ending(far))
    assert clear_halves(far, lambda id: False) == (folder_of(1),)
    sweep(far, emit=lambda event: None)
    assert whole(far, folder_of(2)) == two.manifest
    done = sent(three, Around(far))
    named = {file.folder for file in done.manifest.files if file.name == "model.frozen.safetensors"}
    assert named == {None if end else folder_of(2)}  # of the killed one's copy a later start learns
    assert whole(far, folder_of(3)) == done.manifest


def test_damage_of_what_was_compressed_meanwhile_is_told_and_not_sent_again(far: LocalStore, rng: Random) -> None:
    moving, sent = Moving(rng), list[int]()
    entry, key = moving.save(1), f"{folder_of(1)}/optimizer-2.blocks"
    after = moving.settle(1, codec="planes+zstd:1")
    assert isinstance(after, Manifest)
    flip(moving.store, key)
    done = place(
        entry, source=moving.store, target=far, require_newest=lambda: None, pause=lambda: None, tell=sent.append
    )
    assert done == Uncopied(
        reason=f"{key}: the block at 0 does not match its digest",
        damage=Damage(key=key, what="the block at 0 does not match its digest"),
    )
    weights = next(file.size for file in after.files if file.name == "model.safetensors")
    assert sent == [weights] * 2  # for each generation, and no third time
    assert content(far) == {}
