"""The format of slot files: what is written is read back, and no bytes at all can make the reader raise."""

from __future__ import annotations

import json
import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mementum.execute.slot_file import (
    FLAG_AT,
    INVALID,
    MAGIC,
    PAGE,
    PREAMBLE,
    VALID,
    Layout,
    Stamp,
    lay,
    prove,
    render_page,
    render_tail,
)

HEAD = b'{"context": 1}'


def stamp(sizes: tuple[int, ...] = (5, 0, 9000), head: bytes = HEAD) -> Stamp:
    return Stamp(seq=7, attempt=2, id="step_0000000012", step=12, layout=lay(sizes), head=head)


def slot(one: Stamp, *, valid: bool = True) -> bytearray:
    """All bytes of a slot file."""
    tail = render_tail(one)
    page = bytearray(render_page(one, tail))
    if valid:
        page[FLAG_AT : FLAG_AT + len(VALID)] = VALID
    return bytearray(page + bytes(one.layout.end - PAGE) + tail)


def look(data: bytes | bytearray) -> Stamp | str:
    return prove(len(data), lambda at, size: bytes(data[at : at + size]))


def with_stamp(text: bytes, rest: bytes = b"") -> bytes:
    """A slot whose stamp says what it wants to, with its digest right."""
    return (PREAMBLE.pack(MAGIC, VALID, len(text), blake3(text).digest()) + text).ljust(PAGE, b"\0") + rest


def test_files_lie_at_multiples_of_a_page() -> None:
    assert lay((5, 0, 9000)) == Layout(sizes=(5, 0, 9000), offsets=(4096, 8192, 8192), end=8192 + 12288)
    assert lay(()) == Layout(sizes=(), offsets=(), end=PAGE)


@pytest.mark.parametrize("sizes", [(), (0,), (1, 2, 3), (4096,), tuple(range(2000))])
def test_what_is_written_is_read_back(sizes: tuple[int, ...]) -> None:
    assert look(slot(stamp(sizes))) == stamp(sizes)
    assert look(slot(stamp(sizes, head=b"")) + b"older bytes of a longer snapshot") == stamp(sizes, head=b"")


def test_an_unfinished_copy_is_not_valid() -> None:
    assert look(slot(stamp(), valid=False)) == "its copy had not ended"
    torn = slot(stamp())
    torn[FLAG_AT : FLAG_AT + len(INVALID)] = INVALID
    assert look(torn) == "its copy had not ended"


def test_every_byte_of_page_and_tail_counts() -> None:
    whole, one = slot(stamp()), stamp()
    used = [*range(bytes(whole[:PAGE]).rstrip(b"\0").__len__()), *range(one.layout.end, len(whole))]
    for at in used:
        changed = bytearray(whole)
        changed[at] ^= 0x10
        assert isinstance(look(changed), str), at


def test_every_length_is_an_answer() -> None:
    whole = slot(stamp())
    for length in [*range(0, PAGE, 97), PAGE, PAGE + 1, *range(len(whole) - 40, len(whole))]:
        assert isinstance(look(whole[:length]), str), length
    assert look(whole[:-1]) == f"it was cut off: {len(whole) - 1} bytes of {len(whole)}"
    assert look(b"") == look(b"x" * PAGE) == "it is not a slot of mementum"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"not json", "the stamp is not JSON"),
        (b"[" * 3000, "the stamp is not JSON"),
        (b"[]", "the stamp is not an object but list"),
        (b'{"format": 99}', "has format 99"),
        (b'{"format": 1, "tail": 3}', "the stamp.tail should be an object"),
        (b'{"format": 1, "tail": {"offset": -1}}', "tail.offset should be a whole number"),
        (b'{"format": 1, "tail": {"offset": 4096, "size": 1}, "files": 1}', "it was cut off"),
    ],
)
def test_a_stamp_that_says_something_else(text: bytes, why: str) -> None:
    found = look(with_stamp(text))
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(
    ("files", "tail", "why"),
    [
        (3, b"12345678", "too short for the sizes of 3 files"),
        (1 << 61, b"12345678", f"too short for the sizes of {1 << 61} files"),
        (1, struct.pack("<Q", 4096), "do not add up"),
        (1, struct.pack("<Q", (1 << 64) - 1), "do not add up"),
    ],
)
def test_a_tail_that_does_not_fit(files: int, tail: bytes, why: str) -> None:
    place = f'{{"offset": {PAGE}, "size": {len(tail)}, "blake3": "{blake3(tail).hexdigest()}"}}'
    found = look(with_stamp(f'{{"format": 1, "files": {files}, "tail": {place}}}'.encode(), tail))
    assert isinstance(found, str)
    assert why in found


def test_a_length_beyond_the_page() -> None:
    page = PREAMBLE.pack(MAGIC, VALID, (1 << 64) - 1, blake3(bytes(PAGE - PREAMBLE.size)).digest())
    assert look(page.ljust(PAGE, b"\0")) == "its stamp does not match the digest beside it"


@given(st.binary(max_size=PAGE + 200), st.booleans())
def test_random_bytes_never_raise(data: bytes, begins_well: bool) -> None:
    page = (MAGIC + VALID + data if begins_well else data).ljust(PAGE, b"\0")
    assert isinstance(look(page), str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["format", "id", "seq", "attempt", "step", "files", "tail"]), JSON), JSON, JSON)
def test_random_stamps_never_raise(fields: dict[str, object], offset: object, size: object) -> None:
    fields = {"format": 1, "tail": {"offset": offset, "size": size, "blake3": "x"}} | fields
    assert isinstance(look(with_stamp(json.dumps(fields).encode()[: PAGE - PREAMBLE.size], b"rest")), str)
