"""Large files are written two at a time, with their proof made beside it, and one failure ends all."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable

import numpy as np
import pytest

from mementum.clock import ManualClock
from mementum.errors import KeyTaken, StoreError
from mementum.execute import write as write_module
from mementum.execute.plan import FileLayout
from mementum.execute.snapshot import Image, Snapshot
from mementum.execute.write import _chunks, _GivenUp, write_parts
from mementum.format import blocks as blocks_module
from mementum.format import index
from mementum.format.blocks import Stretch, damage, decode
from mementum.records import Buffer, DataFile, Save
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.pace import Pace
from mementum.storage.store import Stat
from mementum.testing.simdisk import PowerCut, SimDisk

FOLDER = "step_0000000003"
NAMES = ("a.safetensors", "b.safetensors", "optimizer.blocks")
SIZES = (40_003, 90_001, 120_000)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "LARGE", 10_000)
    monkeypatch.setattr(write_module, "PIECE", 9000)
    monkeypatch.setattr(blocks_module, "BLOCK", 4096)


class Fetched:
    """A raw stream that is not in memory, and is another one each time: who fetches twice proves other bytes."""

    def __init__(self, raw: memoryview) -> None:
        self._raw, self._fetches = raw, 0

    def __getitem__(self, piece: slice, /) -> memoryview:
        self._fetches += 1
        return memoryview(bytes([self._fetches % 251])[:1] * len(self._raw[piece]))


def images(codec: str = "raw", *, fetched: bool = False) -> tuple[Image, ...]:
    made: list[Image] = []
    for name, size in zip(NAMES, SIZES, strict=True):
        raw = np.random.default_rng(size).standard_normal(size // 4 + 1).astype(np.float32).view(np.uint8)[:size].data
        used = codec if name.endswith("blocks") else "raw"
        half = size // 8 * 4
        stretches = (Stretch(offset=0, size=half, width=4), Stretch(offset=half, size=size - half, width=4))
        layout = FileLayout(name=name, header=b"", placed=(), stretches=stretches, codec=used, raw_size=size)
        made.append(Image(layout=layout, raw=Fetched(raw) if fetched else raw))
    return tuple(made)


def snapshot(of: tuple[Image, ...]) -> Snapshot:
    return Snapshot(
        id="c1",
        seq=1,
        step=3,
        epoch=0,
        time="2026-11-30T06:10:09.000000Z",
        save=Save(reason="asked"),
        images=of,
        context=lambda: b"{}",
        debug_info=(),
        metrics={},
        exactness=(),
        blocked_s=0.0,
        release=lambda: None,
    )


def files_in(store: LocalStore) -> dict[str, DataFile]:
    return {file.name: file for file in index.parse(store.get(f"{FOLDER}/index-00000.json")).files}


def proved(store: LocalStore, file: DataFile) -> bytes:
    """What the blocks of a file decode to, each of them proved."""
    raw = b""
    for block in file.blocks:
        stored = store.get(f"{FOLDER}/{file.name}", block.offset, block.size)
        assert damage(block, stored) is None
        raw += bytes(decode(block, stored))
    return raw


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("codec", ["raw", "planes+zstd:1"])
def test_every_byte_is_there_and_proved(tmp_path, monkeypatch, codec, threads):
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    store, taken = LocalStore(PosixDisk(), str(tmp_path)), images(codec)
    written = write_parts(snapshot(taken), store, FOLDER)
    assert tuple(file.name for file in written[:3]) == NAMES
    found = files_in(store)
    for image in taken:
        file = found[image.layout.name]
        assert proved(store, file) == bytes(image.raw[:])
        assert sum(block.raw_size for block in file.blocks) == image.layout.raw_size
        assert len(file.blocks) == sum(-(-stretch.size // 4096) for stretch in image.layout.stretches)
    assert {block.codec for block in found["optimizer.blocks"].blocks} == {codec.replace("planes+", "planes:4+")}


@pytest.mark.parametrize("codec", ["raw", "planes+zstd:1"])
def test_what_is_fetched_is_fetched_once(tmp_path, codec):
    store = LocalStore(PosixDisk(), str(tmp_path))
    write_parts(snapshot(images(codec, fetched=True)), store, FOLDER)
    for name, size in zip(NAMES, SIZES, strict=True):
        assert len(proved(store, files_in(store)[name])) == size


class Meeting(LocalStore):
    """A store in which the puts of the two largest files wait for each other after their first chunk."""

    def __init__(self, break_: BaseException | None = None) -> None:
        super().__init__(SimDisk(), "root")
        self._together, self._break = threading.Barrier(2, timeout=10), break_
        self.began: list[str] = []

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        name = key.rpartition("/")[2]
        self.began.append(name)
        if name not in NAMES[1:]:
            return super().put(key, chunks)

        def met() -> Iterable[Buffer]:
            for number, chunk in enumerate(chunks):
                if number == 1:
                    self._together.wait()
                    if self._break is not None and name == NAMES[1]:
                        raise self._break
                yield chunk

        return super().put(key, met())


def test_the_two_largest_go_first_and_together():
    store = Meeting()
    write_parts(snapshot(images()), store, FOLDER)
    assert set(store.began[:2]) == set(NAMES[1:])
    assert store.began[2:] == [NAMES[0], "index-00000.json", "context-00000.json"]


@pytest.mark.parametrize("codec", ["raw", "planes+zstd:1"])
@pytest.mark.parametrize(
    ("broken", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreError),
        (KeyTaken(f"{FOLDER}/{NAMES[1]}"), KeyTaken),
        (PowerCut(), PowerCut),
        (MemoryError("none left"), MemoryError),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else type(it).__name__,
)
def test_one_failure_ends_the_other_and_is_the_one_told(codec, broken, raised):
    store, before = Meeting(broken), threading.active_count()
    with pytest.raises(raised) as caught:
        write_parts(snapshot(images(codec)), store, FOLDER)
    assert caught.value is broken or caught.value.__cause__ is broken
    assert threading.active_count() == before
    assert f"{FOLDER}/{NAMES[1]}" not in [stat.key for stat in store.list()]
    assert store.sweep() == ()
    assert not any(name.endswith(".json") for name in store.began)


@pytest.mark.parametrize("codec", ["raw", "planes+zstd:1"])
def test_a_stream_ends_once_another_part_has_failed(codec):
    failed, before = threading.Event(), threading.active_count()
    stream = _chunks(images(codec)[2], [], failed)
    assert len(next(stream)) > 0
    failed.set()
    with pytest.raises(_GivenUp):
        next(stream)
    assert threading.active_count() == before


def test_a_proof_that_cannot_be_made_leaves_no_object(tmp_path, monkeypatch):
    def broken(data: Buffer) -> str:
        raise MemoryError("no digest")

    monkeypatch.setattr(blocks_module, "digest", broken)
    store = LocalStore(PosixDisk(), str(tmp_path))
    for codec in ("raw", "planes+zstd:1"):
        with pytest.raises(MemoryError, match="no digest"):
            write_parts(snapshot(images(codec)), store, FOLDER)
        assert list(store.list()) == []
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_pace_holds_back_the_data_of_all_files():
    clock = ManualClock()
    write_parts(snapshot(images()), LocalStore(SimDisk(), "root"), FOLDER, pace=Pace(50_000.0, clock))
    assert clock.monotonic() == pytest.approx((sum(SIZES) - 50_000) / 50_000, abs=1e-6)


def test_many_writes_leave_no_thread():
    store, before = LocalStore(SimDisk(), "root"), threading.active_count()
    for number in range(50):
        write_parts(snapshot(images()), store, f"step_{number}")
    assert threading.active_count() == before


def test_when_a_put_has_failed_nothing_reads_the_memory_any_more(monkeypatch):
    class Full(LocalStore):
        def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
            for _ in chunks:
                assert begun.wait(10)
                raise StoreError(key, "full", kept="all", next_command="df")
            raise AssertionError("no chunk came")

    def slow(data: Buffer) -> str:
        begun.set()
        threading.Event().wait(0.05)  # so that it is under way when the put fails
        return "0" * 32

    begun, before = threading.Event(), threading.active_count()
    monkeypatch.setattr(blocks_module, "digest", slow)
    with pytest.raises(StoreError, match="full"):
        write_parts(snapshot(images()[2:]), Full(SimDisk(), "root"), FOLDER)
    assert threading.active_count() == before
