"""Changed and cut bytes: wherever one lies, the checkpoint is never accepted, and nothing live is touched."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import CODEC, FILES, TASK, damage_of, folders_of, live, things, tiny_run

import mementum
from mementum.errors import NothingToResume, UnknownFormat
from mementum.events import PassedOver
from mementum.format import manifest as manifests
from mementum.records import Damage, Entry, record
from mementum.recover.verify import read_manifest
from mementum.resuming import newest_whole
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from trips import Told

CUTS = 10  # one of so many changes cuts the file off instead
WHOLE = 40  # changes that go through the front door


@record
class Change:
    """A byte of a file that is another one, or, with `flip` 0, the place at which the file now ends."""

    name: str
    at: int
    flip: int

    def apply(self, data: bytes) -> bytes:
        if not self.flip:
            return data[: self.at]
        return data[: self.at] + bytes([data[self.at] ^ self.flip]) + data[self.at + 1 :]


def changes(folder: Path, count: int, rng: random.Random) -> Iterator[Change]:
    """`count` in all, spread evenly over the files, and in each over all of its bytes."""
    for number in range(count):
        name = FILES[number % len(FILES)]
        size = (folder / name).stat().st_size
        row, rows = number // len(FILES), -(-count // len(FILES))
        begin, end = row * size // rows, max(row * size // rows + 1, (row + 1) * size // rows)
        flip = 0 if row % CUTS == 0 else rng.randrange(1, 256)
        yield Change(name=name, at=rng.randrange(begin, min(end, size)), flip=flip)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one checkpoint. Whoever changes it changes it back."""
    root = tmp_path_factory.mktemp("one") / "root"
    tiny_run(root)
    return root


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two") / "root"
    tiny_run(root, 2)
    return root


def test_the_tiny_checkpoint_has_all_that_can_be_changed(one: Path) -> None:
    (folder,) = folders_of(one)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    index = (folder / "index-00000.json").read_text()
    assert '"planes:4+zstd:1"' in index
    assert index.count('"raw"') >= 2
    header = (folder / "model.safetensors").read_bytes()[:4096]
    assert header.count(b" ") > 1000
    assert damage_of(folder) == ()


def accepted(folder: Path, count: int, rng: random.Random) -> list[Change]:
    """The changes that a deep verification or a load did not notice."""
    store = LocalStore(PosixDisk(), str(folder.parent))
    manifest = read_manifest(store, folder.name)
    assert not isinstance(manifest, Damage)
    entry = Entry(manifest=manifest, folder=folder.name)
    originals = {name: (folder / name).read_bytes() for name in FILES}
    missed: list[Change] = []
    for change in changes(folder, count, rng):
        (folder / change.name).write_bytes(change.apply(originals[change.name]))
        marks: list[str] = []
        try:
            newest_whole([entry], store, emit=lambda event: None, mark=lambda id, what, into=marks: into.append(id))
            missed.append(change)
        except NothingToResume:
            if not damage_of(folder) or marks != [manifest.id]:
                missed.append(change)
        (folder / change.name).write_bytes(originals[change.name])
    assert damage_of(folder) == ()
    return missed


def test_two_thousand_changes_are_all_noticed(one: Path, rng: random.Random) -> None:
    assert accepted(folders_of(one)[0], 2_000, rng) == []


@pytest.mark.soak
def test_ten_thousand_changes_are_all_noticed(one: Path, rng: random.Random) -> None:
    assert accepted(folders_of(one)[0], 10_000, rng) == []


def test_every_byte_of_a_manifest_and_of_compressed_blocks_counts(one: Path, rng: random.Random) -> None:
    (folder,) = folders_of(one)
    data = (folder / "meta.json").read_bytes()
    for at in range(len(data)):
        with pytest.raises(UnknownFormat):
            manifests.parse(Change(name="meta.json", at=at, flip=rng.randrange(1, 256)).apply(data))
    data = (folder / "optimizer.blocks").read_bytes()
    for at in range(len(data)):
        changed = Change(name="optimizer.blocks", at=at, flip=rng.randrange(1, 256))
        (folder / changed.name).write_bytes(changed.apply(data))
        assert damage_of(folder), changed
    (folder / "optimizer.blocks").write_bytes(data)


@pytest.mark.parametrize("catalog", ["kept", "deleted"])
def test_the_only_checkpoint_is_refused_and_nothing_live_changes(
    one: Path, fast_path: Path, rng: random.Random, catalog: str
) -> None:
    given = things(9)
    before = live(given)
    for number, change in enumerate(changes(folders_of(one)[0], WHOLE, rng)):
        root = Path(shutil.copytree(one, fast_path / str(number)))
        if catalog == "deleted":
            for path in root.glob("catalog.db*"):
                path.unlink()
        changed = folders_of(root)[0] / change.name
        changed.write_bytes(change.apply(changed.read_bytes()))
        kept = {path: path.read_bytes() for path in changed.parent.iterdir()}
        with pytest.raises(NothingToResume) as caught:
            mementum.open_run(root, task=TASK, codec=CODEC, **given)
        assert change.name in caught.value.message
        assert live(given) == before, change
        assert {path: path.read_bytes() for path in changed.parent.iterdir()} == kept


def test_a_changed_checkpoint_is_passed_over_for_an_older_one(
    one: Path, two: Path, fast_path: Path, rng: random.Random
) -> None:
    older = things(9)
    mementum.open_run(shutil.copytree(one, fast_path / "one"), task=TASK, resume="must", **older).close()
    expected = live(older)
    for number, change in enumerate(changes(folders_of(two)[1], WHOLE, rng)):
        root = Path(shutil.copytree(two, fast_path / str(number)))
        changed = folders_of(root)[1] / change.name
        changed.write_bytes(change.apply(changed.read_bytes()))
        told, given = Told(), things(10)
        run = mementum.open_run(root, task=TASK, on_event=told, **given)
        assert run.resumed is not None
        assert run.resumed.step == 1
        assert live(given) == expected, change
        run.close()
        assert any(change.name in f"{event.id} {event.what}" for event in told.of(PassedOver)), change
        assert sorted(path.name for path in changed.parent.iterdir()) == sorted(FILES)
