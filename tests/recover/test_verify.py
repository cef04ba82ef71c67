"""Whatever is done to a file of a checkpoint is found before anything is loaded, as data and never as an exception."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mementum.errors import NotReadableHere, StoreError
from mementum.execute.capture import BlockingCapture
from mementum.execute.commit import commit
from mementum.execute.snapshot import Snapshot
from mementum.execute.write import write_parts
from mementum.format import context
from mementum.format.manifest import digest
from mementum.live.stateful import component_for
from mementum.records import Damage, Granularity, Health, Manifest, Save, StoredFile
from mementum.recover.load import Loaded, load
from mementum.recover.verify import read_manifest, verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

FOLDER, OTHER = "step_0000000003", "step_0000000004"
WEIGHTS, BLOCKS, INDEX, CONTEXT, META = FILES = (
    "model.safetensors",
    "optimizer.blocks",
    "index-00000.json",
    "context-00000.json",
    "meta.json",
)


def save(store: LocalStore, folder: str, seed: int) -> Manifest:
    """A checkpoint whose files have the same sizes whatever the seed."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(8, 4)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    state = {"m": torch.randn(50, generator=generator), "zeros": torch.zeros(9000, dtype=torch.uint8)}
    captured = BlockingCapture(codec="zstd:1").take(
        [component_for("model", model, dict), component_for("more", state, dict)]
    )
    assert captured is not None
    snapshot = Snapshot(
        id=f"c{seed}",
        seq=seed,
        step=seed,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        save=Save(reason="asked"),
        images=captured.images,
        context=lambda: context.render({"step": seed, "components": dict(captured.components)}),
        debug_info=(),
        metrics={},
        exactness=(),
        blocked_s=0.0,
        release=captured.release,
    )
    manifest = Manifest(
        id=snapshot.id,
        seq=seed,
        task="t",
        attempt=1,
        parent=None,
        step=seed,
        epoch=0,
        time=snapshot.time,
        reason="asked",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=write_parts(snapshot, store, folder),
    )
    return commit(manifest, store, folder)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("pristine")
    store = LocalStore(PosixDisk(), str(folder))
    manifest = save(store, FOLDER, 3)
    save(store, OTHER, 4)
    return folder, manifest


@pytest.fixture
def root(pristine: tuple[Path, Manifest], tmp_path: Path) -> Path:
    shutil.copytree(pristine[0], tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def manifest(pristine: tuple[Path, Manifest]) -> Manifest:
    return pristine[1]


def store_of(root: Path) -> LocalStore:
    return LocalStore(PosixDisk(), str(root))


# What may happen to a file.


def flip_first(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def flip_last(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 0x80]))


def flip_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def delete(path: Path) -> None:
    path.unlink()


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_folder_with_the_file_in_it(path: Path) -> None:
    data = path.read_bytes()
    become_a_folder(path)
    (path / path.name).write_bytes(data)


def become_a_link(path: Path) -> None:
    moved = path.parent.parent / path.name
    path.rename(moved)
    path.symlink_to(moved)


def become_that_of_another_checkpoint(path: Path) -> None:
    path.write_bytes((path.parent.parent / OTHER / path.name).read_bytes())


SAME_SIZE = (flip_first, flip_last, flip_middle, zero, become_that_of_another_checkpoint)
OTHER_SIZE = (truncate, empty, extend, delete, become_a_link)
OTHER_SIZE += (become_a_folder, become_a_folder_with_the_file_in_it)


def found(root: Path, *, deep: bool) -> tuple[Damage, ...]:
    """As whoever verifies a folder does it: the manifest that lies there, then what it names."""
    store = store_of(root)
    read = read_manifest(store, FOLDER)
    return (read,) if isinstance(read, Damage) else verify(store, FOLDER, read, deep=deep)


def test_a_whole_checkpoint_has_no_damage(root: Path, manifest: Manifest) -> None:
    assert read_manifest(store_of(root), FOLDER) == manifest
    assert found(root, deep=False) == found(root, deep=True) == ()
    assert [file.name for file in manifest.files] == list(FILES[:-1])


def test_the_two_checkpoints_differ_in_no_size(root: Path) -> None:
    for name in FILES[:2]:
        assert (root / FOLDER / name).stat().st_size == (root / OTHER / name).stat().st_size
        assert (root / FOLDER / name).read_bytes() != (root / OTHER / name).read_bytes()


