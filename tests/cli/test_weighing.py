"""`mementum du`: each byte is counted once, and what could be freed is what would come free."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mementum.cli.weighing import du
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def weighed(ask: Any, root: Path, *words: str) -> list[dict[str, Any]]:
    answer = ask("du", root, *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    found: list[dict[str, Any]] = json.loads(answer.out)["tasks"]
    return found


def lengths(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/*/**/*") if path.is_file())


def test_every_byte_is_counted(ask: Any, root: Path) -> None:
    (one,) = weighed(ask, root)
    assert (one["task"], one["checkpoints"], one["shared"]) == ("byte-gpt", 3, 0)
    assert one["size"] == sum(one["kinds"].values()) == lengths(root)
    weights = sum(path.stat().st_size for path in root.glob("*/*/*/model.safetensors"))
    optimizer = sum(path.stat().st_size for path in root.glob("*/*/*/optimizer.blocks"))
    context = sum(path.stat().st_size for path in root.glob("*/*/*/context-*.json"))
    assert (one["kinds"]["weights"], one["kinds"]["optimizer"], one["kinds"]["context"]) == (
        weights,
        optimizer,
        context,
    )
    assert one["kinds"]["left over"] == 0
    assert one["disk"] == sum(path.stat().st_blocks * 512 for path in root.glob("*/*/**/*") if path.is_file())
    assert one["retention"] == {"removes": 0, "frees": 0}


def test_names_of_one_file_are_one(ask: Any, root: Path) -> None:
    first, second, _ = sorted(root.glob("*/*/step_*/model.safetensors"))
    (before,) = weighed(ask, root)
    second.unlink()
    os.link(first, second)
    (one,) = weighed(ask, root)
    size = first.stat().st_size
    assert (one["size"], one["shared"]) == (before["size"] - size, size)
    assert one["disk"] < before["disk"]
    assert f"{size / 1024:.1f} KiB more if checkpoints did not share files" in ask("du", root).lines


def test_what_no_manifest_names_is_left_over(ask: Any, root: Path) -> None:
    (home,) = root.glob("*/byte-gpt_*")
    LocalStore(PosixDisk(), str(home)).put("step_0000000008/model.safetensors", [b"x" * 1000])
    (one,) = weighed(ask, root)
    assert one["kinds"]["left over"] == 1000
    assert one["size"] == lengths(root)


def test_several_tasks_the_largest_first(ask: Any, root: Path, make: Any) -> None:
    make(root, "small", losses=(0.1,))
    assert [one["task"] for one in weighed(ask, root)] == ["byte-gpt", "small"]
    assert [one["task"] for one in weighed(ask, root, "small")] == ["small"]
    lines = ask("du", root).lines
    assert lines[0].split()[0] == "byte-gpt"
    assert "█" * 30 in lines[0]
    assert lines[-2].startswith("2 tasks, 4 checkpoints, ")
    assert ask("du", root, "third").code == 4


def test_copies_on_tiers_are_told_apart(ask: Any, root: Path, tmp_path: Path) -> None:
    assert ask("place", root, "@4", "--to", tmp_path / "nas").code == 0
    (one,) = weighed(ask, root)
    assert [(of["tier"], of["checkpoints"]) for of in one["tiers"]] == [(str(tmp_path / "nas"), 1)]
    assert one["tiers"][0]["size"] == sum(path.stat().st_size for path in root.glob("*/*/step_*4/[!m]*")) + sum(
        path.stat().st_size for path in root.glob("*/*/step_*4/model*")
    )


def test_a_task_without_checkpoints(ask: Any, root: Path) -> None:
    for step in root.glob("*/*/step_*"):
        shutil.rmtree(step)
    answer = ask("du", root)
    assert answer.code == 4
    assert answer.lines[0].split()[0] == "byte-gpt"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_bars_in_any_encoding(root: Path, encoding: str) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(terminal):
        assert du(str(root), None, as_json=False) == 0
    terminal.flush()
    printed = terminal.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert ("█" if encoding == "utf-8" else "#") * 30 in printed
