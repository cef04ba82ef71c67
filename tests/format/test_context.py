"""The context comes back as it was, and refuses what is none."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from mementum.errors import NotReadableHere, UnknownFormat, UnsupportedState
from mementum.format import context
from mementum.format.fields import FORMAT, PLAIN

STATE = {"step": 3, "values": {"best": float("inf"), 1: (2, None)}, "components": {"m": OrderedDict(a=[1.5])}}


def test_what_was_rendered_is_parsed() -> None:
    found = context.parse(context.render(STATE), "context")
    assert found == {"format": PLAIN, **STATE}
    assert type(found["components"]["m"]) is OrderedDict
    assert context.parse(memoryview(context.render(STATE)), "context") == found


def test_names_of_files_by_rank() -> None:
    assert (context.name(0), context.name(77)) == ("context-00000.json", "context-00077.json")


def test_what_has_no_typed_form_is_named() -> None:
    with pytest.raises(UnsupportedState, match=r"values.*best") as caught:
        context.render({"values": {"best": object()}})
    assert caught.value.kept == "nothing was written"


def test_a_newer_format_is_refused_with_both_versions() -> None:
    with pytest.raises(
        NotReadableHere, match=f"ctx has format {FORMAT + 1}, this mementum reads up to {FORMAT}"
    ) as caught:
        context.parse(context.render({"format": FORMAT + 1}), "ctx")
    assert caught.value.next_command == "pip install --upgrade mementum"


@pytest.mark.parametrize(
    "data", [b"[]", b"1", b"null", b"{}", b'{"format":"1"}', b'{"format":true}', b'{"format":1.0}']
)
def test_what_is_no_context_is_said_to_be_that(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="ctx is not a context"):
        context.parse(data, "ctx")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"format":1,"x":{"$nothing":1}}', b"[" * 100_000])
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        context.parse(data, "ctx")


def test_every_cut_is_refused() -> None:
    data = context.render(STATE)
    for end in range(len(data.rstrip())):
        with pytest.raises(UnknownFormat):
            context.parse(data[:end], "ctx")
