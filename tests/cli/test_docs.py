"""The page of the command line: every command and option stands in it, has help, and its examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mementum.cli.main import app

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "cli.md"
GROUP: Any = typer.main.get_command(app)


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(command: str) -> str:
    """What stands under the command's heading."""
    found = re.search(rf"^## `mementum {command}\b.*?(?=^## |\Z)", page(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section on {command}"
    return found[0]


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_every_command_has_help_and_a_section(name: str) -> None:
    command = GROUP.commands[name]
    assert command.help
    text = section(name)
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help"
        word = parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.opts[0].upper()
        assert f"`{word}" in text, f"docs/cli.md does not tell {name} {word}"
    assert "Exit codes" in text
    assert "```" in text


def test_global_options_are_told() -> None:
    for parameter in GROUP.params:
        assert parameter.help
        assert f"`{parameter.opts[0]}`" in page()


def test_no_section_without_a_command() -> None:
    assert set(re.findall(r"^## `mementum (\w+)", page(), re.MULTILINE)) == set(GROUP.commands)


def test_every_example_runs(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)  # examples write beside the root
    examples = re.findall(r"^\$ mementum (.+?)(?:\s+#.*)?$", page(), re.MULTILINE)
    assert len(examples) >= 10
    for example in examples:
        words = [str(root) if word == "ckpt" else word for word in shlex.split(example)]
        answer = ask(*words)
        assert answer.code == 0, f"mementum {example}: {answer.err}"
