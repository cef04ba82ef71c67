"""A load gives back the tensors and the context bit for bit, of every dtype, size and place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mementum.execute.capture import BlockingCapture
from mementum.execute.snapshot import Snapshot
from mementum.execute.write import write_parts
from mementum.format import context, index
from mementum.format.blocks import BLOCK, digest
from mementum.format.manifest import digest as strong_digest
from mementum.live.stateful import component_for
from mementum.live.tree import same
from mementum.records import (
    Block,
    Damage,
    DataFile,
    Granularity,
    Health,
    Index,
    Manifest,
    Save,
    StoredFile,
    StoredTensor,
)
from mementum.recover.load import ARENA, Loaded, load, load_raw
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

FOLDER = "step_0000000003"
CODECS = ("raw", "zstd:1", "planes+zstd:1")
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
)


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(SimDisk(), "root")


def manifest_of(files: tuple[StoredFile, ...]) -> Manifest:
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
        files=files,
    )


def saved(store: LocalStore, things: dict[str, Any], *, codec: str = "raw") -> Manifest:
    captured = BlockingCapture(codec=codec).take([component_for(name, thing, dict) for name, thing in things.items()])
    assert captured is not None
    snapshot = Snapshot(
        id="c1",
        seq=1,
        step=3,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        save=Save(reason="asked"),
        images=captured.images,
        context=lambda: context.render({"step": 3, "components": dict(captured.components)}),
        debug_info=(),
        metrics={},
        exactness=(),
        blocked_s=0.0,
        release=captured.release,
    )
    return manifest_of(write_parts(snapshot, store, FOLDER))


def loaded(store: LocalStore, manifest: Manifest) -> Loaded:
    result = load(store, FOLDER, manifest)
    assert isinstance(result, Loaded), result
    return result


def odd(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("codec", CODECS)
def test_every_dtype_and_shape_comes_back_bit_for_bit(store: LocalStore, codec: str) -> None:
    shapes = ((), (1,), (7,), (3, 5), (0,), (2, 0, 3), (2000,))
    state = {f"{dtype} {shape}": odd(dtype, *shape) for dtype in DTYPES for shape in shapes}
    found = loaded(store, saved(store, {"state": state}, codec=codec)).tensors["state"]
    assert found.keys() == state.keys()
    assert [name for name, tensor in state.items() if not same(tensor, found[name])] == []


def test_models_and_the_rest_come_back_by_component(store: LocalStore) -> None:
    a, b = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(4)
    manifest = saved(store, {"a": a, "b": b, "more": {"t": torch.arange(3)}})
    assert [file.name for file in manifest.files][:3] == ["a.safetensors", "b.safetensors", "optimizer.blocks"]
    result = loaded(store, manifest)
    assert result.manifest is manifest
    assert result.tensors.keys() == {"a", "b", "more"}
    for name, model in (("a", a), ("b", b)):
        expected = model.state_dict()
        assert result.tensors[name].keys() == expected.keys()
        assert all(same(tensor, result.tensors[name][key]) for key, tensor in expected.items())


def test_the_context_comes_back(store: LocalStore) -> None:
    result = loaded(store, saved(store, {"state": {"best": (float("inf"), 3), "t": torch.ones(1)}}))
    assert result.context["step"] == 3
    assert result.context["components"]["state"]["state"]["best"] == (float("inf"), 3)


def test_a_state_without_tensors_comes_back(store: LocalStore) -> None:
    manifest = saved(store, {"state": {"epoch": 3}})
    assert [file.name for file in manifest.files] == ["index-00000.json", "context-00000.json"]
    assert loaded(store, manifest).tensors == {}


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_of_several_blocks_comes_back(store: LocalStore, codec: str) -> None:
    state = {"zeros": torch.zeros(BLOCK // 4 + 5), "noise": odd(torch.int8, BLOCK + 3), "few": odd(torch.int16, 3)}
    manifest = saved(store, {"state": state}, codec=codec)
    proof = index.parse(store.get(f"{FOLDER}/index-00000.json"))
    assert len(proof.files[0].blocks) == 5  # two of each long stretch, one of the short
    found = loaded(store, manifest).tensors["state"]
    assert all(same(tensor, found[name]) for name, tensor in state.items())


def test_damage_in_a_later_block_is_found(store: LocalStore) -> None:
    class Flipping(LocalStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            data = super().get(key, start, size)
            if start > 0 and key.endswith(".blocks"):
                data = memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))
            return data

    manifest = saved(store, {"state": {"t": odd(torch.int8, BLOCK + 3)}})
    (damage,) = load(Flipping(store._disk, "root"), FOLDER, manifest)
    assert damage.key == f"{FOLDER}/optimizer.blocks"
    assert damage.what == f"the block at {BLOCK} does not match its digest"


def handmade(store: LocalStore, data: bytes, tensors: tuple[StoredTensor, ...]) -> Manifest:
    """A checkpoint by another writer: one raw file, and tensors where they are said to be."""
    mark = digest(data)
    block = Block(offset=0, size=len(data), raw_size=len(data), codec="raw", digest=mark, raw_digest=mark)
    proof = index.render(
        Index(rank=0, files=(DataFile(name="a.blocks", size=len(data), blocks=(block,)),), tensors=tensors)
    )
    small = {"index-00000.json": proof, "context-00000.json": context.render({"step": 3})}
    store.put(f"{FOLDER}/a.blocks", [data])
    for name, content in small.items():
        store.put(f"{FOLDER}/{name}", [content])
    return manifest_of(
        (
            StoredFile(name="a.blocks", size=len(data)),
            *(StoredFile(name=name, size=len(c), digest=strong_digest(c)) for name, c in small.items()),
        )
    )


def placed(offset: int, size: int, dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor(component="m", name="t", dtype=dtype, shape=shape, file="a.blocks", offset=offset, size=size)


@pytest.mark.parametrize("offset", range(9))
def test_a_tensor_on_an_odd_offset_comes_back(store: LocalStore, offset: int) -> None:
    data = bytes(range(64))
    result = loaded(store, handmade(store, data, (placed(offset, 16, "float64", 2),)))
    assert same(result.tensors["m"]["t"], torch.frombuffer(bytearray(data[offset : offset + 16]), dtype=torch.float64))


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (placed(0, 16, "float64", 3), "its shape and its size do not agree"),
        (placed(0, 16, "float64"), "its shape and its size do not agree"),
        (placed(0, 0, "float64"), "its shape and its size do not agree"),
        (placed(0, 16, "float64", 1 << 61, 1 << 61), "its shape and its size do not agree"),
        (placed(0, 16, "no_dtype", 2), "has dtype 'no_dtype', which this torch does not know"),
        (placed(0, 16, "nn", 2), "has dtype 'nn', which this torch does not know"),
        (placed(0, 16, "__doc__", 2), "which this torch does not know"),
        (placed(0, 16, "_inductor", 2), "which this torch does not know"),
    ],
)
def test_a_tensor_that_cannot_be_is_damage(store: LocalStore, tensor: StoredTensor, told: str) -> None:
    result = load(store, FOLDER, handmade(store, bytes(64), (tensor,)))
    assert isinstance(result, tuple)
    (damage,) = result
    assert damage.key == f"{FOLDER}/a.blocks"
    assert told in damage.what


def test_the_tensors_may_be_written_to(store: LocalStore) -> None:
    result = loaded(store, saved(store, {"state": {"t": torch.ones(3)}}))
    result.tensors["state"]["t"].add_(1)
    assert torch.equal(result.tensors["state"]["t"], torch.full((3,), 2.0))
    again = load(store, FOLDER, result.manifest)
    assert isinstance(again, Loaded)
    assert torch.equal(again.tensors["state"]["t"], torch.ones(3))


def test_large_tensors_of_several_components_come_back_aligned(store: LocalStore) -> None:
    """More than one arena, tensors that lie in several blocks, and small ones between them."""
    sizes = (3, BLOCK + 1, 0, 2 * BLOCK - 3, 5)
    states = {name: {str(size): odd(torch.int8, size) for size in sizes} for name in ("a", "b")}
    result = loaded(store, saved(store, states))
    for name, state in states.items():
        found = result.tensors[name]
        assert [key for key, tensor in state.items() if not same(tensor, found[key])] == []
        assert all(
            tensor.data_ptr() % 64 == 0 and tensor.untyped_storage().nbytes() == tensor.nbytes
            for tensor in found.values()
        )
    assert ARENA > 4 * BLOCK, "both components above share no arena, and each has one"


def test_raw_streams_in_memory_are_loaded_like_files(store: LocalStore) -> None:
    state = {"long": odd(torch.float32, BLOCK // 3), "few": odd(torch.int16, 3), "none": odd(torch.int8, 0)}
    model = torch.nn.Linear(3, 2)
    manifest = saved(store, {"model": model, "state": state})
    proof = index.parse(store.get(f"{FOLDER}/index-00000.json"))
    streams = {file.name: store.get(f"{FOLDER}/{file.name}") for file in proof.files}
    blank = Index(rank=0, files=tuple(replace(file, blocks=()) for file in proof.files), tensors=proof.tensors)
    result = load_raw(manifest, blank, {"step": 3}, streams)
    assert isinstance(result, Loaded)
    assert result.context == {"step": 3}
    assert all(same(tensor, result.tensors["state"][name]) for name, tensor in state.items())
    assert all(same(tensor, result.tensors["model"][name]) for name, tensor in model.state_dict().items())
    cut = {
        **streams,
        "optimizer.blocks": streams["optimizer.blocks"][:-62],
    }  # three numbers, and 58 bytes up to the border
    damage = load_raw(manifest, blank, {"step": 3}, cut)
    assert isinstance(damage, tuple)
    assert damage[0] == Damage(key="optimizer.blocks", what="few does not lie inside it")
    assert isinstance(load_raw(manifest, blank, {"step": 3}, {}), tuple)


def test_tensors_that_overlap_come_back(store: LocalStore) -> None:
    data = bytes(range(64))
    long, inner, last = placed(0, 60, "int8", 60), placed(8, 4, "int8", 4), placed(56, 8, "int8", 8)
    tensors = tuple(replace(one, name=name) for name, one in (("long", long), ("inner", inner), ("last", last)))
    found = loaded(store, handmade(store, data, tensors)).tensors["m"]
    assert found["long"].tolist() == list(range(60))
    assert found["inner"].tolist() == [8, 9, 10, 11]
    assert found["last"].tolist() == list(range(56, 64))
