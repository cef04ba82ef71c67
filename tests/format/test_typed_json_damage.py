"""Whatever bytes typed JSON is given, it reads them or answers with an error of ours that names the place."""

from __future__ import annotations

import json
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Flag, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mementum.errors import CheckpointError, MementumError, UnknownFormat
from mementum.format import typed_json
from mementum.format.typed_json import TensorRef, dumps, loads


class Level(IntEnum):
    LOW = 1


class Bits(Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: Any = None


MALFORMED = [
    *("", "{", "nul", "[1,]", "\ufeff1", "NaN", "Infinity", "-Infinity", "[1e999]", "9223372036854775808", "1" * 5000),
    *('{"a":1,"a":1}', '{"a":{"$tuple":[],"$tuple":[]}}', '{"$new":1}', '{"$":1}', '{"$tuple":[],"b":1}'),
    *('{"$int":5}', '{"$int":"5"}', '{"$int":"0xg"}', '{"$float":"7ff"}', '{"$float":null}', '{"$str":"/"}'),
    *(
        '{"$bytes":"a"}',
        '{"$bytes":"é"}',
        '{"$bytes":1}',
        '{"$bytearray":[]}',
        '{"$complex":[1.0]}',
        '{"$complex":[1,2]}',
    ),
    *('{"$tuple":{}}', '{"$tuple":"ab"}', '{"$list":[]}', '{"$dict":[[1]]}', '{"$dict":[[[],1]]}', '{"$dict":{"a":1}}'),
    *('{"$dict":[[1,2],[true,3]]}', '{"$dict":[[{"$tensor":"a"},1]]}', '{"$set":[1,1]}', '{"$set":[[]]}', '{"$set":1}'),
    *(
        '{"$set":[{"$tensor":"a"}]}',
        '{"$deque":[[1,2],1]}',
        '{"$deque":[[],-1]}',
        '{"$deque":[[],9223372036854775808]}',
    ),
    *('{"$deque":[]}', '{"$counter":3}', '{"$ordered_dict":[[]]}', '{"$ordered_dict":[[],[]]}', '{"$namespace":[1]}'),
    *('{"$namespace":{"$dict":[[1,2]]}}', '{"$defaultdict":["eval",[]]}', '{"$defaultdict":[[],[]]}'),
    *('{"$range":[0,1,0]}', '{"$range":[0,1.5,1]}', '{"$slice":[1,2]}', '{"$fraction":[1,0]}', '{"$decimal":"x"}'),
    *('{"$uuid":"x"}', '{"$uuid":5}', '{"$date":"2024-13-01"}', '{"$date":7}', '{"$datetime":["2024-01-01",2,null]}'),
    *('{"$datetime":["2024-01-01",0,[9,0,0]]}', '{"$time":["25:00",0,null]}', '{"$timedelta":[9999999999,0,0]}'),
    *('{"$timezone":5}', '{"$timezone":[1,2]}', '{"$path":["PosixPath"]}', '{"$path":["Popen","x"]}', '{"$tensor":1}'),
    *('{"$enum":["enum:Enum"]}', '{"$enum":["re:RegexFlag",[]]}', '{"$namedtuple":[1,[],[]]}', '{"$namedtuple":[]}'),
    f'{{"$enum":["{__name__}:Bits",64]}}',
    f'{{"$enum":["{__name__}:Level",1]}}',
    f'{{"$namedtuple":["{__name__}:Point",["x","y"],[1]]}}',
]


@pytest.mark.parametrize("text", MALFORMED)
def test_refuses_what_it_never_wrote(text: str) -> None:
    with pytest.raises(UnknownFormat, match=r"^\$"):
        loads(text.encode())
    with pytest.raises(UnknownFormat, match=r"^\$(: not typed JSON|\.here\[1\])"):
        loads(b'{"here":[0,' + text.encode() + b"]}")


def test_refuses_bytes_that_are_no_text() -> None:
    for data in (b"\xff", '"a"'.encode("utf-16"), b'"\xed\xa0\x80"'):
        with pytest.raises(UnknownFormat):
            loads(data)


GONE = [
    ('{"$enum":["no_such_module:Level","LOW"]}', "import no_such_module before resuming"),
    (f'{{"$enum":["{__name__}:Level","HIGH"]}}', "has no member 'HIGH'"),
    (f'{{"$enum":["{__name__}:Point","LOW"]}}', "not a class of the kind Enum"),
    ('{"$enum":["os:system","LOW"]}', "not a class of the kind Enum"),
    (f'{{"$namedtuple":["{__name__}:Gone",[],[]]}}', "not among the imported modules"),
    (f'{{"$namedtuple":["{__name__}:Point",["x"],[1]]}}', r"\('x', 'y'\) now"),
    ('{"$namedtuple":["builtins:tuple",[],[]]}', "has the fields None now"),
]


@pytest.mark.parametrize(("text", "says"), GONE)
def test_a_class_that_is_gone_is_named(text: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        loads(b'{"a":' + text.encode() + b"}")
    assert str(caught.value).startswith("$.a: ")


def test_a_stored_name_imports_nothing() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(CheckpointError):
        loads(b'{"$enum":["antigravity:x","y"]}')
    assert "antigravity" not in sys.modules


def survives(data: bytes) -> None:
    """Either it is refused with an error of ours, or what came out can be written and read again."""
    try:
        value = loads(data)
    except MementumError:
        return
    assert dumps(loads(dumps(value))) == dumps(value)


TAGS = sorted({*typed_json.LEAF_DECODERS, *typed_json.typed_containers.DECODERS})
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(
        ["<f4", "<U1", "float32", "", "AAAA", "AAAAAA==", "0x1", "cpu", "enum:Flag", "re:RegexFlag", "int"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
        | st.dictionaries(st.sampled_from(TAGS), inner, min_size=1, max_size=1)
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(JUNK)
@example({"$enum": ["enum:Flag", 3]})
@example({"$namedtuple": ["time:struct_time", [], []]})
def test_any_json_is_answered(value: object) -> None:
    survives(json.dumps(value).encode())


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_are_answered(data: bytes) -> None:
    survives(data)


DOCUMENTS = [
    dumps(value)
    for value in (
        [1, -2.5, None, True, "ä", 2**80, float("nan"), 1j, "\ud800", b"ab", range(3), Path("a/b")],
        {"a": {1: (2, [3])}, "b": {frozenset({1, 2}): {3, "x"}}, "c": OrderedDict(a=1), "d": defaultdict(int, x=1)},
        [deque([1, 2], maxlen=3), Counter("ab"), slice(1, 2), types.SimpleNamespace(a=1), Point(1, "b")],
        [Level.LOW, Bits.A | Bits.B, TensorRef(name="w"), Fraction(1, 3), Decimal("1.5"), UUID(int=5)],
        [datetime(2024, 1, 2, 3, tzinfo=UTC), time(1, fold=1), timedelta(1), timezone(timedelta(hours=1), "CET")],
        [np.float32(1.5), np.str_("é"), np.arange(3), np.array(["a", "b"]), np.datetime64("2024-01-01")],
        [torch.ones(2, 2), torch.tensor(True), torch.Size([2]), torch.float16, torch.device("cuda", 1)],
    )
]


@settings(max_examples=300)
@given(st.sampled_from(DOCUMENTS), st.randoms(use_true_random=False))
def test_any_mutation_is_answered(document: bytes, random: Any) -> None:
    data = bytearray(document)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        match random.randrange(3):
            case 0:
                del data[at : at + random.randint(1, 4)]
            case 1:
                data[at : at + 1] = random.choice([b'"', b"[", b"]", b"0", b"9", b"-", b"null", b"{}", b"$", b"\xff"])
            case _:
                other = random.choice(DOCUMENTS)
                data[at:at] = other[random.randrange(len(other)) :]
    survives(bytes(data))


def nodes(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with every key of it."""
    if isinstance(data, list | dict):
        for key in range(len(data)) if isinstance(data, list) else list(data):
            yield data, key
            yield from nodes(data[key])


PLACES = [json.dumps(place[key]) for document in DOCUMENTS for place, key in nodes(json.loads(document))]


@settings(max_examples=300)
@given(st.sampled_from(DOCUMENTS), st.randoms(use_true_random=False))
def test_any_transplant_is_answered(document: bytes, random: Any) -> None:
    data = json.loads(document)
    for _ in range(random.randint(1, 2)):
        place, key = random.choice(list(nodes(data)))
        if isinstance(place, dict) and random.random() < 0.2:
            place[random.choice(TAGS)] = place.pop(key)
        else:
            place[key] = json.loads(random.choice(PLACES))
    survives(json.dumps(data).encode())
