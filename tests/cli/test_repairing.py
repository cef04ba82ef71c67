"""`mementum repair` and `mementum verify --tier`: damaged copies are found, and put right from one another."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import mementum


def flip(folder: Path, name: str, at: int = -5, step: int = 4) -> None:
    (path,) = folder.glob(f"*/*/step_*{step}/{name}")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*/step_*/*")}


@pytest.fixture
def nas(ask: Any, root: Path, tmp_path: Path) -> Path:
    """A tier with copies of two checkpoints."""
    for step in (4, 6):
        assert ask("place", root, f"@{step}", "--to", tmp_path / "nas").code == 0
    return tmp_path / "nas"


def test_what_is_known_to_be_damaged_is_put_right(ask: Any, root: Path, nas: Path) -> None:
    before = files(root)
    assert ask("repair", root).out == "nothing is known to be damaged; mementum verify looks for damage\n"
    flip(root, "model.safetensors")
    assert ask("verify", root, "--deep").code == 3
    dry = ask("repair", root, "--dry-run")
    assert (dry.code, dry.lines[0].split()[:2]) == (0, ["repairable", "byte-gpt@4"])
    assert files(root) != before
    answer = ask("repair", root)
    assert answer.code == 0
    assert answer.lines[0].split()[0] == "repaired"
    assert f" from {nas} (" in answer.lines[0]
    assert answer.lines[1].endswith("step_0000000004/model.safetensors")
    assert answer.lines[-1] == "1 checkpoint read, 1 repaired, 0 cannot be"
    assert files(root) == before
    (one,) = (one for one in json.loads(ask("ls", root, "--json").out) if one["step"] == 4)
    assert (one["damaged"], one["verified"] is not None) == (None, True)
    assert ask("repair", root, "@4").lines[0].split()[0] == "whole"


def test_the_copy_on_a_tier(ask: Any, root: Path, nas: Path) -> None:
    before = files(nas)
    flip(nas, "context-00000.json")
    found = ask("verify", root, "--tier", nas, "--deep")
    assert (found.code, "does not match its digest" in found.out) == (3, True)
    (one,) = (one for one in json.loads(ask("ls", root, "--json").out) if one["step"] == 4)
    assert one["damaged"] is None
    assert "context-00000.json" in one["tiers"][0]["damaged"]
    assert f"{nas} (damaged)" in ask("ls", root).out
    assert "; damaged: " in ask("show", root, "@4").out
    answer = json.loads(ask("repair", root, "--in", nas, "--json").out)
    (done,) = answer["checkpoints"]
    assert (done["tier"], done["outcome"], done["from"]) == (str(nas), "repaired", ["the root"])
    assert files(nas) == before
    assert ask("verify", root, "--tier", nas, "--deep").code == 0
    places = [one["tiers"][0] for one in json.loads(ask("ls", root, "--json").out) if one["tiers"]]
    assert [(place["damaged"], place["verified"] is not None) for place in places] == [(None, True), (None, True)]


def test_what_cannot_be_repaired_is_said(ask: Any, root: Path, nas: Path) -> None:
    for folder in (root, nas):
        flip(folder, "model.safetensors")
    left = files(root), files(nas)
    answer = ask("repair", root, "@4")
    assert answer.code == 3
    assert "no place has a good copy of it; nothing was changed" in answer.out
    assert "model.safetensors: the bytes from 0 to " in answer.out
    assert "next: mementum repair ROOT byte-gpt@4 --from URL" in answer.out
    assert (files(root), files(nas)) == left
    (one,) = json.loads(ask("repair", root, "@4", "--json").out)["checkpoints"]
    assert (one["outcome"], len(one["damage"])) == ("damaged", 1)


def test_of_what_the_root_has_lost_it_is_told_who_has_it(ask: Any, root: Path, nas: Path) -> None:
    before = files(root)
    for path in root.glob("*/*/step_*4/meta*.json"):
        path.unlink()
    told = ask("repair", root, "@4", "--from", nas)
    assert (told.code, f"has no checkpoint at step 4; there are steps 6, 2; but {nas} has it" in told.err) == (4, True)
    words = shlex.split(told.err.splitlines()[-1].removeprefix("next: mementum "))
    assert ask(*words).code == 0
    assert {key: data for key, data in files(root).items() if key in before} == before
    assert ask("repair", root, "@4").lines[0].split()[0] == "whole"


def test_beside_a_training_that_lives(ask: Any, root: Path, nas: Path) -> None:
    import torch

    before = files(root)
    flip(root, "meta.json", 300)
    with mementum.open_run(root, task="byte-gpt", model=torch.nn.Linear(30, 40), resume="never"):
        answer = ask("repair", root, "--from", nas)
        assert (answer.code, answer.err) == (0, "")
    assert {key: data for key, data in files(root).items() if key in before} == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["@4"], 2, "no copies of checkpoints"),
        (["@4", "--from", "nowhere"], 4, "there is no tier 'nowhere'"),
        (["@4", "--in", "nowhere"], 4, "copies lie on: none"),
        (["@5", "--from", "."], 4, "has no checkpoint at step 5"),
        (["@4", "--from", "gopher://x"], 2, "is no place for checkpoints"),
    ],
)
def test_bad_words(ask: Any, root: Path, words: list[str], code: int, said: str, tmp_path: Path) -> None:
    answer = ask("repair", root, *words)
    assert (answer.code, said in answer.err) == (code, True), answer.err


def test_a_tier_that_does_not_answer(ask: Any, root: Path, nas: Path) -> None:
    flip(root, "model.safetensors")
    answer = ask("repair", root, "@4", "--from", "redis://127.0.0.1:1/0", "--from", nas)
    assert answer.code == 0
    assert "does not answer" in answer.err
    assert ask("verify", root, "--deep").code == 0