@pytest.mark.parametrize("harm", SAME_SIZE + OTHER_SIZE, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", FILES)
def test_all_harm_is_found_by_deep_verification_and_by_load(
    root: Path, manifest: Manifest, name: str, harm: Callable[[Path], None]
) -> None:
    harm(root / FOLDER / name)
    damage = found(root, deep=True)
    assert damage
    if not (name == META and harm is become_that_of_another_checkpoint):
        assert damage[0].key == f"{FOLDER}/{name}"
    result = load(store_of(root), FOLDER, manifest)
    if name == META:
        assert isinstance(result, Loaded), "what the manifest says was handed over, and all else is whole"
    else:
        assert isinstance(result, tuple)
        assert result[0].key == f"{FOLDER}/{name}"


@pytest.mark.parametrize("harm", SAME_SIZE + OTHER_SIZE, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", FILES)
def test_shallow_verification_finds_what_it_says(root: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(root / FOLDER / name)
    damage = found(root, deep=False)
    if name in (WEIGHTS, BLOCKS) and harm in SAME_SIZE:
        assert damage == ()  # sizes are right, and their bytes were not read
    else:
        assert damage


@pytest.mark.parametrize("name", FILES[:-1])
def test_damage_says_what_it_is(root: Path, manifest: Manifest, name: str) -> None:
    path, key = root / FOLDER / name, f"{FOLDER}/{name}"
    size = path.stat().st_size
    extend(path)
    assert Damage(key=key, what=f"it should have {size} bytes and has {size + 1}") in found(root, deep=True)
    delete(path)
    assert found(root, deep=False)[0] == Damage(key=key, what="it is missing")


def test_all_damage_is_listed_at_once(root: Path) -> None:
    for name in FILES[:-1]:
        delete(root / FOLDER / name)
    assert {damage.key for damage in found(root, deep=True)} == {f"{FOLDER}/{name}" for name in FILES[:-1]}


def test_a_folder_that_is_gone_is_damage(root: Path, manifest: Manifest) -> None:
    shutil.rmtree(root / FOLDER)
    assert len({damage.key for damage in verify(store_of(root), FOLDER, manifest, deep=True)}) == 4
    assert read_manifest(store_of(root), FOLDER) == Damage(key=f"{FOLDER}/{META}", what="it is missing")


def test_every_byte_of_every_file_counts(root: Path, manifest: Manifest) -> None:
    """Flips spread over each file, among them the header's padding and the bytes after the last tensor."""
    store = store_of(root)
    for name in FILES[:-1]:
        path = root / FOLDER / name
        data = path.read_bytes()
        for at in {*range(0, len(data), max(1, len(data) // 40)), len(data) - 1}:
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            assert verify(store, FOLDER, manifest, deep=True), f"byte {at} of {name}"
        path.write_bytes(data)
    assert verify(store, FOLDER, manifest, deep=True) == ()


# Manifests and indexes of somebody else's making, with digests that are right.


def with_index(root: Path, manifest: Manifest, change: Callable[[dict], None]) -> Manifest:
    path = root / FOLDER / INDEX
    fields = json.loads(path.read_bytes())
    change(fields)
    path.write_bytes(json.dumps(fields).encode())
    data = path.read_bytes()
    files = tuple(
        StoredFile(name=INDEX, size=len(data), digest=digest(data)) if file.name == INDEX else file
        for file in manifest.files
    )
    return replace(manifest, files=files)


def set_codec(fields: dict) -> None:
    blocks = fields["files"][1]["blocks"]
    blocks[-1][3] = "codec-of-a-plugin:7"


def set_codec_that_cannot_be(fields: dict) -> None:
    fields["files"][1]["blocks"][-1][3] = "zstd:1+planes:4"


def grow_raw_size(fields: dict) -> None:
    fields["files"][0]["blocks"][0][2] += 8


def drop_file(fields: dict) -> None:
    fields["files"] = fields["files"][:1]
    fields["tensors"] = [tensor for tensor in fields["tensors"] if tensor["file"] == WEIGHTS]


def name_another_file(fields: dict) -> None:
    fields["files"][0]["name"] = "other.safetensors"
    fields["tensors"] = []


def name_dtype(name: str) -> Callable[[dict], None]:
    def change(fields: dict) -> None:
        fields["tensors"][0]["dtype"] = name

    change.__name__ = f"name_dtype_{name}"
    return change


def multiply_shape(fields: dict) -> None:
    fields["tensors"][0]["shape"] = [1 << 40, 1 << 40]


def be_newer(fields: dict) -> None:
    fields["format"] = 3


DTYPES = ("nn", "float2_new", "float64")  # none, one of a later torch, a wider one
FORGERIES = (grow_raw_size, drop_file, name_another_file, multiply_shape, *map(name_dtype, DTYPES))


@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__)
def test_an_index_that_is_wrong_under_a_right_digest_is_damage(
    root: Path, manifest: Manifest, change: Callable[[dict], None]
) -> None:
    forged = with_index(root, manifest, change)
    result = load(store_of(root), FOLDER, forged)
    assert isinstance(result, tuple)
    assert result
    verify(store_of(root), FOLDER, forged, deep=False)
    verify(store_of(root), FOLDER, forged, deep=True)


NOT_HERE = {set_codec: "codec-of-a-plugin", set_codec_that_cannot_be: "only the last stage", be_newer: "reads up to"}


@pytest.mark.parametrize(("change", "told"), NOT_HERE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_this_process_cannot_read_is_raised_and_is_no_damage(
    root: Path, manifest: Manifest, change: Callable[[dict], None], told: str
) -> None:
    forged = with_index(root, manifest, change)
    with pytest.raises(NotReadableHere, match=told):
        verify(store_of(root), FOLDER, forged, deep=True)
    with pytest.raises(NotReadableHere, match=told):
        load(store_of(root), FOLDER, forged)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), "the manifest names no index"),
        ((StoredFile(name=INDEX, size=5),), "it should have 5 bytes"),
        ((StoredFile(name="a.tmp", size=1, digest="00"),), "it is missing"),
        ((StoredFile(name="x" * 300, size=1, digest="00"),), "it is missing"),
        ((StoredFile(name="\ud800", size=1, digest="00"),), "it is missing"),
    ],
)
def test_a_manifest_that_names_what_cannot_be_is_damage(
    root: Path, manifest: Manifest, files: tuple[StoredFile, ...], told: str
) -> None:
    forged = replace(manifest, files=files)
    assert told in verify(store_of(root), FOLDER, forged, deep=True)[0].what
    assert isinstance(load(store_of(root), FOLDER, forged), tuple)


@pytest.mark.parametrize("name", [INDEX, CONTEXT])
def test_a_small_file_without_a_digest_is_damage(root: Path, manifest: Manifest, name: str) -> None:
    files = tuple(replace(file, digest=None) if file.name == name else file for file in manifest.files)
    expected = Damage(key=f"{FOLDER}/{name}", what="the manifest has no digest of it")
    assert expected in verify(store_of(root), FOLDER, replace(manifest, files=files), deep=False)


def test_a_file_that_goes_while_it_is_verified_is_damage(root: Path, manifest: Manifest) -> None:
    """Retention of a running training may take a checkpoint away between any two reads."""

    class Vanishing(LocalStore):
        left = 0

        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            if not self.left:
                shutil.rmtree(root / FOLDER, ignore_errors=True)
            self.left -= 1
            return super().get(key, start, size)

    for left in range(4):
        store = Vanishing(PosixDisk(), str(root))
        store.left = left
        shutil.copytree(root / FOLDER, root / "kept", dirs_exist_ok=True)
        assert verify(store, FOLDER, manifest, deep=True), left
        shutil.copytree(root / "kept", root / FOLDER, dirs_exist_ok=True)
        store.left = left
        assert isinstance(load(store, FOLDER, manifest), tuple), left
        shutil.copytree(root / "kept", root / FOLDER, dirs_exist_ok=True)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), PermissionError(13, "Permission denied")])
def test_a_disk_that_cannot_read_is_damage_and_a_user_who_may_not_is_none(
    root: Path, manifest: Manifest, error: OSError
) -> None:
    class Failing(PosixDisk):
        def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
            raise error

    store = LocalStore(Failing(), str(root))
    if isinstance(error, PermissionError):
        with pytest.raises(StoreError, match="no permission"):
            verify(store, FOLDER, manifest, deep=True)
        return
    assert ["input/output" in each.what for each in verify(store, FOLDER, manifest, deep=True)] == [True, True]
