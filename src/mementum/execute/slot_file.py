"""The byte format of a slot file: a snapshot in shared memory that says of itself whether it is whole.

Page 0 is the flag page: magic, flag, the stamp's length, its blake3, the stamp (JSON). The flag is cleared before
anything else is changed and set after everything else was written. Raw streams of files follow, each at a multiple of
4096; behind them lies the tail: the sizes of these files, eight bytes each, and the head. The stamp holds the tail's
place and blake3. The streams have no digest here: it is made when a snapshot is placed, or verified.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence

from blake3 import blake3

from mementum.errors import CheckpointError, UnknownFormat
from mementum.format.fields import INTEGER_MAX, PLAIN, Fields, read_json, require_known
from mementum.records import record

PAGE = 4096  # what direct I/O asks of addresses and offsets, if it asks for the most
MAGIC = b"MEMENTUM"
FLAG_AT = len(MAGIC)
VALID = b"isWHOLE\n"
INVALID = bytes(len(VALID))
PREAMBLE = struct.Struct("<8s8sQ32s")
STAMP_MAX = PAGE - PREAMBLE.size
SIZE_BYTES = 8  # of each file's size in the tail

Read = Callable[[int, int], bytes]  # offset and length to bytes; fewer at the end of the file


@record
class Layout:
    """Where the raw streams of files lie. `end` is where the data area ends and the tail begins."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    end: int


@record
class Stamp:
    """Which snapshot a slot holds, and what is needed beside its bytes."""

    seq: int
    attempt: int
    id: str
    step: int
    layout: Layout
    head: bytes

    @property
    def order(self) -> tuple[int, int, str]:
        """Sorts oldest first, as checkpoints do."""
        return (self.seq, self.attempt, self.id)


def lay(sizes: Sequence[int]) -> Layout:
    """Place files one after the other, each at a multiple of a page."""
    offsets: list[int] = []
    at = PAGE
    for size in sizes:
        assert 0 <= size < INTEGER_MAX, size
        offsets.append(at)
        at += aligned(size)
    return Layout(sizes=tuple(sizes), offsets=tuple(offsets), end=at)


def aligned(size: int) -> int:
    """Rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def render_tail(stamp: Stamp) -> bytes:
    """What lies behind the data area."""
    return struct.pack(f"<{len(stamp.layout.sizes)}Q", *stamp.layout.sizes) + stamp.head


def render_page(stamp: Stamp, tail: bytes) -> bytes:
    """The flag page, its flag not yet set."""
    fields = {
        "format": PLAIN,
        "id": stamp.id,
        "seq": stamp.seq,
        "attempt": stamp.attempt,
        "step": stamp.step,
        "files": len(stamp.layout.sizes),
        "tail": {"offset": stamp.layout.end, "size": len(tail), "blake3": blake3(tail).hexdigest()},
    }
    text = json.dumps(fields).encode()
    assert len(text) <= STAMP_MAX, f"a stamp of {len(text)} bytes"
    return (PREAMBLE.pack(MAGIC, INVALID, len(text), blake3(text).digest()) + text).ljust(PAGE, b"\0")


def prove(size: int, read: Read) -> Stamp | str:
    """The stamp of a slot file of `size` bytes, or why it holds no whole snapshot. Any bytes are an answer."""
    page = read(0, PAGE)
    if len(page) < PAGE or page[:FLAG_AT] != MAGIC:
        return "it is not a slot of mementum"
    _, flag, length, digest = PREAMBLE.unpack_from(page)
    if flag != VALID:
        return "its copy had not ended" if flag == INVALID else "its flag is garbage"
    text = page[PREAMBLE.size :][:length]
    if length > STAMP_MAX or blake3(text).digest() != digest:
        return "its stamp does not match the digest beside it"
    try:
        return _parse(require_known(read_json(text, "the stamp")), size, read)
    except CheckpointError as error:
        return error.message


def _parse(fields: Fields, size: int, read: Read) -> Stamp:
    place = Fields(fields.mapping("tail"), f"{fields.path}.tail")
    offset, length, files = place.count("offset"), place.count("size"), fields.count("files")
    if offset + length > size:
        raise UnknownFormat(f"it was cut off: {size} bytes of {offset + length}")
    tail = read(offset, length)
    if blake3(tail).hexdigest() != place.text("blake3"):
        raise UnknownFormat("its head does not match its digest")
    if files * SIZE_BYTES > length:
        raise UnknownFormat(f"its head is too short for the sizes of {files} files")
    sizes = struct.unpack_from(f"<{files}Q", tail)
    if sum(map(aligned, sizes)) + PAGE != offset:
        raise UnknownFormat("the sizes of its files do not add up")
    return Stamp(
        seq=fields.count("seq"),
        attempt=fields.count("attempt"),
        id=fields.text("id"),
        step=fields.count("step"),
        layout=lay(sizes),
        head=tail[files * SIZE_BYTES :],
    )
