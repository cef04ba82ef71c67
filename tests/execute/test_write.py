"""Writing puts data, then index, then context, with digests of the very bytes that were put."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from mementum.errors import KeyTaken, StoreError
from mementum.execute.capture import BlockingCapture
from mementum.execute.snapshot import Snapshot
from mementum.execute.write import SUFFIX_MAX, folder_for, write_parts
from mementum.format import context, index
from mementum.format.blocks import damage, decode
from mementum.format.manifest import digest
from mementum.live.stateful import component_for
from mementum.records import Buffer, Save, StoredFile
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from mementum.testing.simdisk import SimDisk

FOLDER = "step_0000000003"


class RecordingStore(LocalStore):
    """A store that notes what is put, in order."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.put_keys: list[str] = []

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        self.put_keys.append(key)
        return super().put(key, chunks)


def snapshot(*, codec: str = "planes+zstd:1") -> Snapshot:
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 30)
    state = {"m": torch.zeros(3000), "flags": torch.ones(5000, dtype=torch.uint8), "step": torch.tensor(3)}
    parts = [component_for("model", model, dict), component_for("more", state, dict)]
    captured = BlockingCapture(codec=codec).take(parts)
    assert captured is not None
    return Snapshot(
        id="c1",
        seq=1,
        step=3,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        save=Save(reason="asked"),
        images=captured.images,
        context=lambda: context.render({"step": 3}),
        debug_info=(),
        metrics={},
        exactness=(),
        blocked_s=0.0,
        release=captured.release,
    )


def test_data_comes_first_then_the_index_then_the_context() -> None:
    store = RecordingStore()
    names = [file.name for file in write_parts(snapshot(), store, FOLDER)]
    assert names == ["model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json"]
    assert store.put_keys == [f"{FOLDER}/{name}" for name in names]


def test_sizes_and_digests_are_those_of_what_lies_there() -> None:
    store = RecordingStore()
    files = write_parts(snapshot(), store, FOLDER)
    for file in files:
        data = store.get(f"{FOLDER}/{file.name}")
        small = file.name.endswith(".json")
        assert file == StoredFile(name=file.name, size=len(data), digest=digest(data) if small else None)


@pytest.mark.parametrize("codec", ["raw", "zstd:1", "planes+zstd:1"])
def test_the_index_proves_and_decodes_every_block(codec: str) -> None:
    store = RecordingStore()
    taken = snapshot(codec=codec)
    write_parts(taken, store, FOLDER)
    proof = index.parse(store.get(f"{FOLDER}/index-00000.json"))
    assert proof.rank == 0
    for image in taken.images:
        (file,) = [file for file in proof.files if file.name == image.layout.name]
        raw = b""
        for block in file.blocks:
            stored = store.get(f"{FOLDER}/{file.name}", block.offset, block.size)
            assert damage(block, stored) is None
            raw += bytes(decode(block, stored))
        assert raw == bytes(image.raw)
    assert proof.tensors == tuple(tensor for image in taken.images for tensor in image.layout.tensors)
    used = {block.codec for file in proof.files for block in file.blocks}
    assert (
        used
        == {
            "raw": {"raw"},
            "zstd:1": {"raw", "zstd:1"},
            "planes+zstd:1": {"raw", "planes:8+zstd:1", "planes:4+zstd:1", "zstd:1"},
        }[codec]
    )


def test_the_names_have_the_rank() -> None:
    store = RecordingStore()
    files = write_parts(snapshot(), store, FOLDER, rank=12)
    assert [file.name for file in files[-2:]] == ["index-00012.json", "context-00012.json"]
    assert index.parse(store.get(f"{FOLDER}/index-00012.json")).rank == 12


def test_nothing_is_overwritten() -> None:
    store = RecordingStore()
    store.put(f"{FOLDER}/optimizer.blocks", [b"somebody's"])
    with pytest.raises(KeyTaken):
        write_parts(snapshot(), store, FOLDER)
    assert bytes(store.get(f"{FOLDER}/optimizer.blocks")) == b"somebody's"


def test_a_folder_is_new() -> None:
    store = RecordingStore()
    assert folder_for(store, 3) == "step_0000000003"
    store.put("step_0000000003/left over", [b""])
    assert folder_for(store, 3) == "step_0000000003-2"
    store.put("step_0000000003-3/meta.json", [b""])
    assert folder_for(store, 3) == "step_0000000003-2"
    store.put("step_0000000003-2/meta.json", [b""])
    assert folder_for(store, 3) == "step_0000000003-4"
    assert folder_for(store, 30) == "step_0000000030"
    assert folder_for(store, 12_345_678_901) == "step_12345678901"


def test_a_step_that_is_saved_without_end_is_refused() -> None:
    store = RecordingStore()
    for number in range(1, SUFFIX_MAX):
        store.put(f"step_0000000003{'' if number == 1 else f'-{number}'}/a", [b""])
    with pytest.raises(StoreError, match="step 3 was saved 1000 times already"):
        folder_for(store, 3)
