"""Public bug reports about models and optimizers, as situations: each test has its number in our collection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mementum
from loops import Parts, assert_same, parts, train
from trips import bits, resume, save_now


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a03_gradients_of_a_step_are_never_cut_in_half(tmp_path: Path, stop: int) -> None:
    """A step takes all its batches, so there is no save between two of them."""

    def run(root: Path, *, stop: int | None = None) -> dict[str, object]:
        made = parts()
        try:
            with mementum.open_run(
                root, task="a03", model=made.model, optimizer=made.optimizer, data=made.loader, every_steps=1
            ) as run:
                for number, group in run.steps(made.loader, 7, accumulate=4):
                    if stop is not None and number > stop:
                        run.wait()
                        raise InterruptedError
                    made.optimizer.zero_grad()
                    for (inputs,) in group:
                        made.model(inputs).pow(2).mean().backward()
                        run.save()  # asked for in the middle, and taken at the step's end
                    made.optimizer.step()
                    run.record()
        except InterruptedError:
            pass
        return bits(made.model.state_dict())

    straight = run(tmp_path / "straight")
    assert run(tmp_path / "cut", stop=stop) != straight
    assert run(tmp_path / "cut") == straight


def test_a03_a_loop_that_accumulates_by_itself_records_at_its_boundaries(tmp_path: Path) -> None:
    def run(root: Path, *, stop: int | None = None) -> dict[str, object]:
        made = parts()
        try:
            with mementum.open_run(
                root, task="a03", model=made.model, optimizer=made.optimizer, data=made.loader, every_steps=1
            ) as run:
                for number, (inputs,) in run.steps(made.loader, 12):
                    if stop is not None and number > stop:
                        run.wait()
                        raise InterruptedError
                    made.model(inputs).pow(2).mean().backward()
                    if number % 3 == 0:
                        made.optimizer.step()
                        made.optimizer.zero_grad()
                        run.record()
        except InterruptedError:
            pass
        return bits(made.model.state_dict())

    straight = run(tmp_path / "straight")
    for stop in (4, 5, 6, 8):
        root = tmp_path / str(stop)
        run(root, stop=stop)
        with mementum.open_run(root, task="a03", model=(made := parts()).model, optimizer=made.optimizer) as at:
            assert at.step == stop - stop % 3
        assert run(root) == straight, stop


def scheduled(lr: float, kind: str = "lambda") -> dict[str, Any]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    if kind == "lambda":
        return {"model": model, "optimizer": optimizer, "scheduler": decay}
    after = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [decay, after], milestones=[9])
    return {"model": model, "optimizer": optimizer, "scheduler": both}


@pytest.mark.parametrize("kind", ["lambda", "sequential"])
def test_a06_whose_learning_rate_holds_is_said_by_the_caller(tmp_path: Path, kind: str) -> None:
    def forward(things: dict[str, Any]) -> list[float]:
        seen = []
        for _ in range(2):
            things["optimizer"].step()
            things["scheduler"].step()
            seen.append(things["optimizer"].param_groups[0]["lr"])
        return seen

    saved = scheduled(0.8, kind)
    assert forward(saved) == [0.4, 0.2]
    save_now(tmp_path, saved)
    stored, new = scheduled(8.0, kind), scheduled(8.0, kind)
    resume(tmp_path, stored)
    assert stored["optimizer"].param_groups[0]["lr"] == 0.2
    assert forward(stored) == [0.1, 0.05]
    resume(tmp_path, new, lr_wins="new")
    assert new["optimizer"].param_groups[0]["lr"] == 8.0
    assert new["scheduler"].last_epoch == 2  # where the schedule stands is stored, its rates are the program's
    assert forward(new) == [1.0, 0.5]


class Swapping(torch.optim.Optimizer):
    """Keeps an average of the weights, and puts it in their place while it is in eval mode."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "train_mode": True})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            parameter.data.sub_(parameter.grad, alpha=0.1)
            average = state.setdefault("average", torch.zeros_like(parameter))
            average.lerp_(parameter.data, 0.25)

    def mode(self, train: bool) -> None:
        if self.param_groups[0]["train_mode"] != train:
            for parameter in self.param_groups[0]["params"]:
                average = self.state[parameter]["average"]
                kept = parameter.data.clone()
                parameter.data.copy_(average)
                average.copy_(kept)
            self.param_groups[0]["train_mode"] = train


