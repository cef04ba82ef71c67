"""Recorded vital signs: rows of one size after a line that names their columns, in chunks that prove themselves."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import xxhash

from mementum.errors import NewerFormat, UnknownFormat
from mementum.format.fields import Fields, read_json
from mementum.records import Damage, Vitals, record

FORMAT = 1  # of these files, counted apart from that of checkpoints
STEP, SEEN = "step", "seen"
# What people compare digit by digit has eight bytes; of all else the first seven digits tell enough.
COLUMNS = (
    (STEP, "<i8"),
    (SEEN, "<u4"),  # bit 0: `finite`; bit k: the k-th column after this one has a value
    ("at_s", "<f8"),
    ("loss", "<f8"),
    ("grad_norm", "<f8"),
    ("lr", "<f8"),
    ("loss_z", "<f4"),
    ("loss_slope", "<f4"),
    ("loss_spread", "<f4"),
    ("grad_z", "<f4"),
    ("layer_ratio", "<f4"),
    ("grad_noise", "<f4"),
    ("update_ratio", "<f4"),
    ("curvature", "<f4"),
    ("memory_used", "<f4"),
    ("memory_steps_left", "<f4"),
    ("step_s", "<f4"),
)
CODES = {"<i8": "q", "<u4": "I", "<f8": "d", "<f4": "f"}
VALUES = tuple(name for name, _ in COLUMNS[2:])
EXACT = frozenset(name for name, dtype in COLUMNS if dtype == "<f8")  # what comes back with every bit it had
KNOWN = frozenset(VALUES)
ROW = struct.Struct("<" + "".join(CODES[dtype] for _, dtype in COLUMNS))
ALL_SEEN = (1 << len(VALUES) + 1) - 1
SEEN_BITS = 32
MARK = b"\xf5vit"  # begins a chunk; its first byte stands in no text
FRAME = struct.Struct("<4sIQ")  # mark, bytes of the rows, digest of these
LINE = b'{"format":'  # begins the line that names the columns
LINE_BYTES_MAX = 1 << 14  # twenty times what the line has; a longer one is none of ours
ROWS_MAX = 1 << 16  # of a chunk: more than any recorder lets wait
STEP_MAX = (1 << 63) - 1
KEY = re.compile(r"vitals/(\d{4,})\.vitals")

_values = attrgetter(*VALUES)


@record
class _Layout:
    row: struct.Struct
    steps: struct.Struct  # of the same size, with nothing but the step in it
    names: tuple[str, ...]


class Rows(Mapping[int, Vitals]):
    """Rows by step, decoded when they are asked for: a million of them as records would take half a gigabyte.

    A step that stands twice, because an append had to be repeated, is the later one."""

    def __init__(self, chunks: Sequence[tuple[bytes, _Layout]] = (), *, first: int = 0, last: int = STEP_MAX) -> None:
        self._chunks = chunks
        self._places: dict[int, int] = {}  # chunk times ROWS_MAX, plus the row's number in it
        for number, (rows, layout) in enumerate(chunks):
            for place, (step,) in enumerate(layout.steps.iter_unpack(rows), start=number * ROWS_MAX):
                if first <= step <= last:
                    self._places[step] = place

    def __getitem__(self, step: int) -> Vitals:
        number, place = divmod(self._places[step], ROWS_MAX)
        rows, layout = self._chunks[number]
        return _decoded(rows, place * layout.row.size, layout)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@record
class Recorded:
    """What a file of vital signs holds, in its own order.

    `damage`: stretches in its midst that are not what was written, and are left out. `torn`: bytes at its end that a
    kill or a power cut kept from becoming a whole chunk; that is no damage."""

    rows: Rows
    damage: tuple[Damage, ...] = ()
    torn: int = 0


def key(attempt: int) -> str:
    return f"vitals/{attempt:04d}.vitals"


def attempt_of(name: str) -> int | None:
    """The number of the attempt whose vital signs the key holds; None if it is no such key."""
    found = KEY.fullmatch(name)
    return None if found is None else int(found[1])


def begin() -> bytes:
    """The line before the first chunk. Its digest is that of all bytes of the line before `,"digest"`."""
    fields = {"format": FORMAT, "what": "vital signs", "row_bytes": ROW.size, "columns": [list(c) for c in COLUMNS]}
    text = json.dumps(fields, separators=(",", ":"))[:-1].encode()
    return text + _ending(text)


def _ending(text: bytes) -> bytes:
    return f',"digest":"{xxhash.xxh3_64_hexdigest(text)}"}}\n'.encode()


def row(vitals: Vitals) -> bytes:
    """The row of one step, 88 bytes, little-endian. What is None is marked as not seen; NaN and infinities stay what
    they are, and a number too large for four bytes becomes infinite."""
    values = _values(vitals)
    try:
        if None not in values:
            return ROW.pack(vitals.step, ALL_SEEN if vitals.finite else ALL_SEEN - 1, *values)
        return _pack(vitals, values)
    except (OverflowError, TypeError, ValueError, RuntimeError, struct.error):
        plain = (_plain(name, value) for name, value in zip(VALUES, values, strict=True))
        return _pack(vitals, tuple(plain))


def _pack(vitals: Vitals, values: Sequence[float | None]) -> bytes:
    seen = 1 if vitals.finite else 0
    for bit, value in enumerate(values, start=1):
        if value is not None:
            seen |= 1 << bit
    return ROW.pack(vitals.step, seen, *(0.0 if value is None else value for value in values))


def _plain(name: str, value: object) -> float | None:
    """A number that its column can hold. What is no number counts as not seen."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    try:
        struct.pack("<d" if name in EXACT else "<f", number)
    except OverflowError:
        return math.copysign(math.inf, number)
    return number


