"""A checkpoint that landed raw is compressed afterwards; whatever goes wrong, it stays as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.clock import ManualClock
from mementum.errors import StoreError, Superseded
from mementum.events import Event, Failed, Settled
from mementum.execute.plan import plan
from mementum.execute.remove import discard, outdated
from mementum.format import blocks, index
from mementum.format import manifest as manifests
from mementum.pruning import sweep
from mementum.records import Block, Buffer, DataFile, Entry, Granularity, Health, Index, Manifest, StoredFile
from mementum.recover.verify import Proved, examine, read_blocks, read_manifest, verify
from mementum.rewriting import GONE, Unsettled
from mementum.settling import settle
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from mementum.testing.simdisk import SimDisk
from removal import remove

HOME, FOLDER = "20261130/t_000001", "step_0000000003"
FIRST = {"meta.json", "model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json"}
SECOND = {"meta-2.json", "model.safetensors", "optimizer-2.blocks", "index-00000-2.json", "context-00000.json"}
SIZE = 4000
Hook = Callable[[], None]


class HookedStore(LocalStore):
    """A store in which something happens before a key is put or deleted."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.before: dict[tuple[str, str], Hook] = {}

    def put(self, key: str, chunks: Any) -> Stat:
        self.before.pop(("put", key.rpartition("/")[2]), nothing)()
        return super().put(key, chunks)

    def delete(self, key: str) -> None:
        self.before.get(("delete", key.rpartition("/")[2]), nothing)()
        super().delete(key)

    def names(self, folder: str = FOLDER) -> set[str]:
        return {stat.key.removeprefix(f"{folder}/") for stat in self.list(f"{folder}/")}


def nothing() -> None:
    """Nothing happens."""


def raising(error: Exception) -> Hook:
    def hook() -> None:
        raise error

    return hook


