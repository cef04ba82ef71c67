"""Fields read JSON of anybody's making: whatever is wrong becomes an UnknownFormat that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.errors import NotReadableHere, UnknownFormat
from mementum.format.fields import FORMAT, INTEGER_MAX, Fields, read_json, require_known

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
HALF_A_PAIR = "\ud800"


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (Fields.text, 1, "a string of valid Unicode, it is int"),
        (Fields.text, None, "a string of valid Unicode, it is NoneType"),
        (Fields.text, HALF_A_PAIR, "a string of valid Unicode, it is str"),
        (Fields.text_or_none, 1.5, "a string of valid Unicode, it is float"),
        (Fields.count, -1, "a whole number that is not negative, it is int"),
        (Fields.count, True, "a whole number that is not negative, it is bool"),
        (Fields.count, 1.0, "a whole number that is not negative, it is float"),
        (Fields.count, "1", "a whole number that is not negative, it is str"),
        (Fields.count, INTEGER_MAX, "a whole number that is not negative, it is int"),
        (Fields.mapping, [], "an object, it is list"),
        (Fields.items, {}, "a list, it is dict"),
        (Fields.texts, ["a", 1], "a list of strings of valid Unicode, it is list"),
        (Fields.texts, ["a", HALF_A_PAIR], "a list of strings of valid Unicode, it is list"),
        (Fields.texts, "ab", "a list, it is str"),
    ],
)
def test_a_field_of_another_kind_is_named(read: Callable[[Fields, str], object], value: object, expected: str) -> None:
    with pytest.raises(UnknownFormat) as caught:
        read(Fields({"it": value}, "meta.json"), "it")
    assert caught.value.message == f"meta.json.it should be {expected}"


@pytest.mark.parametrize("read", [Fields.text, Fields.count, Fields.items, Fields.texts])
def test_a_missing_field_is_named(read: Callable[[Fields, str], object]) -> None:
    with pytest.raises(UnknownFormat, match=r"(?m)^meta\.json\.it should be .*, it is missing$"):
        read(Fields({}, "meta.json"), "it")


def test_what_is_right_comes_through() -> None:
    fields = Fields({"t": "ä🙂", "n": 0, "m": {"a": 1}, "l": [1], "s": ["a"], "o": [{"x": 2}, {}], "z": None}, "f")
    assert (fields.text("t"), fields.count("n"), fields.mapping("m"), fields.items("l")) == ("ä🙂", 0, {"a": 1}, [1])
    assert (fields.texts("s"), fields.text_or_none("z"), fields.text_or_none("absent")) == (("a",), None, None)
    assert fields.mapping("absent") == {}
    assert [(inner.path, inner.data) for inner in fields.objects("o")] == [("f.o[0]", {"x": 2}), ("f.o[1]", {})]


def test_items_that_are_no_objects_are_named() -> None:
    with pytest.raises(UnknownFormat, match=r"(?m)^f\.o\[1\] is not an object but int$"):
        list(Fields({"o": [{}, 3]}, "f").objects("o"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"\x80",
        b'{"format": 1} trailing',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": ' + b"9" * 5000 + b"}",
        b"\0" * 100,
    ],
)
def test_what_is_not_json_is_said_to_be_that(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="meta is not JSON"):
        require_known(read_json(data, "meta"))


@pytest.mark.parametrize("data", [b"[]", b"1", b"null", b'"text"', b"NaN"])
def test_json_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="meta is not an object but"):
        require_known(read_json(data, "meta"))


@pytest.mark.parametrize("value", [None, "1", 1.0, -1, True, [1]])
def test_a_format_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UnknownFormat, match=r"meta\.format should be a whole number"):
        require_known(read_json(json.dumps({"format": value}).encode(), "meta"))


def test_a_newer_format_is_refused_with_both_versions_and_what_to_do() -> None:
    with pytest.raises(NotReadableHere) as caught:
        require_known(read_json(json.dumps({"format": FORMAT + 1}).encode(), "meta"))
    assert caught.value.message == f"meta has format {FORMAT + 1}, this mementum reads up to {FORMAT}"
    assert caught.value.next_command == "pip install --upgrade mementum"
    assert caught.value.kept == "the checkpoint; nothing was changed"


@given(data=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_but_unknown_format_comes_out(data: bytes) -> None:
    try:
        fields = require_known(read_json(data, "meta"))
    except UnknownFormat:
        return
    assert 0 <= fields.count("format") <= FORMAT