def chunk(rows: Sequence[bytes]) -> bytes:
    """Rows as they are appended at once, at most ROWS_MAX of them."""
    assert 0 < len(rows) <= ROWS_MAX, f"{len(rows)} rows make no chunk"
    data = b"".join(rows)
    return FRAME.pack(MARK, len(data), _digest(data)) + data


def _digest(data: bytes | memoryview) -> int:
    """xxh3_64, with the size as its seed, so that the size is proved too."""
    return xxhash.xxh3_64_intdigest(data, seed=len(data))


def parse(data: bytes | memoryview, what: str = "vitals", *, first: int = 0, last: int = STEP_MAX) -> Recorded:
    """The rows of the steps from `first` to `last`. UnknownFormat if no line names the columns (one of which only the
    beginning was written is `torn`), NewerFormat if a newer mementum wrote it."""
    raw = bytes(data)
    layouts: dict[int, _Layout] = {}
    chunks: list[tuple[int, int]] = []
    damage: list[Damage] = []
    at = torn = 0
    while at < len(raw):
        line_end = _line_end(raw, at)
        end = line_end or _chunk_end(raw, at)
        if end is None:
            end = _resume(raw, at)
            if end == len(raw) and _is_torn(raw, at):
                torn = end - at
            else:
                damage.append(_unlike(what, at, end))
        elif line_end is not None:
            layouts[at] = _layout(read_json(raw[at:end], f"{what}, its line"))
        else:
            chunks.append((at, end))
        at = end
    begins_well = raw.startswith(LINE[: len(raw)])
    if not layouts and (chunks or damage or not begins_well):
        raise UnknownFormat(f"{what} has no whole line that names its columns")
    found: list[tuple[bytes, _Layout]] = []
    for start, end in chunks:
        # The line that holds is the last one before; where that one was lost, the next: one process wrote them all.
        layout = layouts[max((line for line in layouts if line < start), default=min(layouts))]
        count, rest = divmod(end - start - FRAME.size, layout.row.size)
        if rest or count > ROWS_MAX:
            damage.append(_unlike(what, start, end))
        else:
            found.append((raw[start + FRAME.size : end], layout))
    return Recorded(rows=Rows(found, first=first, last=last), damage=tuple(damage), torn=torn)


def _unlike(what: str, start: int, end: int) -> Damage:
    return Damage(key=what, what=f"bytes {start} to {end} are not what was written; their rows are left out")


def _line_end(raw: bytes, at: int) -> int | None:
    """The end of a whole line that names columns, if one begins here."""
    if not raw.startswith(LINE, at):
        return None
    end = raw.find(b"\n", at, at + LINE_BYTES_MAX) + 1
    text, _, _ = raw[at:end].rpartition(b',"digest":')
    return end if end and raw[at:end] == text + _ending(text) else None


def _chunk_end(raw: bytes, at: int) -> int | None:
    """The end of a whole chunk, if one begins here."""
    if not raw.startswith(MARK, at) or len(raw) - at < FRAME.size:
        return None
    _, size, digest = FRAME.unpack_from(raw, at)
    start = at + FRAME.size
    rows = memoryview(raw)[start : start + size]
    return start + size if 0 < size == len(rows) and _digest(rows) == digest else None


def _resume(raw: bytes, at: int) -> int:
    """Where the next whole line or chunk begins; the end if there is none."""
    places = re.compile(re.escape(MARK) + b"|" + re.escape(LINE))
    for found in places.finditer(raw, at + 1):
        if _line_end(raw, found.start()) is not None or _chunk_end(raw, found.start()) is not None:
            return found.start()
    return len(raw)


def _is_torn(raw: bytes, at: int) -> bool:
    """Whether what stands here is the beginning of a line or chunk that goes on after the file's end."""
    rest = raw[at : at + LINE_BYTES_MAX]
    if rest.startswith(MARK) and len(rest) >= FRAME.size:
        return at + FRAME.size + int(FRAME.unpack_from(rest)[1]) > len(raw)
    if rest.startswith(LINE):
        return b"\n" not in rest
    return MARK.startswith(rest[: len(MARK)]) or LINE.startswith(rest)


def _layout(fields: Fields) -> _Layout:
    if fields.count("format") > FORMAT:
        raise NewerFormat(
            f"{fields.path} has format {fields.count('format')}, this mementum reads up to {FORMAT}",
            kept="the file, as it is; the checkpoints need nothing of it",
            next_command="pip install --upgrade mementum",
        )
    columns = fields.items("columns")
    if not all(isinstance(column, list) and len(column) == 2 and str(column[1]) in CODES for column in columns):
        fields.wrong("columns", "a list of names with their dtypes")
    names = tuple(str(name) for name, _ in columns)
    if names[:2] != (STEP, SEEN) or len(set(names)) < len(names) or len(names) > SEEN_BITS:
        fields.wrong("columns", f"columns of different names after {STEP} and {SEEN}")
    row = struct.Struct("<" + "".join(CODES[dtype] for _, dtype in columns))
    steps = struct.Struct(f"<q{row.size - 8}x")
    return _Layout(row=row, steps=steps, names=names[2:])


def _decoded(rows: bytes, offset: int, layout: _Layout) -> Vitals:
    """A column that this version does not know is passed over, and one that is not there was not seen."""
    step, seen, *values = layout.row.unpack_from(rows, offset)
    given = {
        name: value
        for bit, (name, value) in enumerate(zip(layout.names, values, strict=True), start=1)
        if name in KNOWN and seen >> bit & 1
    }
    return Vitals(step=step, finite=bool(seen & 1), **{"at_s": 0.0, **given})
