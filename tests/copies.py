"""Small checkpoints written straight into a store, for tests of what copies them."""

from __future__ import annotations

from random import Random
from typing import Any

from mementum.execute.plan import plan
from mementum.format import blocks, index
from mementum.format import manifest as manifests
from mementum.records import DataFile, Entry, Granularity, Health, Index, Manifest, StoredFile
from mementum.recover.verify import read_manifest, verify
from mementum.storage.store import Store

SIZE = 4000  # bytes of optimizer state, and of frozen weights
Files = dict[str, bytes]


def folder_of(step: int) -> str:
    return f"step_{step:010d}"


def state(seed: int) -> bytes:
    """Optimizer state that shrinks when it is compressed."""
    return Random(seed).randbytes(40) * (SIZE // 40)


def save(store: Store, step: int, *, id: str = "", seed: int | None = None, frozen: int | None = None) -> Entry:
    """A checkpoint in the root's own layout. `frozen`: the seed of weights that nothing trains."""
    layouts = plan(
        {"model": [("w", "float32", (2,), 4, 8)]},
        {"optimizer": [("0.exp_avg", "float32", (SIZE // 4,), 4, SIZE)]},
        codec="raw",
    )
    raws: list[tuple[str, bytes, Any]] = []
    for layout in layouts:
        raw = layout.header + bytes(8) if layout.header else state(step if seed is None else seed)
        raws.append((layout.name, bytes(raw), layout.stretches))
    if frozen is not None:
        raw = Random(frozen).randbytes(SIZE)
        raws.append(("model.frozen.safetensors", raw, (blocks.Stretch(offset=0, size=SIZE, width=4),)))
    folder, data = folder_of(step), []
    for name, raw, stretches in raws:
        pairs = list(blocks.encode(memoryview(raw), stretches, "raw"))
        store.put(f"{folder}/{name}", [stored for _, stored in pairs])
        data.append(DataFile(name=name, size=len(raw), blocks=tuple(block for block, _ in pairs)))
    tensors = tuple(tensor for layout in layouts for tensor in layout.tensors)
    proof = index.render(Index(rank=0, files=tuple(data), tensors=tensors))
    context = b'{"format": 1, "step": %d, "epoch": 0, "components": {}}' % step
    files = [StoredFile(name=file.name, size=file.size) for file in data]
    for name, content in (("index-00000.json", proof), ("context-00000.json", context)):
        store.put(f"{folder}/{name}", [content])
        files.append(StoredFile(name=name, size=len(content), digest=manifests.digest(content)))
    made = Manifest(
        id=id or f"c{step}",
        seq=step,
        task="t",
        attempt=1,
        parent=None,
        step=step,
        epoch=0,
        time="2026-11-30T00:00:00Z",
        reason="test",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=tuple(files),
    )
    store.put(f"{folder}/meta.json", [manifests.render(made)])
    return Entry(manifest=made, folder=folder)


def content(store: Store, prefix: str = "step_") -> Files:
    """Every object and its bytes."""
    return {stat.key: bytes(store.get(stat.key)) for stat in store.list(prefix)}


def whole(store: Store, folder: str) -> Manifest:
    """The manifest of a checkpoint of which every byte was read and compared."""
    manifest = read_manifest(store, folder)
    assert isinstance(manifest, Manifest), manifest
    assert verify(store, folder, manifest, deep=True) == ()
    return manifest
