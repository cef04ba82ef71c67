"""A file that landed raw becomes a compressed one: the same raw stream, proved block by block."""

from __future__ import annotations

from random import Random

import pytest

from mementum.errors import UnknownFormat
from mementum.execute.compress import GaveUp, Pause
from mementum.execute.plan import Facts, FileLayout, plan
from mementum.execute.transfer import NotWhole
from mementum.format import blocks
from mementum.recoding import Recoded
from mementum.records import Buffer, DataFile
from mementum.storage.local import LocalStore
from mementum.testing.simdisk import SimDisk

FOLDER, NEW = "step_0000000001", "optimizer-2.blocks"
FACTS: tuple[Facts, ...] = (
    ("steps", "int64", (40,), 8, 320),
    ("exp_avg", "float32", (500,), 4, 2000),
    ("none", "float32", (0, 3), 4, 0),
    ("half", "bfloat16", (300,), 2, 600),
    ("flags", "bool", (100,), 1, 100),
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 256)


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(SimDisk(), "root")


def landed(store: LocalStore, raw: bytes, *, codec: str = "raw") -> tuple[FileLayout, DataFile]:
    """The state as a save leaves it."""
    (layout,) = plan({}, {"optimizer": FACTS}, codec=codec)
    pairs = list(blocks.encode(memoryview(raw), layout.stretches, codec))
    store.put(f"{FOLDER}/{layout.name}", [data for _, data in pairs])
    made = tuple(block for block, _ in pairs)
    return layout, DataFile(name=layout.name, size=sum(block.size for block in made), blocks=made)


def slow_numbers(rng: Random) -> bytes:
    """Small numbers: their upper bytes are zeros."""
    return b"".join(rng.randrange(50).to_bytes(4, "little") for _ in range(3020 // 4))


def raw_of(store: LocalStore, file: DataFile) -> bytes:
    found = b""
    for block in file.blocks:
        stored = store.get(f"{FOLDER}/{file.name}", block.offset, block.size)
        assert blocks.damage(block, stored) is None
        found += bytes(blocks.decode(block, stored))
    return found


def made_of(
    store: LocalStore, layout: FileLayout, file: DataFile, *, codec: str = "planes+zstd:1", pause: Pause = lambda: None
) -> DataFile:
    chunks = Recoded(file, layout.tensors, (), source=store, folder=FOLDER, codec=codec, pause=pause, smaller=True)
    return chunks.file(NEW, store.put(f"{FOLDER}/{NEW}", chunks).size)


def test_the_stream_is_the_same_and_the_file_smaller(store: LocalStore, rng: Random) -> None:
    raw = slow_numbers(rng)
    layout, file = landed(store, raw)
    made = made_of(store, layout, file)
    assert made.name == "optimizer-2.blocks"
    assert raw_of(store, made) == raw
    assert made.size < 0.8 * file.size
    assert [stat.size for stat in store.list(f"{FOLDER}/optimizer-2")] == [made.size]
    assert raw_of(store, file) == raw  # the old one stays


def test_it_is_the_very_file_that_a_save_with_the_codec_writes(store: LocalStore, rng: Random) -> None:
    raw = slow_numbers(rng)
    layout, file = landed(store, raw)
    made = made_of(store, layout, file)
    _, inline = landed(LocalStore(SimDisk(), "root"), raw, codec="planes+zstd:1")
    assert made.blocks == inline.blocks
    assert {block.codec for block in made.blocks} >= {"planes:8+zstd:1", "planes:4+zstd:1", "planes:2+zstd:1"}


def test_blocks_that_do_not_shrink_stay_raw(store: LocalStore, rng: Random) -> None:
    raw = bytes(1500) + rng.randbytes(1520)
    layout, file = landed(store, raw)
    made = made_of(store, layout, file)
    assert [block.codec for block in made.blocks][-1] == "raw"
    assert raw_of(store, made) == raw


def test_nothing_is_left_where_nothing_shrinks(store: LocalStore, rng: Random) -> None:
    layout, file = landed(store, rng.randbytes(3020))
    with pytest.raises(GaveUp, match=r"makes optimizer\.blocks no smaller"):
        made_of(store, layout, file)
    assert [stat.key for stat in store.list()] == [f"{FOLDER}/optimizer.blocks"]
    assert store.sweep() == ()


def test_it_stops_between_blocks_and_leaves_nothing(store: LocalStore, rng: Random) -> None:
    layout, file = landed(store, slow_numbers(rng))
    reasons = [None, None, "the run ends", "asked once too often"]
    with pytest.raises(GaveUp, match="the run ends"):
        made_of(store, layout, file, codec="zstd:1", pause=lambda: reasons.pop(0))
    assert reasons == ["asked once too often"]
    assert [stat.key for stat in store.list()] == [f"{FOLDER}/optimizer.blocks"]
    assert store.sweep() == ()


def test_damage_is_not_hidden(store: LocalStore, rng: Random) -> None:
    raw = slow_numbers(rng)
    layout, file = landed(store, raw)
    store.delete(f"{FOLDER}/{file.name}")
    store.put(f"{FOLDER}/{file.name}", [raw[:1000], bytes([raw[1000] ^ 1]), raw[1001:]])
    with pytest.raises(NotWhole, match=rf"{FOLDER}/optimizer\.blocks: the block at \d+ does not match its digest"):
        made_of(store, layout, file)
    assert [stat.key for stat in store.list()] == [f"{FOLDER}/optimizer.blocks"]


def test_a_file_that_goes_away_is_told(store: LocalStore, rng: Random) -> None:
    layout, file = landed(store, slow_numbers(rng))
    store.delete(f"{FOLDER}/{file.name}")
    with pytest.raises(NotWhole, match=r"optimizer\.blocks: .*missing|does not exist"):
        made_of(store, layout, file)
    assert list(store.list()) == []


def test_a_codec_that_does_not_give_back_what_it_got_is_found_out(
    store: LocalStore, rng: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that computes wrongly now and then, or a codec with a fault."""

    class Wrong:
        """Encodes other bytes than it is given."""

        spec = "zstd:1"

        def encode(self, raw: memoryview) -> Buffer:
            return real("zstd:1").encode(bytes(len(raw)))

    layout, file = landed(store, slow_numbers(rng))
    real, asked = blocks.parse, list[str]()

    def parse(spec: str) -> object:
        asked.append(spec)
        return Wrong() if len(asked) == 1 else real(spec)  # the second is asked for to decode

    monkeypatch.setattr(blocks, "parse", parse)
    with pytest.raises(UnknownFormat, match=r"decodes .* to other bytes than were written"):
        made_of(store, layout, file, codec="zstd:1")
    assert [stat.key for stat in store.list()] == [f"{FOLDER}/optimizer.blocks"]