class Task:
    """One checkpoint that landed raw, and all that settling it takes."""

    def __init__(self, raw: bytes, *, codec: str = "raw") -> None:
        self.raw, self.store, self.catalog = raw, HookedStore(), open_sqlite(None)
        self.events: list[Event] = []
        self.entry = self.save("c1", codec=codec)

    def save(self, id: str, *, codec: str = "raw") -> Entry:
        facts = [("0.exp_avg", "float32", (SIZE // 4,), 4, SIZE)]
        layouts = plan({"model": [("w", "float32", (2,), 4, 8)]}, {"optimizer": facts}, codec=codec)
        data: list[DataFile] = []
        for layout in layouts:
            raw = layout.header + bytes(8) if layout.header else self.raw
            pairs = list(blocks.encode(memoryview(raw), layout.stretches, layout.codec))
            stat = self.store.put(f"{FOLDER}/{layout.name}", [stored for _, stored in pairs])
            data.append(DataFile(name=layout.name, size=stat.size, blocks=tuple(block for block, _ in pairs)))
        tensors = tuple(tensor for layout in layouts for tensor in layout.tensors)
        proof = index.render(Index(rank=0, files=tuple(data), tensors=tensors))
        context = b'{"format": 1, "components": {}}\n'
        files = [StoredFile(name=file.name, size=file.size) for file in data]
        for name, small in (("index-00000.json", proof), ("context-00000.json", context)):
            self.store.put(f"{FOLDER}/{name}", [small])
            files.append(StoredFile(name=name, size=len(small), digest=manifests.digest(small)))
        made = manifest(id, tuple(files))
        self.store.put(f"{FOLDER}/meta.json", [manifests.render(made)])
        self.catalog.add(HOME, made, FOLDER)
        return Entry(manifest=made, folder=FOLDER)

    def settle(self, **given: Any) -> Manifest | Unsettled:
        wanted: dict[str, Any] = {
            "home": HOME,
            "store": self.store,
            "catalog": self.catalog,
            "codec": "planes+zstd:1",
            "emit": self.events.append,
            "require_newest": nothing,
            "clock": ManualClock(),
            "pause": lambda: None,
        }
        return settle(self.entry, **{**wanted, **given})

    def requires_unchanged(self) -> None:
        """The first generation is there, whole, and alone."""
        assert self.store.names() == FIRST
        assert read_manifest(self.store, FOLDER) == self.entry.manifest
        assert raw_of(self.store, self.entry.manifest) == self.raw
        assert [entry.manifest for entry in self.catalog.entries(HOME)] == [self.entry.manifest]
        assert self.store.sweep() == ()


def manifest(id: str, files: tuple[StoredFile, ...]) -> Manifest:
    return Manifest(
        id=id,
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
        metrics={"loss": 0.5},
    )


def raw_of(store: LocalStore, written: Manifest) -> bytes:
    """The optimizer's raw stream, proved."""
    proved = examine(store, FOLDER, written)
    assert isinstance(proved, Proved), proved
    (file,) = (file for file in proved.index.files if file.name.endswith(".blocks"))
    pieces: list[bytes] = []

    def take(_: Block, raw: Buffer) -> None:
        pieces.append(bytes(raw))

    assert read_blocks(store, FOLDER, file, take) == []
    return b"".join(pieces)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


@pytest.fixture
def raw(rng: Random) -> bytes:
    return b"".join(rng.randrange(50).to_bytes(4, "little") for _ in range(SIZE // 4))


@pytest.fixture
def task(raw: bytes) -> Task:
    return Task(raw)


def test_the_next_generation_holds_the_same_in_fewer_bytes(task: Task, raw: bytes) -> None:
    before = task.entry.manifest
    after = task.settle()
    assert isinstance(after, Manifest)
    assert (after.generation, after.id, after.seq, after.metrics) == (2, "c1", 1, {"loss": 0.5})
    assert task.store.names() == SECOND
    assert read_manifest(task.store, FOLDER) == after
    assert verify(task.store, FOLDER, after, deep=True) == ()
    assert raw_of(task.store, after) == raw
    assert [entry.manifest for entry in task.catalog.entries(HOME)] == [after]
    assert [file.name for file in after.files] == [
        "model.safetensors",
        "optimizer-2.blocks",
        "index-00000-2.json",
        "context-00000.json",
    ]
    assert [after.files[0], after.files[3]] == [before.files[0], before.files[3]]
    assert after.files[1].size < 0.5 * before.files[1].size
    assert task.events == [Settled(id="c1", step=3, size_before=before.size, size=after.size, duration_s=0.0)]


def test_what_is_settled_is_not_settled_again(task: Task) -> None:
    after = task.settle()
    assert task.settle() == Unsettled(reason="nothing of it is raw that could be compressed")
    assert read_manifest(task.store, FOLDER) == after
    assert len(task.events) == 1


def test_what_was_written_compressed_is_left(raw: bytes) -> None:
    task = Task(raw, codec="zstd:1")
    assert task.settle() == Unsettled(reason="nothing of it is raw that could be compressed")
    task.requires_unchanged()


def test_what_does_not_shrink_is_left(rng: Random) -> None:
    task = Task(rng.randbytes(SIZE))
    assert task.settle() == Unsettled(reason="planes+zstd:1 makes optimizer.blocks no smaller")
    task.requires_unchanged()
    assert task.events == []


def test_it_stops_where_it_is_told_to(task: Task) -> None:
    assert task.settle(pause=lambda: "the run ends") == Unsettled(reason="the run ends")
    task.requires_unchanged()
    assert task.events == []


@pytest.mark.parametrize("name", ["optimizer.blocks", "index-00000.json", "meta.json"])
def test_damage_is_told_and_not_hidden(task: Task, name: str) -> None:
    data = bytes(task.store.get(f"{FOLDER}/{name}"))
    task.store.delete(f"{FOLDER}/{name}")
    task.store.put(f"{FOLDER}/{name}", [data[:99], bytes([data[99] ^ 1]), data[100:]])
    found = task.settle()
    assert isinstance(found, Unsettled)
    assert name in found.reason
    assert task.store.names() == FIRST
    (failed,) = task.events
    assert isinstance(failed, Failed)
    assert (failed.what, failed.error, failed.kept) == ("compressing c1", found.reason, "the checkpoint, as it is")


@pytest.mark.parametrize("name", ["optimizer-2.blocks", "index-00000-2.json", "meta-2.json"])
def test_a_disk_that_refuses_leaves_it_as_it_was(task: Task, name: str) -> None:
    task.store.before["put", name] = raising(StoreError(name, "the disk is full"))
    assert task.settle() == Unsettled(reason="the disk is full")
    task.requires_unchanged()
    assert task.events == [Failed(what="compressing c1", error="the disk is full", kept="the checkpoint, as it is")]
    assert isinstance(task.settle(), Manifest)


@pytest.mark.parametrize("name", ["optimizer-2.blocks", "index-00000-2.json", "meta-2.json"])
def test_a_name_that_is_taken_is_left_to_whoever_took_it(task: Task, name: str) -> None:
    task.store.put(f"{FOLDER}/{name}", [b"theirs"])
    if name == "meta-2.json":
        task.store.delete(f"{FOLDER}/{name}")
        task.store.before["put", name] = lambda: LocalStore.put(task.store, f"{FOLDER}/{name}", [b"theirs"]) and None
    found = task.settle()
    assert isinstance(found, Unsettled)
    assert bytes(task.store.get(f"{FOLDER}/{name}")) == b"theirs"
    assert task.store.names() >= FIRST


def test_a_removal_meanwhile_is_no_fault(task: Task) -> None:
    asked: list[int] = []

    def pause() -> None:
        asked.append(1)
        if len(asked) == 2:
            assert remove(task.entry.manifest, task.store, FOLDER) is None

    assert task.settle(pause=pause) == Unsettled(reason=GONE)
    assert len(asked) == 2
    assert list(task.store.list()) == []
    assert task.store.sweep() == ()
    assert task.events == []


def test_a_removal_right_before_the_commit_is_seen(task: Task) -> None:
    assert task.settle(require_newest=lambda: remove(task.entry.manifest, task.store, FOLDER)) == Unsettled(reason=GONE)
    assert list(task.store.list()) == []
    assert task.events == []


def test_another_checkpoint_in_the_folder_is_not_touched(task: Task) -> None:
    """The step was removed and saved again while the old one was compressed."""

    def replaced() -> None:
        remove(task.entry.manifest, task.store, FOLDER)
        task.save("c2")

    assert task.settle(require_newest=replaced) == Unsettled(reason=GONE)
    assert task.store.names() == FIRST
    assert read_manifest(task.store, FOLDER).id == "c2"  # type: ignore[union-attr]
    assert task.settle() == Unsettled(reason="checkpoint c2 lies there now")
    assert task.events == []


def test_a_manifest_that_came_too_late_is_withdrawn(task: Task) -> None:
    """This process stood still after its last look, and another one has gone back and saved in the folder."""

    def replaced() -> None:
        parts = {
            name: bytes(task.store.get(f"{FOLDER}/{name}")) for name in ("optimizer-2.blocks", "index-00000-2.json")
        }
        discard(task.store, FOLDER)
        task.save("c2")
        for name, data in parts.items():
            LocalStore.put(task.store, f"{FOLDER}/{name}", [data])

    task.store.before["put", "meta-2.json"] = replaced
    assert task.settle() == Unsettled(reason=f"{FOLDER}/meta.json is not the manifest of c1")
    assert task.store.names() == FIRST
    found = read_manifest(task.store, FOLDER)
    assert isinstance(found, Manifest)
    assert found.id == "c2"
    assert verify(task.store, FOLDER, found, deep=True) == ()
    assert task.events == []


def test_a_sweep_meanwhile_is_seen(task: Task) -> None:
    assert task.settle(require_newest=lambda: sweep(task.store, emit=task.events.append)) == Unsettled(
        reason="optimizer-2.blocks is not there any more"
    )
    task.requires_unchanged()


SUPERSEDED = Superseded("t", attempt=1, by=2, host="there", pid=22)


def test_a_superseded_writer_takes_its_parts_away(task: Task) -> None:
    assert task.settle(require_newest=raising(SUPERSEDED)) == Unsettled(reason=SUPERSEDED.message)
    task.requires_unchanged()
    assert task.events == []


def test_a_superseded_writer_touches_no_folder_that_is_not_its_own_any_more(task: Task) -> None:
    def replaced() -> None:
        task.store.delete(f"{FOLDER}/meta.json")
        task.store.put(f"{FOLDER}/meta.json", [manifests.render(manifest("c2", task.entry.manifest.files))])
        raise SUPERSEDED

    assert task.settle(require_newest=replaced) == Unsettled(reason=SUPERSEDED.message)
    assert task.store.names() == FIRST | {"optimizer-2.blocks", "index-00000-2.json"}
    assert outdated(task.store) == (f"{FOLDER}/index-00000-2.json", f"{FOLDER}/optimizer-2.blocks")


def test_a_catalog_that_refuses_is_told(task: Task) -> None:
    class Refusing(SqlCatalog):
        def __init__(self) -> None:
            """Nothing is opened."""

        def add(self, home: str, manifest: Manifest, folder: str) -> None:
            raise StoreError("catalog.db", "database is locked")

        def entries(self, home: str) -> list[Entry]:
            raise StoreError("catalog.db", "database is locked")

    after = task.settle(catalog=Refusing())
    assert task.store.names() == SECOND
    assert read_manifest(task.store, FOLDER) == after
    (failed, settled) = task.events
    assert isinstance(failed, Failed)
    assert isinstance(settled, Settled)
    assert (failed.what, failed.error) == ("entering c1 in the catalog", "database is locked")


@pytest.mark.parametrize("name", ["meta.json", "optimizer.blocks", "index-00000.json"])
def test_what_cannot_be_removed_is_left_to_a_sweep(task: Task, raw: bytes, name: str) -> None:
    task.store.before["delete", name] = raising(StoreError(name, "refused"))
    after = task.settle()
    assert isinstance(after, Manifest)
    assert task.store.names() >= SECOND | {name}
    assert raw_of(task.store, after) == raw
    (failed, settled) = task.events
    assert isinstance(failed, Failed)
    assert isinstance(settled, Settled)
    assert failed.what == "removing the old files after compressing c1"
    task.store.before.clear()
    sweep(task.store, emit=task.events.append)
    assert task.store.names() == SECOND
    assert read_manifest(task.store, FOLDER) == after


def test_its_turn_is_held_for_the_commit_only(task: Task) -> None:
    turn = threading.Lock()
    held: dict[str, bool] = {}

    def look(where: str) -> Hook:
        return lambda: held.update({where: turn.locked()})

    for act, name in (("put", "optimizer-2.blocks"), ("put", "index-00000-2.json"), ("put", "meta-2.json")):
        task.store.before[act, name] = look(name)
    task.store.before["delete", "index-00000.json"] = look("index-00000.json")
    assert isinstance(task.settle(turn=turn, require_newest=look("the look")), Manifest)
    assert held == {
        "optimizer-2.blocks": False,
        "index-00000-2.json": False,
        "the look": True,
        "meta-2.json": True,
        "index-00000.json": True,
    }
    assert not turn.locked()


@pytest.mark.parametrize("count", [0, 2])
def test_a_checkpoint_of_another_form_is_left(task: Task, count: int) -> None:
    files = [file for file in task.entry.manifest.files if not file.name.startswith("index")]
    indexes = [StoredFile(name=f"index-{rank:05d}.json", size=1, digest="x") for rank in range(count)]
    task.store.delete(f"{FOLDER}/meta.json")
    task.store.put(f"{FOLDER}/meta.json", [manifests.render(manifest("c1", (*files, *indexes)))])
    assert task.settle() == Unsettled(reason=f"it has {count} indexes")
    assert task.store.names() == FIRST
