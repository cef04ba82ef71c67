"""Facts come back from a journal as they were told, and torn lines say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.catalog import facts
from mementum.records import Fact, Health, Place

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES = st.dictionaries(
    TEXT, st.none() | st.integers() | st.floats(allow_nan=False) | TEXT | st.booleans(), max_size=3
)
STEPS = st.none() | st.integers(1 - facts.STEP_END, facts.STEP_END - 1)
FACTS = st.builds(Fact, kind=TEXT, time=TEXT, checkpoint=st.none() | TEXT, step=STEPS, values=VALUES)
ONE = Fact(kind="metrics", time="2026-11-30T06:10:09.000000Z", step=3, values={"loss": 0.5, "größe": float("inf")})


@given(written=st.lists(FACTS, max_size=5))
def test_what_was_rendered_is_parsed(written: list[Fact]) -> None:
    data = b"".join(map(facts.render, written))
    assert facts.parse(data) == tuple(written)
    assert facts.parse(memoryview(data)) == tuple(written)


def test_a_fact_is_one_line_without_what_is_none() -> None:
    line = facts.render(Fact(kind="ended", time="t", values={"why": "line\nbreak\u2028"}))
    assert line == '{"kind":"ended","time":"t","values":{"why":"line\\nbreak\u2028"}}\n'.encode()
    assert facts.render(Fact(kind="k", time="t")) == b'{"kind":"k","time":"t"}\n'
    assert facts.parse(line)[0].values == {"why": "line\nbreak\u2028"}


def test_every_torn_end_loses_its_own_line_only() -> None:
    whole, last = facts.render(ONE), facts.render(Fact(kind="ended", time="t", values={"why": "finished"}))
    for end in range(len(last) - 1):
        assert facts.parse(whole + last[:end]) == (ONE,)
        assert facts.parse(whole + last[:end] + b"\n" + whole) == (ONE, ONE)
    assert len(facts.parse(whole + last[:-1])) == 2  # only the line's end is missing


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xfe",
        b"[]",
        b"1",
        b"null",
        b'"kind"',
        b"{}",
        b'{"kind":"k"}',
        b'{"time":"t"}',
        b'{"kind":1,"time":"t"}',
        b'{"kind":"k","time":null}',
        b'{"kind":"k","time":"t","step":"3"}',
        b'{"kind":"k","time":"t","step":true}',
        b'{"kind":"k","time":"t","step":1.0}',
        b'{"kind":"k","time":"t","checkpoint":7}',
        b'{"kind":"k","time":"t","values":[]}',
        b'{"kind":"k","time":"t","values":{"$nothing":1}}',
        b'{"kind":"k","time":"t","values":{"a":{"$int":"x"}}}',
        b"[" * 100_000,
        b'{"kind":"k","time":"t","values":' + b'{"a":' * 50_000,
    ],
)
def test_lines_that_are_no_facts_say_nothing(line: bytes) -> None:
    assert facts.parse(facts.render(ONE) + line + b"\n" + facts.render(ONE)) == (ONE, ONE)


@given(data=st.binary(max_size=60))
def test_nothing_makes_it_raise(data: bytes) -> None:
    assert len(facts.parse(data)) <= data.count(b"\n") + 1


def test_keys_of_journals() -> None:
    assert (facts.journal_key(3), facts.journal_key(12345)) == ("journal/0003.jsonl", "journal/12345.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"\\ud800","time":"t"}',
        b'{"kind":"k","time":"t","checkpoint":"\\udfff"}',
        b'{"kind":"k","time":"t","checkpoint":"\\u0000"}',
        b'{"kind":"k","time":"t","step":100000000000000000000}',
    ],
)
def test_what_no_database_takes_says_nothing(line: bytes) -> None:
    assert facts.parse(line + b"\n" + facts.render(ONE)) == (ONE,)


def told(kind: str, **values: object) -> Fact:
    return Fact(kind=kind, time="2026-11-30T06:10:09.000000Z", checkpoint="c1", values=values)


def test_of_each_kind_the_later_fact_holds() -> None:
    assert facts.known([]) == facts.Known()
    suspect, clean = told("health", health="suspect", why="x"), told("health", health="clean", why="y")
    assert facts.known([suspect, clean]) == facts.Known(judged=Health.CLEAN, judged_why="y")
    assert facts.known([clean, suspect]) == facts.Known(judged=Health.SUSPECT, judged_why="x")
    pin = told("pin", why="before step 9", by="flight recorder")
    assert facts.known([pin]).pinned == "before step 9 (flight recorder)"
    assert facts.known([pin, told("unpin")]).pinned is None
    assert facts.known([told("pin", why="old"), told("unpin", by="flight recorder")]).pinned is None
    assert facts.known([told("unpin"), told("pin", why="mine")]).pinned == "mine"
    assert facts.known([told("damaged", what="x"), told("verified")]).damaged is None
    everything = facts.known([suspect, pin, told("damaged", what="x"), told("cost", health="clean")])
    assert (everything.judged, everything.pinned, everything.damaged) == (
        Health.SUSPECT,
        "before step 9 (flight recorder)",
        "x",
    )


@pytest.mark.parametrize("values", [{}, {"health": "great"}, {"health": None}, {"health": ["clean"]}, {"health": 1}])
def test_what_nobody_understands_of_a_state_does_not_leave_it_clean(values: dict[str, object]) -> None:
    assert facts.health_of(told("health", **values)) == (
        Health.SUSPECT,
        "what became known of its health cannot be read",
    )


def test_reasons_that_were_not_given() -> None:
    assert facts.health_of(told("health", health="diverged")) == (Health.DIVERGED, "no reason was given")
    assert facts.known([told("pin")]).pinned == "no reason was given"


def test_a_pin_holds_until_its_own_owner_takes_it_back() -> None:
    mine, yours = told("pin", why="for the paper", by="me"), told("pin", why="I look at it", by="you")
    its, undone = told("pin", why="before step 9", by=facts.RECORDER), told("unpin", by=facts.RECORDER)
    both = facts.known([its, mine])
    assert (both.pinned, both.pinned_by) == ("for the paper (me)", {"me", facts.RECORDER})
    assert facts.known([mine, its, undone]).pinned == "for the paper (me)"
    assert facts.known([mine, its, told("unpin", by="me")]).pinned == "before step 9 (flight recorder)"
    assert facts.known([mine, yours, told("unpin", by="me")]).pinned_by == {"you"}
    assert facts.known([mine, undone, told("unpin", by="you")]).pinned_by == {"me"}
    assert facts.known([mine, told("unpin", by="me")]) == facts.Known()


def at(time: str, name: str) -> Fact:
    return Fact(kind=name, time=time)


ONE_JOURNAL, NEXT_JOURNAL = "journal/0002.jsonl", "journal/0010.jsonl"


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([(ONE_JOURNAL, 1, at("7", "b")), (ONE_JOURNAL, 0, at("9", "a"))], "ab"),  # the clock was set back
        ([(NEXT_JOURNAL, 0, at("1", "b")), (ONE_JOURNAL, 0, at("5", "a"))], "ab"),  # by attempts, not by names
        ([("journal/10000.jsonl", 0, at("1", "b")), ("journal/9999.jsonl", 0, at("5", "a"))], "ab"),
        ([("facts/x.json", 0, at("3", "b")), (ONE_JOURNAL, 0, at("1", "a")), (ONE_JOURNAL, 1, at("4", "c"))], "abc"),
        ([("facts/x.json", 0, at("3", "b")), ("facts/y.json", 0, at("2", "a"))], "ab"),
        (
            [("facts/x.json", 0, at("2", "a")), ("facts/y.json", 0, at("2", "c")), ("facts/x.json", 1, at("2", "b"))],
            "abc",
        ),
        # A person's fact of 5, and a journal whose clock went from 9 to 2: what a person has said comes after.
        ([("facts/x.json", 0, at("5", "c")), (ONE_JOURNAL, 0, at("9", "a")), (ONE_JOURNAL, 1, at("2", "b"))], "abc"),
        ([], ""),
    ],
)
def test_the_order_in_which_facts_became_known(rows: list[tuple[str, int, Fact]], wanted: str) -> None:
    assert "".join(fact.kind for fact in facts.in_order(rows)) == wanted


def test_a_part_of_a_journal_is_named_by_its_first_byte() -> None:
    assert facts.part_key(3, 12345) == "journal/0003-000000012345.jsonl"
    keys = ("journal/0003.jsonl", "journal/0012-000000000000.jsonl", "journal/12345.jsonl", "facts/a.json", "a")
    assert [facts.attempt_of(key) for key in keys] == [3, 12, 12345, None, None]


def test_parts_of_a_journal_are_in_the_order_of_their_first_bytes() -> None:
    parts = [facts.part_key(2, begin) for begin in (0, 900, 12_000)]
    rows = [(parts[2], 0, at("1", "d")), (parts[0], 1, at("8", "b")), (NEXT_JOURNAL, 0, at("1", "e"))]
    rows += [(parts[0], 0, at("9", "a")), (parts[1], 0, at("5", "c"))]
    assert "".join(fact.kind for fact in facts.in_order(rows)) == "abcde"


def test_a_copy_is_where_the_later_fact_of_its_tier_says() -> None:
    nas = told("placed", tier="nas", url="/nas", generation=2, size=10, levels=[0, 2])
    bare = told("placed", tier="s3")
    known = facts.known([bare, nas, told("displaced", tier="s3", why="old")])
    place = Place(tier="nas", url="/nas", time=nas.time, generation=2, size=10, levels=(0, 2))
    assert known.places == (place,)
    assert facts.known([nas, bare]).places == (place, Place(tier="s3", url="", time=bare.time))
    assert facts.known([nas, told("placed", tier="nas", url="/new")]).places[0].url == "/new"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"generation": "2"}, Place(tier="t", url="", time=ONE.time)),
        ({"generation": 0, "size": -1}, Place(tier="t", url="", time=ONE.time)),
        ({"generation": 1 << 70, "size": 1 << 70}, Place(tier="t", url="", time=ONE.time)),
        ({"size": True, "levels": "02"}, Place(tier="t", url="", time=ONE.time)),
        ({"levels": [2, 0, 7, "x"]}, Place(tier="t", url="", time=ONE.time, levels=(0, 2))),
    ],
)
def test_what_is_said_of_a_copy_may_be_anybodys(values: dict[str, object], expected: Place) -> None:
    assert facts.known([told("placed", tier="t", **values)]).places == (expected,)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(2, 2.0), (0.5, 0.5), (0, 0.0), (-1, None), (float("nan"), None), ("2", None)]
)
def test_how_long_a_restore_took(seconds: object, expected: float | None) -> None:
    assert facts.known([told("restored", seconds=9), told("restored", seconds=seconds)]).restore_s == expected


def test_how_an_attempt_began_and_ended() -> None:
    assert facts.outcome([]) == facts.Outcome()
    first, later = told("restored", seconds=1), replace(told("restored", seconds=1), checkpoint="c9")
    assert facts.outcome([first, later]) == facts.Outcome(came_from="c1")
    assert facts.outcome([told("ended"), first]) == facts.Outcome(came_from="c1", ended="finished")
    assert facts.outcome([told("ended", why="x"), told("ended", why="y")]).ended == "y"
