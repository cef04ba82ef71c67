"""What tests of exports and imports get: a root of a small training, and the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import mementum
from mementum.cli.main import app


class Net(torch.nn.Module):
    """Two layers of one weight, a norm with buffers, and a bias of a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.tied = torch.nn.Linear(6, 6, bias=False)
        self.tied.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(torch.relu(self.norm(self.inner(x))))


class Parts:
    """A model with its optimizer and scheduler, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        decayed = [parameter for parameter in self.model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.model.parameters() if parameter.ndim < 2]
        self.optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)

    def train(self, steps: int, seed: int = 3) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(5, 6, generator=generator)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses


@pytest.fixture(scope="session")
def parts() -> type[Parts]:
    return Parts


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parts]:
    """A root with a checkpoint of step 5, and the objects as they were then. Nobody changes either."""
    root = tmp_path_factory.mktemp("exchange") / "root"
    made = Parts()
    with mementum.open_run(
        root, task="net", model=made.model, optimizer=made.optimizer, scheduler=made.scheduler, every_steps=5
    ) as run:
        for _ in range(5):
            made.train(1)
            run.record(loss=1.0)
    return root, made


class Answer:
    """What a command printed, and its exit code."""

    def __init__(self, *words: object) -> None:
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="mementum")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="session")
def ask() -> Callable[..., Answer]:
    return Answer
