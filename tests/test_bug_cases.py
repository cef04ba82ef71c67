"""Public bug reports about one process, as situations: each test is named after its number in our collection.

A19 (killed while saving) is in `kill/`, A20 to A23 (which checkpoint is the newest, which may go) in `test_pruning.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import mementum
from loops import BATCH, Outcome, Parts, assert_same, dataset, parts, step_once, train
from mementum.data import ElasticSampler, Keyed
from mementum.errors import StateMismatch


class Numbered(Dataset[int]):
    """Samples that are their own index, and a count of how many were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return int(index)


def orders(root: Path, loader: Any, epochs: int, *, stop: int | None = None) -> list[list[int]]:
    """The batches that a run sees from where it stands; it dies after step `stop`."""
    seen: list[list[int]] = []
    try:
        with mementum.open_run(root, task="order", state={"nothing": {}}, data=loader, every_steps=1) as run:
            for number, batch in run.steps(loader, epochs=epochs):
                if stop is not None and number > stop:
                    run.wait()
                    raise InterruptedError
                seen.append(batch.tolist())
                run.record()
            run.wait()
            if stop is not None:
                raise InterruptedError
    except InterruptedError:
        pass
    return seen


def elastic(length: int = 10) -> DataLoader[int]:
    data = Numbered(length)
    return DataLoader(data, batch_size=2, sampler=ElasticSampler(data, seed=7))


def torchdatas(workers: int = 0) -> Any:
    torch.manual_seed(3)
    return StatefulDataLoader(Numbered(10), batch_size=2, shuffle=True, num_workers=workers)


@pytest.mark.parametrize("make", [elastic, torchdatas])
def test_a01_every_later_epoch_has_its_own_order(tmp_path: Path, make: Any) -> None:
    straight = orders(tmp_path / "straight", make(), 3)
    assert len(straight) == 15
    assert len({tuple(map(tuple, straight[epoch * 5 : epoch * 5 + 5])) for epoch in range(3)}) == 3
    for stop in range(16):
        root = tmp_path / str(stop)
        begun = orders(root, make(), 3, stop=stop)
        assert begun + orders(root, make(), 3) == straight, stop


@pytest.mark.parametrize("make", [elastic, torchdatas, lambda: torchdatas(workers=2)])
def test_a02_the_end_of_an_epoch_is_a_position(tmp_path: Path, make: Any) -> None:
    straight = orders(tmp_path / "straight", make(), 3)
    begun = orders(tmp_path / "cut", make(), 3, stop=5)
    rest = orders(tmp_path / "cut", make(), 3)
    assert begun == straight[:5]
    assert sorted(sample for batch in rest[:5] for sample in batch) == list(range(10))
    assert rest == straight[5:]


def test_a04_the_generators_go_on_where_they_stood(tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", 10)
    train(tmp_path / "cut", 10, stop=5)
    assert_same(straight, train(tmp_path / "cut", 10))


def test_a05_state_follows_the_parameters_name_not_its_place(tmp_path: Path) -> None:
    def made(reverse: bool) -> tuple[torch.nn.Module, torch.optim.Adam]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        parameters = list(model.parameters())
        return model, torch.optim.Adam(parameters[::-1] if reverse else parameters)

    model, optimizer = made(reverse=False)
    with mementum.open_run(tmp_path, task="a05", model=model, optimizer=optimizer) as run:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        run.record()
    other, reversed_optimizer = made(reverse=True)
    with mementum.open_run(tmp_path, task="a05", model=other, optimizer=reversed_optimizer):
        for (name, before), (_, after) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            assert torch.equal(optimizer.state[before]["exp_avg"], reversed_optimizer.state[after]["exp_avg"]), name
    first, last = (optimizer.state[parameter]["exp_avg"] for parameter in (model[0].weight, model[1].weight))
    assert not torch.equal(first, last)  # else the test could not tell them apart


def lr_by_epoch(root: Path, *, stop: int | None = None, epochs: int = 6) -> dict[int, float]:
    made = parts()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(made.optimizer, milestones=[1, 3, 4], gamma=0.1)
    seen: dict[int, float] = {}
    try:
        with mementum.open_run(
            root,
            task="lr",
            model=made.model,
            optimizer=made.optimizer,
            scheduler=scheduler,
            data=made.loader,
            every_steps=6,
        ) as run:
            for number, (inputs,) in run.steps(made.loader, epochs=epochs):
                seen[number] = made.optimizer.param_groups[0]["lr"]
                made.optimizer.zero_grad()
                made.model(inputs).sum().backward()
                made.optimizer.step()
                run.record()  # the save is decided here, before the scheduler is stepped, and must not miss it
                if run.ends_epoch:
                    scheduler.step()
                if stop is not None and run.epoch == stop and number % 6 == 1:
                    run.wait()
                    raise InterruptedError
    except InterruptedError:
        pass
    return seen


@pytest.mark.parametrize("stop", range(1, 6))
def test_a09_the_learning_rate_is_that_of_the_straight_run(tmp_path: Path, stop: int) -> None:
    straight = lr_by_epoch(tmp_path / "straight")
    lr_by_epoch(tmp_path / "cut", stop=stop)
    resumed = lr_by_epoch(tmp_path / "cut")
    assert min(resumed) == stop * 6 + 1
    assert resumed == {number: straight[number] for number in resumed}


@pytest.mark.parametrize("order", ["optimizer first", "scheduler first"])
def test_a10_the_order_of_construction_and_of_loading_does_not_matter(tmp_path: Path, order: str) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.SGD, torch.optim.lr_scheduler.LambdaLR]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))

    def things(model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:
        named = {"optimizer": optimizer, "scheduler": scheduler, "model": model}
        return named if order == "optimizer first" else dict(reversed(named.items()))

    model, optimizer, scheduler = made()
    with mementum.open_run(tmp_path, task="a10", state=things(model, optimizer, scheduler)) as run:
        for _ in range(3):
            optimizer.step()
            scheduler.step()
            run.record()
    assert optimizer.param_groups[0]["lr"] == 0.125
    model, optimizer, scheduler = made()
    with mementum.open_run(tmp_path, task="a10", state=things(model, optimizer, scheduler)):
        assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["initial_lr"]) == (0.125, 0.5)
        assert (scheduler.get_last_lr(), scheduler.last_epoch) == ([0.125], 3)


