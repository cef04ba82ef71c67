"""A search for a learning rate: trials share a prefix that was trained once, and one that diverges ends at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mementum
from mementum.data import ElasticSampler
from mementum.errors import TrainingDiverged

TASK = "search"
LR = 0.05  # of the prefix
PREFIX = 60  # steps that all trials share
TOTAL = 120  # steps in all
TRIALS = 8


class Program:
    """What a user's program makes before it opens a run: the same at every start."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(256, 8, generator=generator)
        targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:3]
        data = TensorDataset(inputs[:192], targets[:192])
        self.held_out = inputs[192:], targets[192:]
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 10))
        self.loader = DataLoader(data, batch_size=16, sampler=ElasticSampler(data, seed=2))

    def step(self, batch: Any) -> float:
        inputs, targets = batch
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def validate(self) -> float:
        inputs, targets = self.held_out
        return torch.nn.functional.mse_loss(self.model(inputs), targets).item()


def train(root: Path, total: int, losses: dict[int, float]) -> Program:
    """A start of the one task: where it begins, and with which learning rate, is not its business."""
    made = Program()
    with mementum.open_run(
        root,
        task=TASK,
        model=made.model,
        optimizer=made.optimizer,
        scheduler=made.scheduler,
        data=made.loader,
        config={"on_divergence": "stop"},
        every_steps=30,
        keep_last=2,
    ) as run:
        for step, batch in run.steps(made.loader, total=total):
            losses[step] = made.step(batch)
            run.record(loss=losses[step])
    return made


def straight(rate: float) -> Program:
    """The same training in one go, without mementum, with the rate of a trial from the end of the prefix on."""
    made, step = Program(), 0
    while step < TOTAL:
        for batch in made.loader:
            made.step(batch)
            step += 1
            if step == PREFIX:
                for group in made.optimizer.param_groups:
                    group["lr"] *= rate / LR
                made.scheduler.base_lrs = [lr * rate / LR for lr in made.scheduler.base_lrs]
            if step == TOTAL:
                break
    return made


@pytest.fixture
def quiet() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def test_trials_go_on_from_a_shared_prefix(tmp_path: Path, quiet: None, ask_tree: Callable[[Path], str]) -> None:
    shared: dict[int, float] = {}
    train(tmp_path, PREFIX, shared)
    trials: list[dict[int, float]] = []
    weights: dict[int, list[torch.Tensor]] = {}

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 2e-3, 2.0, log=True)
        # The onset of a trouble errs to the early side: that of a trial that diverged in its first steps may lie before
        # the prefix's end, which is then no longer called clean. Who searches knows better, and forces it.
        why = f"trial {trial.number}: rate {rate:.3g}"
        mementum.rollback(tmp_path, TASK, to=PREFIX, lr_scale=rate / LR, why=why, force=True)
        trials.append({})
        try:
            made = train(tmp_path, TOTAL, trials[-1])
        except TrainingDiverged as diverged:
            raise optuna.TrialPruned(diverged.message) from diverged
        weights[trial.number] = [parameter.detach().clone() for parameter in made.model.parameters()]
        return made.validate()

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=4))
    study.optimize(objective, n_trials=TRIALS)

    pruned = [trial.number for trial in study.trials if trial.state is optuna.trial.TrialState.PRUNED]
    assert pruned
    assert len(pruned) < TRIALS - 2
    assert sorted(shared) == list(range(1, PREFIX + 1))
    # The first step of every trial: the weights and the batch of the prefix's end, whatever came before it.
    assert {min(trial) for trial in trials} == {PREFIX + 1}
    assert len({trial[PREFIX + 1] for trial in trials}) == 1
    assert all(max(trial) == TOTAL for number, trial in enumerate(trials) if number not in pruned)
    # The best one is bit for bit what it would be without a prefix from a checkpoint.
    best = study.best_trial
    made = straight(best.params["rate"])
    assert all(map(torch.equal, weights[best.number], made.model.parameters()))
    assert best.value == made.validate()

    steps, without = len(shared) + sum(map(len, trials)), TRIALS * TOTAL
    print(f"{TRIALS} trials, {len(pruned)} of them diverged: {steps} steps in all; each from the beginning to the end,")
    print(f"they would be {without}: {without - steps} steps ({1 - steps / without:.0%}) are saved")
    assert steps <= PREFIX + (TRIALS - len(pruned)) * (TOTAL - PREFIX) + len(pruned) * (TOTAL - PREFIX) // 2
    assert steps < 0.55 * without

    drawn = ask_tree(tmp_path)
    print(drawn)
    assert drawn.count(f"back at step {PREFIX} (by hand)") == TRIALS
    assert drawn.count("TrainingDiverged") == len(pruned)


@pytest.fixture
def ask_tree() -> Callable[[Path], str]:
    from typer.testing import CliRunner

    from mementum.cli.main import app

    return lambda root: CliRunner().invoke(app, ["tree", str(root), TASK]).stdout
