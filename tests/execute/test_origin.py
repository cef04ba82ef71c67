"""Where a run comes from is told where it can be, and never stands in the way of a run."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from mementum.execute import origin

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def forget() -> None:
    origin._installed.cache_clear()
    origin._codes.clear()


def git(folder: Path, *arguments: str) -> str:
    command = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A main script in a folder of its own, which no repository is above."""
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("pass\n")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return script


@pytest.fixture(autouse=True)
def asked_first() -> Iterator[None]:
    """A process that has not asked before, and none that goes on with the answers of a test."""
    forget()
    yield
    forget()


def test_versions_are_those_that_compute() -> None:
    found = origin.versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == version("torch")
    assert set(found) == {"python", "platform", *origin.PACKAGES}


def test_a_package_that_is_absent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(origin, "version", absent)
    assert set(origin.versions()) == {"python", "platform"}


def test_code_without_a_repository_says_nothing(program: Path) -> None:
    assert origin.code() == {}


@needs_git
def test_code_in_a_repository_is_told_by_its_commit(program: Path) -> None:
    git(program.parent, "init", "-q")
    assert origin.code() == {}  # there is no commit yet
    git(program.parent, "add", ".")
    git(program.parent, "commit", "-qm", "first")
    commit = git(program.parent, "rev-parse", "HEAD")
    assert origin.code() == {"commit": commit, "dirty": False}
    (program.parent / "untracked.txt").write_text("x")
    assert origin.code() == {"commit": commit, "dirty": False}
    program.write_text("pass  # changed\n")
    assert origin.code() == {"commit": commit, "dirty": False}  # what trains was read before
    forget()
    assert origin.code() == {"commit": commit, "dirty": True}


@needs_git
def test_file_names_that_are_no_text_do_not_matter(program: Path) -> None:
    folder = program.parent
    odd = folder / b"\xff\xfe.txt".decode("utf-8", "surrogateescape")
    odd.write_text("x")
    git(folder, "init", "-q")
    git(folder, "config", "core.quotepath", "false")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    odd.write_text("y")
    assert origin.code()["dirty"] is True


@pytest.mark.parametrize("argv", [[], [""], ["-c"], ["/no/such/folder/train.py"]])
def test_a_program_without_a_file_is_no_error(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert set(origin.code()) <= {"commit", "dirty"}


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 2)])
def test_a_git_that_is_absent_or_slow_is_no_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(*_: object, timeout: float, **__: object) -> None:
        assert timeout == origin.GIT_TIMEOUT_S
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    assert origin.code() == {}