@pytest.mark.parametrize("mode", [True, False])
def test_a07_weights_and_the_mode_of_their_optimizer_agree(tmp_path: Path, mode: bool) -> None:
    def make() -> tuple[nn.Module, Swapping]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        return model, Swapping(model.parameters())

    def forward(model: nn.Module, optimizer: Swapping) -> None:
        optimizer.mode(True)
        model.zero_grad()
        model(torch.ones(2, 3)).pow(2).sum().backward()
        optimizer.step()

    model, optimizer = make()
    for _ in range(3):
        forward(model, optimizer)
    optimizer.mode(mode)
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    fresh, back = make()
    resume(tmp_path, {"model": fresh, "optimizer": back})
    assert back.param_groups[0]["train_mode"] is mode
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    for made, its in ((model, optimizer), (fresh, back)):
        forward(made, its)
        its.mode(False)
    assert bits(fresh.state_dict()) == bits(model.state_dict())


def test_a08_a_step_that_was_a_number_in_an_older_torch(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Adam]:
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def forward(model: nn.Module, optimizer: torch.optim.Adam) -> None:
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model, optimizer = make()
    for _ in range(3):
        forward(model, optimizer)
    tensors = [state["step"] for state in optimizer.state.values()]
    for state in optimizer.state.values():
        state["step"] = 3
    save_now(tmp_path, {"model": model, "optimizer": optimizer})
    for state, step in zip(optimizer.state.values(), tensors, strict=True):
        state["step"] = step
    fresh, back = make()
    with mementum.open_run(tmp_path, task="trip", model=fresh, optimizer=back, resume="must") as run:
        assert len([told for told in run.resumed.differs if told.endswith("stored as a number and is a tensor")]) == 2
    forward(model, optimizer)
    forward(fresh, back)
    assert bits(fresh.state_dict()) == bits(model.state_dict())
    assert bits(back.state_dict()) == bits(optimizer.state_dict())


def test_a13_tied_weights_are_stored_once_and_train_on_tied(tmp_path: Path) -> None:
    def make() -> Parts:
        made = parts()
        made.model[4] = nn.Linear(8, 6)
        made.model.append(nn.Linear(6, 8, bias=False))
        made.model[5].weight = nn.Parameter(made.model[0].weight.detach().clone())
        made.model[0].weight = made.model[5].weight
        made.optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-2)
        made.scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer, 3)
        return made

    straight = train(tmp_path / "straight", 8, make=make)
    train(tmp_path / "cut", 8, stop=4, make=make)
    assert_same(straight, train(tmp_path / "cut", 8, make=make))
    fresh = make()
    resumed = {"model": fresh.model, "optimizer": fresh.optimizer, "scheduler": fresh.scheduler, "data": fresh.loader}
    with mementum.open_run(tmp_path / "cut", task="loop", **resumed):
        assert fresh.model[0].weight is fresh.model[5].weight
    header = next((tmp_path / "cut").rglob("model.safetensors")).read_bytes()[:4096]
    assert (b'"0.weight"' in header, b'"5.weight"' in header) == (True, False)


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "a14 compiled": lambda model: torch.compile(model, backend="eager"),
    "a14 compiled in place": lambda model: model,  # nn.Module.compile changes no name
    "a15 data parallel": nn.DataParallel,
    "a15 data parallel of a compiled one": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
}


def wrapped(kind: str) -> dict[str, Any]:
    """A model of which one part may be compiled too, in its wrapper; the optimizer is made from the wrapper."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    if kind == "a14 a part compiled":
        model[1] = torch.compile(model[1], backend="eager")
    elif kind == "a14 compiled in place":
        model.compile(backend="eager")
    model = WRAPPED.get(kind, lambda model: model)(model)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}


@pytest.mark.parametrize("kind", [*WRAPPED, "a14 a part compiled"])
def test_a14_a15_wrappers_leave_no_trace(tmp_path: Path, kind: str) -> None:
    def exact(old: dict[str, Any], new: dict[str, Any]) -> None:
        pairs = list(zip(old["model"].parameters(), new["model"].parameters(), strict=True))
        assert len(pairs) == 4
        for before, after in pairs:
            assert torch.equal(before, after)
            assert bits(dict(old["optimizer"].state[before])) == bits(dict(new["optimizer"].state[after]))
        assert [module.training for module in old["model"].modules() if isinstance(module, nn.Dropout)] == [False]
        assert [module.training for module in new["model"].modules() if isinstance(module, nn.Dropout)] == [False]

    for number, (first, second) in enumerate([(kind, "plain"), ("plain", kind)]):
        saved, fresh = wrapped(first), wrapped(second)
        for parameter in saved["model"].parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
        saved["optimizer"].step()
        saved["model"].eval()
        save_now(tmp_path / str(number), saved)
        with mementum.open_run(tmp_path / str(number), task="trip", resume="must", **fresh) as run:
            assert (run.resumed.rung, run.resumed.differs) == ("exact", ())
        exact(saved, fresh)
        header = next((tmp_path / str(number)).rglob("model.safetensors")).read_bytes()[:4096]
        assert b"_orig_mod" not in header
        assert b"module." not in header
