"""Saves of weights alone, as the preset `finetune` makes them: proved, exported, and never what a run resumes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

import mementum
from mementum.catalog.sql import open_sqlite
from mementum.data import ElasticSampler
from mementum.exchange.exporting import export
from mementum.records import Entry, Granularity
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

STEPS_AN_EPOCH = 250


class Killed(Exception):
    """Stands for the death of the process: the run closes without a last save."""


def tune(root: Path, total: int, **settings: Any) -> tuple[Any, torch.nn.Module]:
    """Train with the preset to `total` steps, each save durable before the next step; then the process dies."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.arange(4.0 * STEPS_AN_EPOCH).reshape(STEPS_AN_EPOCH, 4) / 1000)
    loader = DataLoader(data, sampler=ElasticSampler(data, seed=0))
    config = {"preset": "finetune", "budgets": {"lost_time": "100 %"}, **settings}
    try:
        with mementum.open_run(root, task="t", model=model, optimizer=optimizer, data=loader, config=config) as run:
            for _, (inputs,) in run.steps(loader, total):
                optimizer.zero_grad()
                loss = model(inputs).pow(2).mean()
                loss.backward()
                optimizer.step()
                run.record(loss=loss)
                if run._background.saves_in_flight:
                    assert run.wait(60)
            raise Killed
    except Killed:
        return run.resumed, model


def entries(root: Path) -> dict[int, Entry]:
    """What the catalog lists, by step."""
    (home,) = {path.parent.parent.relative_to(root).as_posix() for path in root.glob("*/*/step_*/meta*.json")}
    catalog = open_sqlite(root / "catalog.db")
    found = catalog.entries(home)
    catalog.close()
    return {entry.manifest.step: entry for entry in found}


def kinds(root: Path) -> dict[int, Granularity]:
    return {step: entry.manifest.granularity for step, entry in sorted(entries(root).items())}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    root = tmp_path_factory.mktemp("tuned")
    return root, tune(root, 450)[1]


def test_weights_in_between_and_an_exact_state_first_and_at_each_epochs_end(tuned: Any) -> None:
    full, weights = Granularity.FULL, Granularity.WEIGHTS
    root = tuned[0]
    assert kinds(root) == {100: full, 200: weights, 250: full, 350: weights, 450: weights}
    found = entries(root)
    assert found[100].manifest.reason.endswith("exact: no exact save is there yet")
    assert found[250].manifest.reason == "the end of epoch 0"
    assert found[200].manifest.reason == "100 steps since the last save, interval 100"
    stored = {step: sum(one.size for one in found[step].manifest.files if "context" not in one.name) for step in found}
    assert stored[350] < stored[250]
    assert not any("optimizer" in file.name for file in found[350].manifest.files)


def test_they_are_whole_and_other_programs_read_them(tuned: Any, tmp_path: Path) -> None:
    root, model = tuned
    (home,) = {path.parent.parent for path in root.glob("*/*/step_*/meta*.json")}
    store, entry = LocalStore(PosixDisk(), str(home)), entries(root)[450]
    assert verify(store, entry.folder, entry.manifest, deep=True) == ()
    made = export(entry, store, to=str(tmp_path / "plain"), form="safetensors")
    (file,) = (name for name in made.files if name.endswith(".safetensors"))
    there = load_file(tmp_path / "plain" / file)
    assert {name: value.tolist() for name, value in there.items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2"}')
    hf = export(entry, store, to=str(tmp_path / "hf"), form="hf", config=str(config))
    assert any(name.endswith("model.safetensors") for name in hf.files)


def test_a_run_resumes_from_the_newest_exact_one(tmp_path: Path) -> None:
    tune(tmp_path, 450)
    resumed, _ = tune(tmp_path, 500)
    assert (resumed.step, resumed.rung) == (250, "exact")


def test_retention_counts_exact_ones_and_others_apart(tmp_path: Path) -> None:
    """The newest exact one stays, however many of weights come after it, and so many of those."""
    tune(tmp_path, 470, keep_last=1)
    assert kinds(tmp_path) == {250: Granularity.FULL, 450: Granularity.WEIGHTS}


def test_ten_saves_are_never_all_of_weights(tmp_path: Path) -> None:
    policy = ["before_stop", {"steps": {"every": 3, "granularity": "weights"}}]
    tune(tmp_path, 69, policy=policy, keep_last=None)
    seen = kinds(tmp_path)
    assert len(seen) == 23
    assert [step for step, kind in seen.items() if kind is Granularity.FULL] == [3, 33, 63]
    assert entries(tmp_path)[33].manifest.reason.endswith(
        "exact: 9 inexact saves since the newest exact one, at most 9"
    )
