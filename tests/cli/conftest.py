"""What tests of the command line get: a root with real checkpoints, made once, and copies of it to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mementum.cli.main import app

LOSSES = (0.9, 0.2, 0.5)  # at steps 2, 4 and 6: the second is the best


def train(root: Path, task: str, *, losses: tuple[float, ...] = LOSSES, reason: str | None = None) -> None:
    """A checkpoint every second step (or every one, for a reason), with metrics that came late."""
    import torch

    import mementum

    torch.manual_seed(7)
    every = 2 if reason is None else 1000
    model = torch.nn.Linear(30, 40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with mementum.open_run(
        root,
        task=task,
        model=model,
        optimizer=optimizer,
        every_steps=every,
        codec="planes+zstd:1",
        user={"log": "here"},
    ) as run:
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
