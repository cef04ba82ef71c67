"""`ls`, `show` and `doctor` tell what became known of a checkpoint's health after it was saved, and what is pinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import facts
from mementum.records import Fact


@pytest.fixture
def judged(root: Path) -> Path:
    """A root whose checkpoints of steps 4 and 6 were judged later, and whose step 2 is pinned."""
    ids = {
        step: json.loads(next(root.glob(f"*/*/step_{step:010d}/meta.json")).read_bytes())["id"] for step in (2, 4, 6)
    }
    (journal,) = root.glob("*/*/journal/0001.jsonl")
    why = {4: ("suspect", "the loss rose"), 6: ("diverged", "the loss stayed \x1b[31mup")}
    told = [
        Fact(kind="health", time="2099", checkpoint=ids[step], values={"health": health, "why": text, "onset": 3})
        for step, (health, text) in why.items()
    ]
    told.append(Fact(kind="pin", time="2099", checkpoint=ids[2], values={"why": "before step 3", "by": "me"}))
    with journal.open("ab") as file:
        file.write(b"".join(map(facts.render, told)))
    return root


def test_a_table_says_it_in_a_word(ask: Any, judged: Path) -> None:
    _, *rows, total = ask("ls", judged).lines
    assert ["not exact, diverged" in rows[0], "not exact, suspect" in rows[1], "not exact, pinned" in rows[2]] == [
        True
    ] * 3
    assert total.endswith(", 1 suspect, 1 diverged, 1 pinned")


def test_programs_read_it_with_the_reason(ask: Any, judged: Path) -> None:
    listed = [(one["health"], one["health_why"], one["pinned"]) for one in json.loads(ask("ls", judged, "--json").out)]
    assert listed == [
        ("diverged", "the loss stayed \x1b[31mup", None),
        ("suspect", "the loss rose", None),
        ("clean", None, "before step 3 (me)"),
    ]
    shown = json.loads(ask("show", judged, "@4", "--json").out)
    assert (shown["health"], shown["health_why"], shown["pinned"]) == ("suspect", "the loss rose", None)


def test_one_checkpoint_is_shown_with_both(ask: Any, judged: Path) -> None:
    lines = [line.split(maxsplit=1) for line in ask("show", judged, "@6").lines]
    assert ["state", "not exact, diverged"] in lines
    assert ["health", "diverged: the loss stayed \\x1b[31mup (it was saved as clean)"] in lines
    assert ["pinned", "before step 3 (me)"] in [line.split(maxsplit=1) for line in ask("show", judged, "@clean").lines]
    assert not any(line.strip().startswith("health") for line in ask("show", judged, "@2").lines)


def test_addresses_go_by_it(ask: Any, judged: Path) -> None:
    assert json.loads(ask("show", judged, "@clean", "--json").out)["step"] == 2
    assert json.loads(ask("show", judged, "@best", "--json").out)["step"] == 2
    assert json.loads(ask("show", judged, "@exact", "--json").out)["step"] == 6


def test_doctor_says_why_a_start_goes_further_back(ask: Any, judged: Path) -> None:
    said = ask("doctor", judged).out
    assert "its state is suspect (the loss rose): a start prefers older, healthier ones" in " ".join(said.split())
