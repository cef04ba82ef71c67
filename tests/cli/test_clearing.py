"""`mementum forget` and `mementum gc`: what goes has a reason, a dry run touches nothing, and who did it is a fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mementum
from mementum.catalog.noted import person
from mementum.records import Usage
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def steps(ask: Any, root: Path) -> list[int]:
    return [one["step"] for one in json.loads(ask("ls", root, "--json").out)]


def size(ask: Any, root: Path, step: int) -> int:
    found: int = next(one["size"] for one in json.loads(ask("ls", root, "--json").out) if one["step"] == step)
    return found


def test_a_policy_by_hand(ask: Any, root: Path, listing: Any) -> None:
    assert ask("ls", root).code == 0
    before, freed = listing(root), size(ask, root, 2)
    dry = ask("forget", root, "--keep-last", "1", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert [(line.split()[0], line.split()[4]) for line in dry.lines[1:4]] == [
        ("6", "keep"),
        ("4", "keep"),
        ("2", "remove"),
    ]
    assert "the best by loss: 0.2" in dry.lines[2]
    assert dry.lines[-1].startswith("1 checkpoint of 3 would be removed, nothing was: ")
    assert {name: held for name, held in listing(root).items() if "catalog.db" not in name and name != str(root)} == {
        name: held for name, held in before.items() if "catalog.db" not in name and name != str(root)
    }
    done = json.loads(ask("forget", root, "byte-gpt", "--keep-last", "1", "--json").out)
    assert (done["task"], done["dry_run"], done["freed"]) == ("byte-gpt", False, freed)
    assert [(one["step"], one["keep"]) for one in done["verdicts"]] == [(6, True), (4, True), (2, False)]
    assert steps(ask, root) == [6, 4]
    (file,) = root.glob("*/*/facts/*.json")
    fact = json.loads(file.read_bytes())
    assert (fact["kind"], fact["values"]) == ("removed", {"reason": "older than the newest 1", "by": person()})


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--keep-last", "2"), [6, 4]),
        (("--keep-last", "1", "--keep-best", "0"), [6]),
        (("--keep-last", "1", "--keep-best", "0", "--keep-every", "2"), [6, 4, 2]),
        (("--keep-last", "1", "--best-of", "-loss"), [6, 2]),
        (("--keep-last", "1", "--keep-best", "0", "--keep-spread", "1"), [6, 4]),
    ],
)
def test_each_option_keeps_what_it_says(ask: Any, root: Path, words: tuple[str, ...], left: list[int]) -> None:
    assert ask("forget", root, *words).code == 0
    assert steps(ask, root) == left


def test_a_pin_stays(ask: Any, root: Path) -> None:
    assert ask("pin", root, "@2", "--why", "figure", "--by", "me").code == 0
    answer = ask("forget", root, "--keep-last", "1", "--keep-best", "0")
    assert (answer.code, steps(ask, root)) == (0, [6, 2])
    assert "pinned: figure (me)" in answer.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "Missing option '--keep-last'"),
        (("--keep-last", "0"), 2, "--keep-last: 0 is less than 1"),
        (("--keep-last", "x"), 2, "Invalid value for '--keep-last'"),
        (("--keep-last", "1", "--keep-best", "-1"), 2, "--keep-best: -1 is less than 0"),
        (("--keep-last", "1", "--keep-every", "0"), 2, "--keep-every: 0 is less than 1"),
        (("--keep-last", "1", "--best-of", ""), 2, "--best-of"),
        (("other", "--keep-last", "1"), 4, "there is no task 'other'"),
    ],
)
def test_bad_words_remove_nothing(ask: Any, root: Path, words: tuple[str, ...], code: int, said: str) -> None:
    answer = ask("forget", root, *words)
    assert (answer.code, said in answer.err) == (code, True)
    assert steps(ask, root) == [6, 4, 2]


def test_leftovers_go(ask: Any, root: Path) -> None:
    (home,) = root.glob("*/byte-gpt_*")
    LocalStore(PosixDisk(), str(home)).put("step_0000000008/model.safetensors", [b"x" * 1000])
    dry = json.loads(ask("gc", root, "--dry-run", "--json").out)
    assert [(one["leftovers"], one["freed"]) for one in dry["tasks"]] == [(["step_0000000008/model.safetensors"], 1000)]
    assert (home / "step_0000000008").exists()
    answer = ask("gc", root)
    assert (answer.code, answer.lines[-1]) == (0, "1000 B came free: 0 checkpoints, 1 leftover")
    assert not (home / "step_0000000008").exists()
    assert steps(ask, root) == [6, 4, 2]


@pytest.mark.parametrize("folder", ["step_0000000008", "step_0000000004"])
def test_what_a_kill_left_of_a_file_goes(ask: Any, root: Path, folder: str) -> None:
    """Of a new checkpoint, or of one that was being written again: no list shows it."""
    (home,) = root.glob("*/byte-gpt_*")
    (home / folder).mkdir(exist_ok=True)
    left = home / folder / "model.safetensors.0a1b2c3d.tmp"
    left.write_bytes(b"x" * 1000)
    dry = json.loads(ask("gc", root, "--dry-run", "--json").out)
    assert [(one["leftovers"], one["freed"]) for one in dry["tasks"]] == [([f"{folder}/{left.name}"], 1000)]
    assert left.exists()
    answer = ask("gc", root)
    assert (answer.code, answer.lines[-1]) == (0, "1000 B came free: 0 checkpoints, 1 leftover")
    assert not left.exists()
    assert steps(ask, root) == [6, 4, 2]
    assert ask("gc", root).lines[-1] == "0 B came free: 0 checkpoints, 0 leftovers"


def test_what_a_training_is_writing_stays(ask: Any, root: Path) -> None:
    with mementum.open_run(root, task="byte-gpt", state={"s": {}}, resume="never"):
        (home,) = root.glob("*/byte-gpt_*")
        (home / "step_0000000008").mkdir()
        left = home / "step_0000000008" / "model.safetensors.0a1b2c3d.tmp"
        left.write_bytes(b"x" * 1000)
        answer = ask("gc", root)
        assert (answer.code, "stays for its next start" in answer.err) == (0, True)
        assert left.exists()


def test_room_is_made_down_to_a_mark(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 1000 KiB that is used to 72 % must give 20 KiB: one checkpoint has more than that."""
    usage = Usage(used=737_280, size=1_024_000)
    monkeypatch.setattr(PosixDisk, "usage", lambda disk, folder: usage)
    dry = json.loads(ask("gc", root, "--to", "70%", "--dry-run", "--json").out)
    assert (dry["need"], dry["missing"]) == (20_480, 0)
    gone = [one for one in dry["tasks"][0]["verdicts"] if not one["keep"]]
    assert len(gone) == 1
    assert steps(ask, root) == [6, 4, 2]
    answer = ask("gc", root, "--to", "0.7")
    assert answer.code == 0
    assert gone[0]["step"] not in steps(ask, root)
    assert len(steps(ask, root)) == 2
    assert "room is needed" in answer.out


