"""What tests of the command line get: a root with real checkpoints, made once, and copies of it to damage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from mementum.cli.main import app

CODEC = "planes+zstd:1"  # compressed as it lands, as the first release did: no second generation
LOSSES = (0.9, 0.2, 0.5)  # at steps 2, 4 and 6: the second is the best


def train(root: Path, task: str, *, losses: tuple[float, ...] = LOSSES, reason: str | None = None) -> None:
    """A checkpoint every second step (or every one, for a reason), with metrics that came late."""
    import torch

    import mementum

    torch.manual_seed(7)
    every = 2 if reason is None else 1000
    model = torch.nn.Linear(30, 40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with (
        patch("mementum.equipping.RAW", CODEC),
        mementum.open_run(
            root,
            task=task,
            model=model,
            optimizer=optimizer,
            every_steps=every,
            codec=CODEC,
            user={"log": "here"},
        ) as run,
    ):
        for step in range(1, 2 * len(losses) + 1):
            model(torch.ones(1, 30)).pow(2).mean().backward()
            optimizer.step()
            run.record(loss=losses[(step - 1) // 2])
            if reason is not None:
                run.save(reason)
            run.wait()
        run.metrics(4, acc=0.75, nothing=float("nan"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with three checkpoints of `byte-gpt`. Nobody changes it."""
    root = tmp_path_factory.mktemp("trained") / "root"
    train(root, "byte-gpt")
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained`, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "root"))


@pytest.fixture(scope="session")
def make() -> Callable[..., None]:
    return train


class Answer:
    """What a command printed, and its exit code."""

    def __init__(self, *words: object) -> None:
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="mementum")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture(scope="session")
def ask() -> type[Answer]:
    return Answer


def listing(root: Path) -> dict[str, object]:
    """Everything of a root that somebody could have changed."""
    found: dict[str, object] = {}
    for path in (root, *sorted(root.rglob("*"))):
        status = os.lstat(path)
        held = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, held)
    return found


@pytest.fixture
def diagnosed(ask: Any) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Ask for JSON; the exit code and the findings. Also that nothing was touched, and that text says the same."""

    def diagnose(root: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
        before = listing(root)
        answer = ask("doctor", root, *words, "--json")
        text = ask("doctor", root, *words)
        assert listing(root) == before
        assert (answer.err, text.code) == ("", answer.code)
        findings: list[dict[str, Any]] = json.loads(answer.out)["findings"]
        said = [line for line in text.lines[1:-1] if not line.startswith(" ")]
        assert [line.split()[0] for line in said] == [one["severity"] for one in findings]
        return answer.code, findings

    return diagnose


@pytest.fixture(scope="session", name="listing")
def _listing() -> Callable[[Path], dict[str, object]]:
    return listing
