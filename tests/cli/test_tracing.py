"""`mementum trace`: which rows are shown, as a table, as CSV, as JSON and as a picture, and what of them is damaged."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cli import recorded
from mementum.cli import tracing
from mementum.format import vitals
from mementum.records import Vitals


@pytest.fixture
def seen(root: Path) -> Path:
    """Attempt 1 came to step 8, attempt 2 went on from 6 to 10."""
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(step) for step in range(1, 9)])
    recorded.write(root, 2, [recorded.row(step, loss=2 / step, at_s=step / 4) for step in range(7, 11)])
    recorded.tell(root, 1, "alarm", 5, trouble="loss spike", value=9.0, limit=6.0, text="z is 9.0", chance=0.0)
    return root


def rows(ask: Any, root: Path, *words: object) -> list[tuple[int, int]]:
    answer = ask("trace", root, *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    return [(one["attempt"], one["step"]) for one in json.loads(answer.out)["rows"]]


def test_of_a_step_in_two_attempts_the_newest_counts(ask: Any, seen: Path) -> None:
    all_ = [*((1, step) for step in range(1, 7)), *((2, step) for step in range(7, 11))]
    assert rows(ask, seen) == all_
    assert rows(ask, seen, "byte-gpt", "--attempt", 1) == [(1, step) for step in range(1, 9)]
    assert rows(ask, seen, "--from", 6, "--to", 7) == all_[5:7]
    assert rows(ask, seen, "--last", 3) == all_[-3:]
    assert rows(ask, seen, "--every", 4) == [all_[0], all_[4], all_[8], all_[9]]
    assert rows(ask, seen, "--every", 3) == [all_[0], all_[3], all_[6], all_[9]]
    assert rows(ask, seen, "--every", 99) == [all_[0], all_[9]]
    assert rows(ask, seen, "--last", 1, "--every", 4) == [all_[9]]


def test_the_table(ask: Any, seen: Path) -> None:
    recorded.decide(seen, 4, "an interval", {})
    recorded.decide(seen, 6, "the end", {})
    answer = ask("trace", seen, "--from", 4, "--to", 7)
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == [
        "step     loss    z  grad  grad z  layer    lr  memory  left  step s  what happened",
        "   4     0.25  0.5     2       -      -  0.01     25%     -     0.5  saved: an interval",
        "   5      0.2  0.5     2       -      -  0.01     25%     -     0.5  alarm: loss spike: z is 9.0",
        "   6  0.16667  0.5     2       -      -  0.01     25%     -     0.5  saved: the end",
        "   7  0.28571  0.5     2       -      -  0.01     25%     -     0.5  attempt 2 begins",
        "4 steps of 2 attempts of byte-gpt",
    ]


def test_a_long_run_is_sampled_and_no_alarm_is_lost(ask: Any, root: Path) -> None:
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(step) for step in range(1, 1001)])
    recorded.tell(root, 1, "alarm", 510, trouble="hang", value=9.0, limit=6.0, text="slow", chance=0.25)
    answer = ask("trace", root)
    assert [int(line.split()[0]) for line in answer.lines[1:-1]] == list(range(25, 1001, 25))
    (alarm,) = (line for line in answer.lines if "alarm" in line)
    assert alarm.split()[0] == "525"
    assert alarm.endswith("alarm at 510: hang: slow (chance that it ends the process: 25 %)")
    assert answer.lines[-1] == "1000 steps of 1 attempt of byte-gpt, 960 left out (--every 1 shows all)"
    assert len(ask("trace", root, "--every", 1).lines) == 1002


def test_what_happened_after_the_last_row_has_lines_of_its_own(ask: Any, root: Path) -> None:
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(step) for step in range(1, 6)])
    recorded.decide(root, 4, "an interval", {})
    recorded.decide(root, 6, "the end", {})
    recorded.tell(root, 1, "alarm", 5, trouble="hang", value=9.0, limit=6.0, text="slow", chance=0.0)
    recorded.tell(root, 1, "notice", 7, source="SIGTERM", left_s=30.0)
    lines = ask("trace", root, "--from", 2, "--every", 9).lines
    assert [line.split()[0] for line in lines[1:-1]] == ["2", "5", "6", "7"]
    assert lines[2].endswith("saved: an interval at 4; alarm: hang: slow")
    assert lines[3].split() == ["6", *"---------", "saved:", "the", "end"]
    assert lines[4].endswith("-  notice: SIGTERM, 30 s left")
    assert [line.split()[0] for line in ask("trace", root, "--to", 6, "--every", 9).lines[1:-1]] == ["1", "5", "6"]


def test_a_terminal_gets_the_same_cells() -> None:
    given = [(1, recorded.row(3, finite=False, loss=None))]
    console = Console(width=150, file=io.StringIO(), color_system=None)
    tracing.draw(console, list(tracing.table(given, [tracing.Mark(step=2, attempt=1, kind="skip", text="[b]no[/b]")])))
    words = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert words.endswith(" 3 - 0.5 2 - - 0.01 25% - 0.5 not finite; skip at 2: [b]no[/b]")


def test_csv_has_all_columns_with_all_their_digits(ask: Any, root: Path) -> None:
    recorded.forget(root)
    first = recorded.row(1, loss=1 / 3, step_s=0.1, memory_steps_left=float("inf"), curvature=1e-12)
    second = Vitals(step=2, at_s=1.0, loss=float("nan"), finite=False)
    recorded.write(root, 1, [first, second])
    answer = ask("trace", root, "--csv")
    assert answer.code == 0
    table = list(csv.DictReader(io.StringIO(answer.out)))
    assert list(table[0]) == ["attempt", "step", "finite", *vitals.VALUES]
    assert float(table[0]["loss"]) == 1 / 3
    told = {name: table[0][name] for name in ("step_s", "memory_steps_left", "curvature", "finite", "loss_slope")}
    assert told == {"step_s": "0.1", "memory_steps_left": "inf", "curvature": "1e-12", "finite": "1", "loss_slope": ""}
    assert (table[1]["loss"], table[1]["finite"], table[1]["lr"]) == ("nan", "0", "")


def test_json_says_what_is_no_number(ask: Any, root: Path) -> None:
    recorded.forget(root)
    recorded.write(root, 1, [recorded.row(2, loss=float("nan"), loss_z=None, finite=False, step_s=0.1)])
    found = json.loads(ask("trace", root, "--json").out)
    (row,) = found["rows"]
    assert row["loss"] == {"$float": "7ff8000000000000"}
    assert (row["loss_z"], row["finite"], row["step_s"], row["attempt"]) == (None, False, 0.1, 1)
    assert [(mark["step"], mark["kind"]) for mark in found["marks"]] == [(step, "saved") for step in (2, 4, 6)]
    assert (found["task"], found["damage"]) == ("byte-gpt", [])


def test_damage_is_named_and_the_rest_is_shown(ask: Any, seen: Path) -> None:
    path = recorded.home(seen) / "vitals/0001.vitals"
    data = bytearray(path.read_bytes())
    data[-150] ^= 1  # in the row of step 7, which attempt 2 has too
    data[-250] ^= 1  # in that of step 6
    path.write_bytes(data)
    answer = ask("trace", seen, "--json")
    assert answer.code == 3
    assert [one["step"] for one in json.loads(answer.out)["rows"]] == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert "vitals/0001.vitals: bytes " in answer.err
    path.write_bytes(b"nothing of ours\n")
    answer = ask("trace", seen, "--json")
    assert answer.code == 3
    assert [one["step"] for one in json.loads(answer.out)["rows"]] == [7, 8, 9, 10]


def test_what_a_kill_cut_off_is_no_damage(ask: Any, seen: Path) -> None:
    path = recorded.home(seen) / "vitals/0002.vitals"
    path.write_bytes(path.read_bytes()[:-10])
    answer = ask("trace", seen, "--last", 1, "--json")
    assert (answer.code, json.loads(answer.out)["rows"][0]["step"]) == (0, 9)
    assert "vitals/0002.vitals ends in the midst of a write" in answer.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("other",), 4, "there is no task 'other'"),
        (("--attempt", 7), 4, "no vital signs of attempt 7 there; there are some of attempts 1, 2"),
        (("--from", 50), 4, "task 'byte-gpt' has no vital signs of steps from 50"),
        (("--from", 5, "--to", 4), 2, "--from 5 is after --to 4"),
        (("--every", 0), 2, "--every: 0 is not at least 1"),
        (("--last", -1), 2, "--last: -1 is not at least 1"),
        (("--csv", "--json"), 2, "--csv, --json and --plot exclude each other"),
        (("--plot", "x.jpg"), 2, "'x.jpg' does not end in .png"),
    ],
)
def test_what_cannot_be_shown(ask: Any, seen: Path, words: tuple[object, ...], code: int, said: str) -> None:
    answer = ask("trace", seen, *words)
    assert answer.code == code
    assert said in answer.err


def test_a_task_that_has_recorded_nothing(ask: Any, root: Path) -> None:
    recorded.forget(root)
    answer = ask("trace", root)
    assert (answer.code, answer.out) == (4, "")
    assert "none of its attempts has recorded any" in answer.err


def test_one_of_several_tasks_is_to_be_named(ask: Any, root: Path, make: Any) -> None:
    make(root, "second", losses=(0.1,))
    answer = ask("trace", root)
    assert answer.code == 2
    assert "there are 2 tasks and none is named: 'byte-gpt', 'second'" in answer.err


def test_a_picture(ask: Any, seen: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.png"
    answer = ask("trace", seen, "--plot", path)
    assert (answer.code, answer.out) == (0, f"10 steps of byte-gpt in {path}\n")
    from matplotlib.image import imread

    picture = imread(path)
    assert picture.shape[:2] == (900, 1100)
    # Lines of their own colours stand where a save and an alarm were, half transparent over white.
    pixels = np.unique((picture[..., :3].reshape(-1, 3) * 255).round().astype(int), axis=0)
    for colour in ((0x2C, 0xA0, 0x2C), (0xD6, 0x27, 0x28)):
        half = (np.array(colour) + 255) / 2
        assert np.abs(pixels - half).max(axis=1).min() <= 12, colour
    before = path.read_bytes()
    again = ask("trace", seen, "--plot", path)
    assert again.code == 2
    assert "exists already; nothing is overwritten" in again.err
    assert path.read_bytes() == before


def test_a_picture_without_matplotlib(ask: Any, seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = ask("trace", seen, "--plot", tmp_path / "trace.png")
    assert answer.code == 2
    assert "next: pip install 'mementum[plot]'" in answer.err
    assert list(tmp_path.glob("*.png*")) == []
