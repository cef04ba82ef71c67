"""The command line as a process: what it imports, its exit codes, and errors without tracebacks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mementum import errors
from mementum.cli.failing import exit_code, told

HEAVY = ("torch", "numpy", "sqlalchemy", "rich", "obstore", "redis")
WATCH = """
import json, sys
from mementum.cli.main import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["mementum", *words]
    try:
        main()
    except SystemExit as leaving:
        codes.append(leaving.code)
print(json.dumps([codes, [name for name in {heavy!r} if name in sys.modules]]), file=sys.stderr)
"""


def imported(*commands: list[str]) -> tuple[list[int], list[str]]:
    """The exit codes of commands in one process of their own, and which heavy modules it has imported."""
    command = [sys.executable, "-c", WATCH.format(heavy=HEAVY), json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    return codes, modules


def test_help_imports_nothing_heavy() -> None:
    assert imported(["--help"], ["--version"], ["ls", "--help"], ["gc", "--help"]) == ([0, 0, 0, 0], [])


def test_no_command_imports_torch(root: Path) -> None:
    codes, heavy = imported(["ls", str(root)], ["show", str(root)], ["ls", str(root), "--json"], ["verify", str(root)])
    assert codes == [0, 0, 0, 0]
    assert set(heavy) <= {"numpy", "sqlalchemy"}  # and no rich: there is no terminal


def test_module_and_version() -> None:
    command = [sys.executable, "-m", "mementum", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mementum ")
    assert done.stderr == ""


def test_an_encoding_that_lacks_a_character(root: Path, make: Any) -> None:
    make(root, "größer", losses=(0.1,))
    command = [sys.executable, "-m", "mementum", "ls", root, "--task", "größer"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=True, env=env)
    assert b"gr\\xf6\\xdfer" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.UnsupportedState("x", 1), 2),
        (errors.NoSuchAddress("x"), 4),
        (errors.NothingToResume("x"), 4),
        (errors.CheckpointDamaged("c1", [("key", "what")]), 3),
        (errors.UnknownFormat("x"), 3),
        (errors.KeyMissing("x"), 1),
        (errors.TaskInUse("t", host="h", pid=1), 1),
        (errors.CheckpointError("x"), 1),
    ],
)
def test_exit_codes(error: errors.MementumError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("command", ["ls", "show", "verify"])
def test_a_missing_root(ask: Any, tmp_path: Path, command: str) -> None:
    answer = ask(command, tmp_path / "none")
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.splitlines() == [
        f"there is no folder '{tmp_path}/none'",
        "next: give the folder that open_run was given",
    ]


def test_an_error_as_json(ask: Any, tmp_path: Path) -> None:
    answer = ask("show", tmp_path / "none", "--json")
    assert answer.code == 2
    assert json.loads(answer.out) == {
        "error": {
            "kind": "UsageError",
            "message": f"there is no folder '{tmp_path}/none'",
            "kept": None,
            "next": "give the folder that open_run was given",
            "exit_code": 2,
        }
    }
    assert "there is no folder" in answer.err


@pytest.mark.parametrize("root", ["gopher://bucket/ckpt", "s3://", "", "a\0b", "file:///nowhere/at/all"])
def test_what_is_no_root(ask: Any, root: str) -> None:
    assert ask("ls", root).code == 2


@pytest.mark.parametrize("command", ["ls", "show", "verify"])
def test_a_folder_of_somebody_else_stays_as_it_is(ask: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "20260101" / "photos").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    answer = ask(command, tmp_path)
    assert answer.code == 4
    assert f"{tmp_path} holds no tasks of mementum" in answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_wrong_words(ask: Any, root: Path) -> None:
    assert ask("verify", root, "--depp").code == 2
    assert ask("nothing").code == 2
    assert ask("ls").code == 2


def test_an_error_of_the_system_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import typer

    with pytest.raises(typer.Exit) as caught, told(False):
        raise PermissionError(errno.EACCES, "Permission denied", "/a/\x1broot")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == "/a/\\x1broot: Permission denied\nkept: everything\n"


def test_a_closed_pipe_is_left_to_the_framework() -> None:
    with pytest.raises(BrokenPipeError), told(True):
        raise BrokenPipeError
