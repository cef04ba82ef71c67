"""A filter means what it says, and one that is written wrongly is shown where."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from mementum.catalog.filters import TEXT_MAX, Row, matches, parse, require_metrics, row
from mementum.errors import UsageError
from mementum.format.levels import KINDS
from mementum.records import Entry, Granularity, Health, Manifest, Place, StoredFile


def entry(**known: object) -> Entry:
    manifest = Manifest(
        id="c1m8njm1s7pbrq4xe",
        seq=7,
        task="t",
        attempt=2,
        parent=None,
        step=1200,
        epoch=3,
        time="2026-11-30T06:10:09.000000Z",
        reason="100 steps since the last save",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(StoredFile(name="model.safetensors", size=1_500_000_000),),
        memory={"rss": 1 << 30, "mem_percent": 93},
    )
    given: dict[str, object] = {"metrics": {"loss": 2.0, "eval/acc": 0.5, "step": 3.0, "bad": math.nan}, **known}
    return Entry(manifest=manifest, folder="step_0000001200", **given)  # type: ignore[arg-type]


def asked(**known: object) -> Row:
    return row(entry(**known), task="byte-gpt", damaged=None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("loss<2.1", True),
        ("loss<2", False),
        ("mem_percent>90", True),
        ("mem_percent>93", False),
        ("gpu_mem_percent>0", False),  # there was none
        ("gpu_mem_percent", False),
        ("loss<=2 and step>=1200", True),
        ("loss=2", True),
        ("loss!=2", False),
        ("step > 1000 && step < 2000", True),
        ("step<10 or epoch==3", True),
        ("step<10 || epoch==4", False),
        ("not step<10", True),
        ("not (step<10 or epoch==3)", False),
        ("step<10 or epoch==3 and loss<1", False),  # `and` binds before `or`
        ("(step<10 or epoch==3) and loss<1", False),
        ("STEP==1200 AND HEALTH==clean", True),
        ("'eval/acc'>0.4", True),
        ("eval/acc>0.4", True),
        ("metric:step==3", True),
        ("eval/acc", True),
        ("bad", False),
        ("bad!=1", False),  # it has no number
        ("size>1.4GB and size<1.5GiB", True),
        ("size>'1.4 TiB'", False),
        ("time>=2026-11-30", True),
        ("time>2026-11-30", False),
        ("time>2026-11-29", True),
        ("time==2026-11", True),
        ("time<'2026-11-30 06:11'", True),
        ("time<2026-11-30T06:10Z", False),
        ("health==clean and granularity==full", True),
        ("health!=clean", False),
        ("reason~'100 steps'", True),
        ("task~gpt and id~c1m8 and task!=other", True),
        ("parent==c1", False),
        ("tier==nas", False),
        ("tier!=nas", True),
        ("tier", False),
        ("pinned or damaged or verified", False),
        ("exact", True),
        ("restore<5s", False),
    ],
)
def test_what_is_meant(text: str, meant: bool) -> None:
    assert matches(parse(text), asked()) is meant


def test_what_became_known_counts() -> None:
    places = tuple(Place(tier=tier, url=f"/{tier}", time="2026") for tier in ("nas", "s3"))
    known = asked(pinned="why", verified="2026", judged=Health.SUSPECT, judged_why="x", places=places, restore_s=90.0)
    for text in ("pinned", "verified", "health==suspect", "tier==nas", "tier==s3", "tier~na", "tier", "restore>1m"):
        assert matches(parse(text), known), text
    assert not matches(parse("tier!=nas"), known)
    damaged = row(entry(verified="2026"), task="t", damaged="torn")
    assert matches(parse("damaged and not verified"), damaged)


@pytest.mark.parametrize(("levels", "kind"), [((0,), "essentials"), ((1, 2), "optimizer"), ((2,), "context")], ids=str)
def test_of_what_has_aged_a_filter_asks_what_is_left(levels: tuple[int, ...], kind: str) -> None:
    one = entry()
    aged = replace(one, manifest=replace(one.manifest, granularity=Granularity.ESSENTIALS, levels=levels))
    there = row(aged, task="t", damaged=None)
    assert [name for name in KINDS if matches(parse(f"granularity=={name}"), there)] == [kind]


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 1, "nothing is asked"),
        ("   ", 1, "nothing is asked"),
        ("loss<", 6, "a value was expected after '<'"),
        ("loss<<2", 6, "a value was expected"),
        ("<2", 1, "a name was expected instead of '<'"),
        ("loss<2 step>1", 8, "'step' was not expected"),
        ("loss<2 and", 11, "it ends where something was to follow"),
        ("(loss<2", 1, "a bracket is not closed"),
        ("loss<2)", 7, "')' was not expected"),
        ("loss<'2", 6, "a quote is not closed"),
        ("loss ! 2", 6, "'!' means nothing"),
        ("health==fine", 9, "'fine' is none of clean, suspect, diverged"),
        ("health<clean", 7, "health is a word"),
        ("step~12", 5, "step is no word"),
        ("pinned==yes", 7, "pinned is yes or no"),
        ("time>yesterday", 6, "'yesterday' is no time"),
        ("loss<low", 6, "'low' is no number"),
        ("loss<nan", 6, "no number"),
        ("size>3parsec", 6, "unknown unit 'parsec'"),
        ("restore>3GB", 9, "expected a duration"),
        ("(" * 60 + "loss<2" + ")" * 60, 51, "more than 50 brackets"),
        ("not " * 60 + "pinned", 201, "more than 50 brackets"),
        ("__import__('os')", 11, "'(' was not expected"),
    ],
)
def test_what_is_written_wrongly_is_shown(text: str, at: int, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    first, *shown = raised.value.message.split("\n")
    assert said in first
    assert first.endswith(f"at character {at}")
    assert shown == [f"  {text}", " " * (at + 1) + "^"]


def test_a_filter_of_a_page_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        parse("x" * (TEXT_MAX + 1))


def test_a_metric_that_nobody_has_is_misspelt() -> None:
    chosen = parse("step>3 and not los<2")
    require_metrics(chosen, "step>3 and not los<2", {"los"})
    with pytest.raises(UsageError) as raised:
        require_metrics(chosen, "step>3 and not los<2", {"loss", "acc"})
    assert "no checkpoint here has 'los'; did you mean 'loss'? (metrics are acc, loss), at character 16" in str(
        raised.value
    )


def test_no_text_ends_in_anything_but_a_filter_or_a_usage_error() -> None:
    pieces = [
        "loss",
        "<",
        "==",
        "!=",
        "2",
        "(",
        ")",
        "and",
        "or",
        "not",
        "'",
        '"',
        "time",
        "size",
        "~",
        " ",
        "\0",
        "é",
        "&&",
    ]
    rng = random.Random(7)
    made = 0
    for _ in range(4000):
        text = "".join(rng.choices(pieces, k=rng.randrange(9)))
        try:
            chosen = parse(text)
        except UsageError:
            continue
        made += 1
        assert matches(chosen, asked()) in (True, False)
    assert made > 100