def test_a11_the_scale_of_mixed_precision_goes_on(tmp_path: Path) -> None:
    def run(root: Path, total: int, stop: int | None = None) -> Outcome:
        made_of: dict[str, Any] = {}

        def make() -> Parts:
            made = parts()
            made.extra["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
            made_of["made"] = made
            return made

        def step(made: Parts, batch: Any) -> float:
            scaler = made.extra["scaler"]
            made.optimizer.zero_grad()
            scaler.scale(made.model(batch[0]).pow(2).mean()).backward()
            if scaler.get_scale() > 2.0**11:
                made.model[0].weight.grad[0, 0] = float("inf")
            scaler.step(made.optimizer)
            scaler.update()
            made.scheduler.step()
            return float(scaler.get_scale())

        return train(root, total, stop=stop, make=make, step=step)

    straight = run(tmp_path / "straight", 14)
    assert len(set(straight.losses.values())) > 2  # the scale grew, and fell after an inf
    for stop in (3, 7, 8):
        run(tmp_path / str(stop), 14, stop)
        assert_same(straight, run(tmp_path / str(stop), 14))


def test_a12_an_average_of_the_weights_is_a_state_of_its_own(tmp_path: Path) -> None:
    def make() -> Parts:
        made = parts()
        made.extra["ema"] = torch.optim.swa_utils.AveragedModel(
            made.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        return made

    def step(made: Parts, batch: Any) -> float:
        loss = step_once(made, batch)
        made.extra["ema"].update_parameters(made.model)
        return loss

    straight = train(tmp_path / "straight", 9, make=make, step=step)
    assert straight.state["model['0.weight']"] != straight.state["ema['module.0.weight']"]
    train(tmp_path / "cut", 9, stop=4, make=make, step=step)
    assert_same(straight, train(tmp_path / "cut", 9, make=make, step=step))


def test_a12_an_average_that_was_not_saved_is_named(tmp_path: Path) -> None:
    made = parts()
    with mementum.open_run(tmp_path, task="a12", model=made.model) as run:
        run.record()
    with pytest.raises(StateMismatch, match="ema is given and was not stored"):
        mementum.open_run(tmp_path, task="a12", model=made.model, state={"ema": parts().model})


@pytest.mark.parametrize("workers", [0, 2])
def test_a28_a_resume_reads_no_batch_again(tmp_path: Path, workers: int) -> None:
    class Noisy(Numbered):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            return torch.rand(()) + index

    def loader(data: Noisy) -> DataLoader[Any]:
        keyed = Keyed(data, seed=1)
        return DataLoader(keyed, batch_size=BATCH, sampler=ElasticSampler(data, seed=7), num_workers=workers)

    data = Noisy(100)
    straight = orders(tmp_path / "straight", loader(data), 1)
    begun = orders(tmp_path / "cut", loader(Noisy(100)), 1, stop=20)
    rest = Noisy(100)
    assert begun + orders(tmp_path / "cut", loader(rest), 1) == straight
    if workers == 0:  # reads in workers are counted there
        assert rest.reads == 100 - 20 * BATCH


def test_the_dataset_of_the_loops_has_a_short_last_batch() -> None:
    assert len(dataset()) % BATCH == 3
