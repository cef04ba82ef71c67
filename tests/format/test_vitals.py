"""Recorded vital signs: every value comes back as itself, and what a kill or a flipped bit took is left out."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from mementum.errors import NewerFormat, UnknownFormat
from mementum.format import vitals
from mementum.records import Vitals

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "recorded" / "v1.vitals"
OPTIONAL = tuple(name for name in vitals.VALUES if name != "at_s")


def some(step: int) -> Vitals:
    """Values that four bytes hold exactly."""
    chance = random.Random(step)
    values = {name: int(8192 * chance.random() - 4096) / 64 for name in OPTIONAL if chance.random() < 0.8}
    return Vitals(step=step, at_s=step / 8, finite=chance.random() < 0.9, **values)


def file(*chunks: list[Vitals]) -> bytes:
    return vitals.begin() + b"".join(vitals.chunk([vitals.row(one) for one in rows]) for rows in chunks)


def rows_of(found: vitals.Recorded) -> tuple[Vitals, ...]:
    return tuple(found.rows.values())


def same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def test_rows_come_back() -> None:
    rows = [some(step) for step in range(1, 200)]
    found = vitals.parse(file(rows[:64], rows[64:65], rows[65:]))
    assert (rows_of(found), found.damage, found.torn) == (tuple(rows), (), 0)
    assert rows_of(vitals.parse(file(rows), first=50, last=52)) == tuple(rows[49:52])


def test_every_field_of_the_record_has_a_column() -> None:
    # Whether it was the loss that was no number is for the detectors of that very step.
    assert {field.name for field in fields(Vitals)} - {"loss_finite", "held_back"} == {*vitals.VALUES, "step", "finite"}
    assert vitals.ROW.size == 88


@given(
    st.integers(0, vitals.STEP_MAX), st.lists(st.none() | st.floats(width=32), min_size=14, max_size=14), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_none_nan_and_infinity_are_told_apart(step: int, values: list[float | None], finite: bool) -> None:
    given = dict(zip(OPTIONAL, values, strict=True))
    (row,) = vitals.parse(file([Vitals(step=step, at_s=0.5, finite=finite, **given)])).rows.values()
    assert (row.step, row.at_s, row.finite) == (step, 0.5, finite)
    for name, value in given.items():
        assert same(getattr(row, name), value), name


@pytest.mark.parametrize("name", ["loss", "grad_norm", "lr", "at_s"])
def test_what_people_compare_keeps_every_bit(name: str) -> None:
    values: dict[str, Any] = {"at_s": 0.0, name: 1 / 3}
    (row,) = vitals.parse(file([Vitals(step=1, **values)])).rows.values()
    assert getattr(row, name).hex() == (1 / 3).hex()


@pytest.mark.parametrize(
    ("value", "back"), [(1e39, math.inf), (-1e39, -math.inf), ("no number", None), (np.float32(0.5), 0.5), (True, 1.0)]
)
def test_what_does_not_fit_ends_nothing(value: Any, back: float | None) -> None:
    (row,) = vitals.parse(file([Vitals(step=3, at_s=1.0, loss=2.0, loss_z=value)])).rows.values()
    assert (row.loss, row.loss_z) == (2.0, back)


def test_a_tensor_is_a_number_or_not_seen() -> None:
    import torch

    rows = [Vitals(step=1, at_s=1.0, loss=torch.tensor(0.5)), Vitals(step=2, at_s=1.0, loss=torch.tensor([1.0, 2.0]))]
    assert [row.loss for row in rows_of(vitals.parse(file(rows)))] == [0.5, None]


def test_whatever_a_kill_cuts_off_the_rest_stays() -> None:
    rows = [some(step) for step in range(1, 10)]
    whole = file(rows[:3], rows[3:7], rows[7:])
    ends = [len(file(rows[:3])), len(file(rows[:3], rows[3:7])), len(whole)]
    for length in range(len(whole)):
        found = vitals.parse(whole[:length])
        kept = sum(end <= length for end in ends)
        assert rows_of(found) == tuple(rows[: (0, 3, 7, 9)[kept]])
        last = max((end for end in (0, len(vitals.begin()), *ends) if end <= length), default=0)
        assert (found.torn, found.damage) == (length - last, ())


def test_a_flipped_bit_costs_its_chunk_and_is_named() -> None:
    rows = [some(step) for step in range(1, 10)]
    whole = file(rows[:3], rows[3:7], rows[7:])
    start, end = len(file(rows[:3])), len(file(rows[:3], rows[3:7]))
    for place in range(start, end):
        for bit in (0, 7):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            found = vitals.parse(data, "vitals/0001.vitals")
            assert rows_of(found) == (*rows[:3], *rows[7:])
            said = f"bytes {start} to {end} are not what was written; their rows are left out"
            assert [(one.key, one.what) for one in found.damage] == [("vitals/0001.vitals", said)]
            assert found.torn == 0


def test_a_flipped_bit_in_the_last_chunk() -> None:
    data = bytearray(file([some(1)], [some(2)]))
    data[-1] ^= 1
    found = vitals.parse(data)
    assert (rows_of(found), len(found.damage), found.torn) == ((some(1),), 1, 0)


def test_a_flipped_bit_in_the_only_line_leaves_nothing_to_rely_on() -> None:
    whole = file([some(1)])
    for place in range(len(vitals.begin()) - 1):
        data = bytearray(whole)
        data[place] ^= 1
        with pytest.raises(UnknownFormat, match="v has no whole line that names its columns"):
            vitals.parse(data, "v")


def test_a_line_that_came_later_serves_what_stands_before_it() -> None:
    rows = [some(1), some(2)]
    chunk = vitals.chunk([vitals.row(rows[0])])
    found = vitals.parse(vitals.begin()[:100] + chunk + file([rows[1]]))
    assert rows_of(found) == tuple(rows)
    assert [one.what for one in found.damage] == ["bytes 0 to 100 are not what was written; their rows are left out"]


def test_half_an_append_in_the_midst_is_passed_over() -> None:
    rows = [some(step) for step in range(1, 6)]
    half = vitals.chunk([vitals.row(rows[1])])[:40]
    found = vitals.parse(file([rows[0]]) + half + file(rows[1:]))
    assert rows_of(found) == tuple(rows)
    assert len(found.damage) == 1


def test_a_mark_among_the_values_misleads_nobody() -> None:
    (value,) = struct.unpack("<q", vitals.MARK + b"\0\0\0\0")
    rows = [Vitals(step=abs(value), at_s=1.0), some(2)]
    data = bytearray(file(rows, [some(3)]))
    assert rows_of(vitals.parse(data)) == (*rows, some(3))
    data[len(vitals.begin()) + 20] ^= 1
    found = vitals.parse(data)
    assert (rows_of(found), len(found.damage)) == ((some(3),), 1)


@pytest.mark.parametrize("data", [b"\0" * 50, b"step,loss\n1,2\n", b"{}\n", vitals.MARK * 30])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        vitals.parse(data)


def test_an_empty_file_has_no_rows() -> None:
    found = vitals.parse(b"")
    assert (rows_of(found), found.damage, found.torn) == ((), (), 0)


def line(columns: list[list[str]], form: int = 1) -> bytes:
    text = json.dumps({"format": form, "columns": columns}, separators=(",", ":"))[:-1].encode()
    return text + f',"digest":"{xxhash.xxh3_64_hexdigest(text)}"}}\n'.encode()


def test_a_newer_format_is_named() -> None:
    with pytest.raises(NewerFormat, match="has format 2, this mementum reads up to 1") as raised:
        vitals.parse(line([], form=2))
    assert raised.value.next_command == "pip install --upgrade mementum"


def test_columns_may_come_and_go() -> None:
    columns = [["step", "<i8"], ["seen", "<u4"], ["colour", "<f4"], ["loss", "<f4"]]
    rows = struct.pack("<qIff", 7, 0b101, 3.0, 0.5) + struct.pack("<qIff", 8, 0b011, 3.0, 0.5)
    found = vitals.parse(line(columns) + vitals.chunk([rows]))
    assert rows_of(found) == (Vitals(step=7, at_s=0.0, loss=0.5), Vitals(step=8, at_s=0.0))


@pytest.mark.parametrize(
    "columns",
    [
        [["step", "<i8"]],
        [["step", "<i8"], ["seen", "<u4"], ["loss", "<f2"]],
        [["step", "<i8"], ["seen", "<u4"], ["loss", "<f4"], ["loss", "<f4"]],
    ],
)
def test_columns_that_make_no_sense(columns: list[list[str]]) -> None:
    with pytest.raises(UnknownFormat, match="columns should be"):
        vitals.parse(line(columns))


def test_numpy_reads_it_as_the_format_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vitals").mkdir()
    (tmp_path / vitals.key(3)).write_bytes(file([some(1)], [some(2), some(3)]))
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "numpy" in code)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["table"]["step"].tolist() == [1, 2, 3]
    assert names["table"]["at_s"].tolist() == [0.125, 0.25, 0.375]


def test_keys() -> None:
    assert vitals.key(3) == "vitals/0003.vitals"
    assert vitals.attempt_of("vitals/12345.vitals") == 12345
    assert vitals.attempt_of("vitals/0003.txt") is None


def golden_rows() -> list[Vitals]:
    rows = [some(step) for step in range(1, 70)]
    rows[3] = replace(rows[3], loss=math.inf, loss_z=-math.inf, grad_norm=None, finite=False)
    rows[4] = replace(rows[4], loss=1 / 3, memory_steps_left=math.inf)
    return rows


def test_the_golden_file_is_read_and_written_the_same() -> None:
    data = GOLDEN.read_bytes()
    rows = golden_rows()
    assert rows_of(vitals.parse(data)) == tuple(rows)
    assert file(rows[:64], rows[64:]) == data
