"""`mementum show`: what is told of one checkpoint, and of one that is damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def folder(root: Path, step: int) -> Path:
    (found,) = root.glob(f"*/*/step_{step:010d}")
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_latest_of_the_only_task(ask: Any, root: Path) -> None:
    answer = ask("show", root)
    manifest = json.loads((folder(root, 6) / "meta.json").read_bytes())
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines[0] == f"checkpoint {manifest['id']}"
    assert f"  reason  {manifest['reason']}" in answer.lines
    assert f"  parent  {manifest['parent']}" in answer.lines
    assert f"  path    {folder(root, 6)}" in answer.lines
    assert "  proof   not verified since it was written" in answer.lines
    words = [line.split() for line in answer.lines]
    assert ["loss", "0.5"] in words
    assert ["log", "here"] in words
    assert ["torch", manifest["versions"]["torch"]] in words
    assert ["model", "module", "2", "1,240", "4.8", "KiB"] in words
    assert ["total", "8", "3,722", "14.5", "KiB"] in words  # and two moments and a step for each of two parameters
    for file in manifest["files"]:
        assert any(line[:1] == [file["name"]] for line in words)


@pytest.mark.parametrize(
    ("address", "step"),
    [
        ("byte-gpt", 6),
        ("byte-gpt@latest", 6),
        ("@exact", 6),
        ("@clean", 6),
        ("@best", 4),
        ("byte-gpt@best:+loss", 2),
        ("@best:acc", 4),
        ("@2", 2),
    ],
)
def test_addresses(ask: Any, root: Path, address: str, step: int) -> None:
    shown = json.loads(ask("show", root, address, "--json").out)
    assert shown["step"] == step
    assert json.loads(ask("show", root, f"@{shown['id'][:14]}", "--json").out)["step"] == step


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("@3", 4, "task 'byte-gpt' has no checkpoint at step 3; there are steps 6, 4, 2"),
        ("@best:f1", 4, "no checkpoint with a value of 'f1'; there are values of 'acc', 'loss'"),
        ("other@2", 4, "there is no task 'other'; there are: 'byte-gpt'"),
        ("@newest", 2, "'newest' selects no checkpoint"),
        ("byte-gpt@c", 2, "3 checkpoints of task 'byte-gpt' have ids that begin with c"),
    ],
)
def test_what_is_not_there(ask: Any, root: Path, address: str, code: int, said: str) -> None:
    answer = ask("show", root, address)
    assert answer.code == code
    assert said in answer.err
    assert answer.out == ""


def test_json_is_the_manifest_and_more(ask: Any, root: Path) -> None:
    manifest = json.loads((folder(root, 4) / "meta.json").read_bytes())
    shown = json.loads(ask("show", root, "@4", "--json").out)
    assert {name: shown[name] for name in manifest if name != "metrics"} == {
        name: value for name, value in manifest.items() if name != "metrics"
    }
    assert shown["metrics"] == {"loss": 0.2, "acc": 0.75, "nothing": {"$float": "7ff8000000000000"}}
    assert shown["path"] == str(folder(root, 4))
    assert shown["components"] == [
        {"name": "model", "kind": "module", "tensors": 2, "elements": 1240, "size": 4960},
        {"name": "optimizer", "kind": "optimizer", "tensors": 6, "elements": 2482, "size": 9928},
    ]
    assert (shown["damage"], shown["damaged"], shown["verified"]) == ([], None, None)


def test_what_verification_found_is_shown(ask: Any, root: Path) -> None:
    assert ask("verify", root, "@4", "--deep").code == 0
    assert json.loads(ask("show", root, "@4", "--json").out)["verified"] is not None
    assert any(line.startswith("  proof   verified 2") for line in ask("show", root, "@4").lines)
    flip(folder(root, 4) / "model.safetensors")
    assert ask("verify", root, "@4", "--deep").code == 3
    (proof,) = (line for line in ask("show", root, "@4").lines if line.startswith("  proof "))
    assert "damaged: step_0000000004/model.safetensors: the block at " in proof
    assert "(it was whole at " in proof


@pytest.mark.parametrize("name", ["index-00000.json", "context-00000.json"])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "changed"])
def test_a_damaged_index_or_context(ask: Any, root: Path, name: str, gone: bool) -> None:
    path = folder(root, 6) / name
    if gone:
        path.unlink()
    else:
        flip(path)
    answer = ask("show", root)
    assert answer.code == 3
    what = f"step_0000000006/{name} does not exist" if gone else "it does not match its digest"
    assert answer.lines[-1] == f"  {path.relative_to(root)}: {what}"
    assert json.loads(ask("show", root, "--json").out)["damage"] == [{"key": str(path.relative_to(root)), "what": what}]


def test_a_manifest_that_became_unreadable(ask: Any, root: Path) -> None:
    (folder(root, 6) / "meta.json").write_bytes(b"{}")
    answer = ask("show", root)
    assert answer.code == 3
    assert re.fullmatch(r"checkpoint c\w{16} is damaged: .*meta.json: .*", answer.err.splitlines()[0])
    assert json.loads(ask("show", root, "--json").out)["error"]["kind"] == "CheckpointDamaged"
    assert json.loads(ask("show", root, "@clean", "--json").out)["step"] == 4


def test_the_manifest_of_another_checkpoint(ask: Any, root: Path) -> None:
    (folder(root, 6) / "meta.json").write_bytes((folder(root, 2) / "meta.json").read_bytes())
    assert json.loads(ask("show", root, "--json").out)["step"] == 4