def test_what_is_protected_stays_and_that_is_said(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosixDisk, "usage", lambda disk, folder: Usage(used=1 << 30, size=1 << 30))
    answer = ask("gc", root, "--to", "50%")
    assert (answer.code, "are missing: all that is left is protected" in answer.err) == (1, True)
    assert steps(ask, root) == [6]


def test_tasks_give_by_what_they_hold(ask: Any, root: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one with a single checkpoint, which is protected, cannot give, the other does."""
    make(root, "single", losses=(0.1,))
    total = 10_000_000
    used = 7_000_000 + 2 * size(ask, root, 2) - 2000
    monkeypatch.setattr(PosixDisk, "usage", lambda disk, folder: Usage(used=used, size=total))
    answer = json.loads(ask("gc", root, "--to", "70%", "--json").out)
    assert answer["missing"] == 0
    assert {one["task"]: sum(not of["keep"] for of in one["verdicts"]) for one in answer["tasks"]} == {
        "byte-gpt": 2,
        "single": 0,
    }


@pytest.mark.parametrize("to", ["lots", "70", "-1%", "0%", "nan", "1e999", ""])
def test_a_mark_that_is_none(ask: Any, root: Path, to: str) -> None:
    answer = ask("gc", root, "--to", to)
    assert (answer.code, "is no share of a disk" in answer.err) == (2, True)
    assert steps(ask, root) == [6, 4, 2]
