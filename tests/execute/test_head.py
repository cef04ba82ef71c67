"""The head of a slot: what is rendered is read again, and any bytes are an answer."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.errors import MementumError, UnknownFormat
from mementum.execute.head import Doubt, Headed, Still, Told, parse, render, render_plan
from mementum.execute.plan import FileLayout, plan
from mementum.records import Block, DataFile, Granularity, Health, Reach, Save

FACTS = {"model": [("b", "float32", (3,), 4, 12), ("w", "bfloat16", (2, 5), 2, 20), ("base", "int8", (7,), 1, 7)]}
OTHERS = {"optimizer": [("state/w/exp_avg", "float32", (2, 5), 4, 40), ("state/w/step", "float32", (), 4, 4)]}
LAYOUTS = plan(FACTS, OTHERS, codec="raw", frozen={"model": frozenset({"base"})})
TOLD = Told(
    task="größe/1",
    id="c1",
    seq=7,
    attempt=2,
    claim="0" * 64,
    parent="c0",
    step=123,
    epoch=4,
    time="2026-11-30T10:00:00Z",
    save=Save(reason="every 3\n steps", granularity=Granularity.FULL, reach=Reach.MACHINE, numbers={"interval": 3.5}),
    debug_info=({"step": 122, "loss": 0.5}, {"step": 123, "loss": float("inf")}),
    metrics={"loss": float("inf")},
    exactness=("no data",),
    versions={"torch": "2"},
    code={"commit": None, "dirty": False},
    user={"sweep": [1, {"a": "b"}]},
)


def still_of(layout: FileLayout) -> Still:
    block = Block(
        offset=0, size=layout.raw_size, raw_size=layout.raw_size, codec="raw", digest="0" * 32, raw_digest="0" * 32
    )
    file = DataFile(name=layout.name, size=layout.raw_size, blocks=(block,))
    return Still(folder="step_0000000100", file=file, tensors=layout.tensors)


STILLS = {layout.name: still_of(layout) for layout in LAYOUTS if layout.frozen}
PLANNED = render_plan(LAYOUTS, STILLS)


@pytest.mark.parametrize("context", [b"", b'{"step": 1}', b"\n\n\xff\0" * 3], ids=["none", "json", "any bytes"])
def test_what_is_rendered_is_read_again(context: bytes) -> None:
    headed = parse(render(TOLD, PLANNED, context))
    assert headed.told == TOLD
    assert headed.context == context
    assert headed.stills == STILLS
    assert [len(layout.header) for layout in headed.layouts] == [len(layout.header) for layout in LAYOUTS]
    for found, made in zip(headed.layouts, LAYOUTS, strict=True):
        assert (found.name, found.placed, found.stretches) == (made.name, made.placed, made.stretches)
        assert (found.codec, found.raw_size, found.frozen) == (made.codec, made.raw_size, made.frozen)
        assert found.tensors == made.tensors


def test_nothing_at_all_is_a_plan_too() -> None:
    headed = parse(render(TOLD, render_plan((), {}), b"{}"))
    assert (headed.layouts, headed.stills) == ((), {})


names = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
plain = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False), names, st.booleans(), st.none())


@given(
    task=names,
    step=st.integers(0, 2**53),
    claim=names,
    parent=st.none() | names,
    reason=names,
    numbers=st.dictionaries(names, st.floats(allow_nan=False), max_size=3),
    user=st.dictionaries(names, plain | st.lists(plain, max_size=3), max_size=3),
    rows=st.lists(st.dictionaries(names, st.floats(allow_nan=False), max_size=3), max_size=3),
    context=st.binary(max_size=50),
)
def test_any_fields_come_back(
    task: str,
    step: int,
    claim: str,
    parent: str | None,
    reason: str,
    numbers: Any,
    user: Any,
    rows: Any,
    context: bytes,
) -> None:
    told = Told(
        task=task,
        id="c",
        seq=1,
        attempt=1,
        claim=claim,
        parent=parent,
        step=step,
        epoch=0,
        time="t",
        save=Save(reason=reason, numbers=numbers),
        debug_info=tuple(rows),
        metrics=numbers,
        versions={},
        code={},
        user=user,
    )
    headed = parse(render(told, PLANNED, context))
    assert (headed.told, headed.context) == (told, context)


@given(st.binary(max_size=300))
def test_garbage_is_no_head(garbage: bytes) -> None:
    with pytest.raises(MementumError):
        parse(garbage)


WHOLE = render(TOLD, PLANNED, b"{}")


@given(place=st.integers(0, len(WHOLE) - 3), byte=st.integers(0, 255), size=st.integers(1, 4))
def test_a_damaged_head_is_read_or_refused_by_name(place: int, byte: int, size: int) -> None:
    """Its digest keeps this from happening; a fault of ours must still not end a start."""
    damaged = WHOLE[:place] + bytes([byte]) * size + WHOLE[place + size :]
    with contextlib.suppress(MementumError):
        assert isinstance(parse(damaged), Headed)


@pytest.mark.parametrize("length", range(0, len(WHOLE) - 3, 97))
def test_a_head_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(MementumError):
        parse(WHOLE[:length])


@pytest.mark.parametrize("field", sorted(json.loads(WHOLE.partition(b"\n")[0]).keys() - {"cause"}))
def test_every_field_is_needed(field: str) -> None:
    first, _, rest = WHOLE.partition(b"\n")
    fields = json.loads(first)
    del fields[field]
    with pytest.raises(UnknownFormat):
        parse(json.dumps(fields).encode() + b"\n" + rest)


def test_a_head_of_before_causes_were_told_is_read() -> None:
    first, _, rest = WHOLE.partition(b"\n")
    fields = json.loads(first)
    del fields["cause"]
    assert parse(json.dumps(fields).encode() + b"\n" + rest).told.save.cause == "interval"


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.DIVERGED])
def test_what_was_in_doubt_comes_back(health: Health) -> None:
    doubt = Doubt(health=health, onset=65, why="the loss rose by 9 of its spreads\nat step 70")
    told = replace(TOLD, doubt=doubt)
    head = render(told, PLANNED, b"{}")
    assert parse(head).told == told
    assert b'"doubt"' in head
    assert b'"doubt"' not in render(TOLD, PLANNED, b"{}")  # a clean one says nothing
    assert parse(render(TOLD, PLANNED, b"{}")).told.doubt is None


@pytest.mark.parametrize("doubt", [b'["ill",65,"w"]', b'["suspect",65]', b"7", b'"suspect"'])
def test_a_doubt_that_says_nothing_known_is_no_head(doubt: bytes) -> None:
    told = replace(TOLD, doubt=Doubt(health=Health.SUSPECT, onset=65, why="w"))
    head = render(told, PLANNED, b"{}")
    assert head.count(b'["suspect",65,"w"]') == 1
    with pytest.raises(UnknownFormat):
        parse(head.replace(b'["suspect",65,"w"]', doubt))
