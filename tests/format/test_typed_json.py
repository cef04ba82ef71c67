"""Typed JSON gives back what it was given, names what it refuses, and answers any bytes with its own errors."""

from __future__ import annotations

import copy
import math
import re
import struct
import subprocess
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mementum.errors import UnknownFormat, UnsupportedState
from mementum.format import typed_json
from mementum.format.typed_json import MAX_DEPTH, TensorRef, decode, dumps, encode, loads


class Colour(Enum):
    RED = "r"
    ALSO_RED = RED
    PAIR = (1, 2)


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    A = "a"


class Bits(Flag):
    A = 1
    B = 2


class IntBits(IntFlag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: Any = None


Old = namedtuple("Old", "left right")


class Loose(Point):
    """A namedtuple that can carry more than its fields."""


class Number(int):
    pass


def same(left: Any, right: Any) -> bool:
    """Equal in type, in bits and in order, all the way down."""
    if type(left) is not type(right):
        return False
    match left:
        case Enum():
            return left is right
        case float():
            return struct.pack(">d", left) == struct.pack(">d", right)
        case complex():
            return same((left.real, left.imag), (right.real, right.imag))
        case OrderedDict():
            return same(list(left.items()), list(right.items())) and same(vars(left), vars(right))
        case dict():
            factories = [getattr(one, "default_factory", None) for one in (left, right)]
            return factories[0] is factories[1] and same(list(left.items()), list(right.items()))
        case set() | frozenset():
            return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
        case deque():
            return left.maxlen == right.maxlen and same(list(left), list(right))
        case tuple() | list():
            return len(left) == len(right) and all(map(same, left, right))
        case slice():
            return same((left.start, left.stop, left.step), (right.start, right.stop, right.step))
        case types.SimpleNamespace():
            return same(vars(left), vars(right))
        case datetime() | time():
            return repr(left) == repr(right)
        case Decimal():
            return str(left) == str(right)
    return left == right


def double(digits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(digits))[0]
    return value


def ordered() -> Any:
    value: Any = OrderedDict([("b", 1), ("a", (2,))])
    value._metadata = OrderedDict({"": {"version": 1}})
    return value


def nested(levels: int, wrap: Any) -> object:
    value: object = 2**70
    for _ in range(levels):
        value = wrap(value)
    return value


CET = timezone(timedelta(hours=1), "CET")
VALUES = [
    *(None, True, False, 0, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) + 1, 2**64, 10**5000, -(10**5000)),
    *(0.0, -0.0, 0.1, 5e-324, 1e308, 1e16, math.inf, -math.inf, math.nan, -math.nan),
    *(double("7ff8000000000001"), double("7ff0000000000001"), double("fff8deadbeef0000")),
    *(1j, complex(-0.0, -0.0), complex(math.nan, -math.inf), complex(double("7ff8000000000007"), 1)),
    *("", "plain", "naïve 中文 🙂", '\x00\u2028"\\', "$int", "\ud800", "\ud83d\ude00", "a\udcff"),
    *(b"", b"\x00\xff", bytearray(b"ab"), bytearray()),
    *([], [1, [2, []]], (), (1,), (1, (2.0, "x")), [(), {}]),
    *({}, {"a": 1, "b": {"c": [None]}}, {"b": 1, "a": 2}, {"": 0}, {"$a": 1}, {"a": 1, "$b": 2}, {"\ud800": 1}),
    {1: "a", 2.5: "b", None: "c", False: "d", (1, ("x", frozenset({2}))): "e", b"k": "f", Colour.RED: "g", 2**80: "h"},
    {math.nan: 1, double("7ff8000000000001"): 2, -0.0: 3},
    {1j: 1, date(2020, 1, 1): 2, Path("x"): 3, Decimal("1.0"): 4, Point(1, 2): 5, range(3): 6},
    *(set(), {1, 2, 3}, {"a", 1.5, None, (1, 2)}, frozenset(), frozenset({frozenset({1}), frozenset()})),
    *(deque(), deque([1, 2]), deque([1, (2,)], maxlen=5), deque(maxlen=0)),
    *(Counter(), Counter("abca"), Counter({(1, 2): 0, "x": -1})),
    *(OrderedDict(), OrderedDict([(2, "b"), (1, "a")]), ordered()),
    *(defaultdict(None, {1: 2}), defaultdict(list, {"a": [1]}), defaultdict(int), defaultdict(str, {"$": "x"})),
    *(Colour.RED, Colour.PAIR, Level.LOW, Word.A, re.RegexFlag.MULTILINE),
    *(Bits.A, Bits.A | Bits.B, Bits(0), IntBits.B, IntBits.A | IntBits.B, IntBits(8), ~IntBits.A),
    *(Point(1), Point(y=[1], x=2), Old(left=Point(1), right=())),
    *(range(0), range(5), range(10, 2**70, 3), range(5, 0, -1), slice(None), slice(1, 2**70, None), slice("a", (1,))),
    *(types.SimpleNamespace(), types.SimpleNamespace(a=1, b=types.SimpleNamespace(c=(1,)))),
    *(date(1, 1, 1), datetime(2024, 2, 29, 12, 30, 1, 5), datetime(2024, 1, 1, tzinfo=UTC), datetime(9, 1, 1, fold=1)),
    *(datetime(2024, 1, 1, tzinfo=CET), time(1, 2, 3, 4), time(0, fold=1), time(1, tzinfo=CET)),
    datetime(2024, 1, 1, tzinfo=timezone(-timedelta(hours=5, seconds=1, microseconds=7))),
    *(timedelta(0), timedelta(days=-3, microseconds=1), timedelta.max, timedelta.min, UTC, CET),
    *(Path(), Path("/a/b"), Path("//x/y"), Path("a\udcff"), PurePosixPath("x/.."), PureWindowsPath(r"C:\x")),
    *(Decimal("1.10"), Decimal("-0"), Decimal("NaN123"), Decimal("sNaN"), Decimal("-Infinity"), Decimal("1E+400")),
    *(Fraction(1, 3), Fraction(-(10**40), 7), UUID(int=5), TensorRef(name="optimizer.state.0/exp_avg")),
    {"state": {0: {"step": 3, "exp_avg": TensorRef(name="t")}}, "param_groups": [{"betas": (0.9, 0.999)}]},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_comes_back_the_same(value: object) -> None:
    data = dumps(value)
    assert same(loads(data), value)
    assert same(decode(encode(value)), value)
    assert dumps(loads(data)) == data


def test_shared_empty_and_zone_identities() -> None:
    assert loads(dumps(UTC)) is UTC
    zone = loads(dumps(CET))
    assert isinstance(zone, timezone)
    assert (zone.tzname(None), zone.utcoffset(None)) == ("CET", timedelta(hours=1))


def test_a_factory_still_makes() -> None:
    value = loads(dumps(defaultdict(list)))
    assert isinstance(value, defaultdict)
    assert value["new"] == []


def test_what_it_looks_like() -> None:
    assert dumps({"a": [1, 2.5, "ä", None, True]}) == '{"a":[1,2.5,"ä",null,true]}'.encode()
    assert encode((1, -0.0)) == {"$tuple": [1, -0.0]}
    assert encode(2**63) == {"$int": "0x8000000000000000"}
    assert encode(math.inf) == {"$float": "7ff0000000000000"}
    assert encode({1: 2}) == {"$dict": [[1, 2]]}
    assert encode(TensorRef(name="w")) == {"$tensor": "w"}
    assert encode(Colour.ALSO_RED) == {"$enum": [f"{__name__}:Colour", "RED"]}
    assert encode(Bits.A | Bits.B) == {"$enum": [f"{__name__}:Bits", 3]}
    assert encode(Point(1, "b")) == {"$namedtuple": [f"{__name__}:Point", ["x", "y"], [1, "b"]]}


def test_sets_do_not_depend_on_the_hash_seed() -> None:
    program = "from mementum.format.typed_json import dumps; print(dumps({*map(str, range(50)), frozenset('abcdef')}))"
    run = {seed: {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)} for seed in ("1", "2")}
    one, two = (
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout
        for env in run.values()
    )
    assert one == two != b""


def test_starts_without_torch_and_numpy() -> None:
    program = "import sys, mementum.format.typed_json as t; t.loads(t.dumps({1: (2,)})); "
    program += "print({'torch', 'numpy'} & {*sys.modules})"
    env = {"PYTHONPATH": ":".join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout == b"set()\n"
    )


def local_enum() -> Enum:
    class Local(Enum):
        A = 1

    return Local.A


def loose() -> Any:
    value: Any = Loose(1, 2)
    value.more = 1
    return value


def itself() -> list[object]:
    value: list[object] = [1]
    value.append({"k": (value,)})
    return value


REFUSED: list[tuple[object, str, str]] = [
    (object(), "$", "no typed form"),
    ({"scheduler": {"lambdas": [lambda step: step]}}, "$.scheduler.lambdas[0]", "no typed form"),
    ({"odd key": [0, 1, 2, math]}, '$["odd key"][3]', "no typed form"),
    ({"ä": {"\ud800": print}}, '$["\\u00e4"]["\\ud800"]', "no typed form"),
    ({1: {(1, "a"): {None: int}}}, "$[1][(1, 'a')][None]", "no typed form"),
    ({10**5000: int}, "$[<int>]", "no typed form"),
    ({"a": {object: 1}}, "$.a.keys()[0]", "no typed form"),
    ({1: 0, TensorRef(name="t"): 1}, "$.keys()[1]", "cannot be a key"),
    ({"s": {(1, print)}}, "$.s{(1, <built-in function print>)}[1]", "no typed form"),
    ([(1, {2, Number(3)})], "$[0][1]{3}", "subclass of int"),
    (Point(1, [print]), "$.y[0]", "no typed form"),
    (types.SimpleNamespace(a=[print]), "$.a[0]", "no typed form"),
    (deque([0, print]), "$[1]", "no typed form"),
    (slice(0, print), "$.stop", "no typed form"),
    ({"c": Counter(a=print)}, "$.c.a", "no typed form"),
    ({"d": defaultdict(lambda: 0)}, "$.d.default_factory", "none of int"),
    (Number(1), "$", "subclass of int"),
    ({"x": type("Text", (str,), {})("a")}, "$.x", "subclass of str"),
    ([type("Mapping", (dict,), {})()], "$[0]", "subclass of dict"),
    (loose(), "$", "beside its fields"),
    (local_enum(), "$", "cannot be found by its name"),
    (datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")), "$", "fixed offset"),
    (itself(), "$[1].k[0]", "refers to itself"),
    ((item for item in ()), "$", "no typed form"),
]


@pytest.mark.parametrize(("value", "path", "why"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_refuses_and_names_the_path(value: object, path: str, why: str) -> None:
    with pytest.raises(UnsupportedState, match=re.escape(why)) as caught:
        dumps(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


def test_the_path_continues_the_given_one() -> None:
    with pytest.raises(UnsupportedState) as caught:
        encode([print], path="$.optimizer")
    assert caught.value.path == "$.optimizer[0]"
    with pytest.raises(UnknownFormat, match=re.escape("$.optimizer[0]: ")):
        decode([{"$new": 1}], path="$.optimizer")


WRAPS: dict[str, Any] = {
    "list": lambda value: [value],
    "dict": lambda value: {"a": value},
    "pairs": lambda value: {1: value},
    "tuple": lambda value: (value,),
    "frozenset": lambda value: frozenset({value}),
    "key": lambda value: {(value,): 1} if type(value) is int else (value,),
    "deque": lambda value: deque([value]),
    "ordered": lambda value: OrderedDict(a=value),
    "namedtuple": lambda value: Point(1, value),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_depth_limit_is_the_same_both_ways(wrap: Any) -> None:
    deep = nested(MAX_DEPTH - 1, wrap)
    assert dumps(loads(dumps(deep))) == dumps(deep)
    with pytest.raises(UnsupportedState, match="200 others"):
        dumps(nested(MAX_DEPTH + 1, wrap))


def test_depth_never_ends_in_a_recursion_error() -> None:
    for data in (b"[" * 100_000, b"[" * 250 + b"]" * 250, b'{"$tuple":[' * 300 + b"]}" * 300, b'{"a":' * 99_999):
        with pytest.raises(UnknownFormat):
            loads(data)

    def down(levels: int, call: Any) -> object:
        return down(levels - 1, call) if levels else call()

    deep, data = nested(MAX_DEPTH - 1, WRAPS["tuple"]), dumps(nested(MAX_DEPTH - 1, WRAPS["tuple"]))
    with pytest.raises(UnsupportedState, match="stack"):
        down(sys.getrecursionlimit() - 300, lambda: dumps(deep))
    with pytest.raises(UnknownFormat, match="deeply"):
        down(sys.getrecursionlimit() - 300, lambda: loads(data))


def test_what_doubles_at_every_level_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_json, "MAX_VALUES", 10_000)
    with pytest.raises(UnsupportedState, match="more than 10000 values"):
        dumps(nested(60, lambda value: [value, value]))


def test_too_large_a_document_is_refused_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_json, "MAX_SIZE", 10)
    assert loads(dumps("12345678")) == "12345678"
    with pytest.raises(UnsupportedState, match="11 bytes"):
        dumps("123456789")
    with pytest.raises(UnknownFormat, match="11 bytes"):
        loads(b'"123456789"')


KEYS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.sampled_from(Bits)),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
LEAVES = st.one_of(
    KEYS,
    st.characters(categories=["Cs"]),
    st.complex_numbers(),
    st.datetimes(timezones=st.just(UTC) | st.none()),
    st.timedeltas(),
    st.fractions(),
    st.decimals(),
    st.uuids(),
    st.builds(TensorRef, name=st.text()),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
        st.builds(Point, st.integers(), inner),
        st.sets(KEYS, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(TREES)
def test_any_tree_comes_back_the_same(value: object) -> None:
    data = dumps(value)
    assert same(loads(data), value)
    assert dumps(loads(data)) == data


def test_encoding_leaves_the_value_alone() -> None:
    value = {"a": deque([1, {2}], maxlen=3), 5: defaultdict(int, x=1)}
    before = copy.deepcopy(value)
    dumps(value)
    assert same(value, before)
