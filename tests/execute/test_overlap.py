"""Overlapped capture: the copy is of the step at which it was begun, whatever the next step does meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

import mementum
from loops import Outcome, Parts, assert_same, parts, step_once, train
from mementum.clock import SystemClock
from mementum.events import Committed, Failed, Note, SaveSkipped
from mementum.execute import copying
from mementum.execute.capture import Captured
from mementum.execute.overlap import OverlappedCapture
from mementum.live.component import Component
from mementum.live.stateful import components_in

TOTAL = 15


class Gate:
    """Holds every background copy until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        real = copying.copy_in_chunks

        def wait(name: str, source: Any, target: Any) -> None:
            self.reached.set()
            assert self.opened.wait(20)
            real(name, source, target)

        monkeypatch.setattr(copying, "copy_in_chunks", wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def begin() -> Iterator[Callable[..., OverlappedCapture]]:
    made: list[OverlappedCapture] = []

    def begin(components: tuple[Component, ...], **wishes: Any) -> OverlappedCapture:
        made.append(OverlappedCapture(codec="raw", components=components, clock=SystemClock(), **wishes))
        return made[-1]

    yield begin
    for capture in made:
        capture.close()


def model_and(optimizer: Callable[..., torch.optim.Optimizer], **settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
    made = optimizer(model.parameters(), **settings)
    one_step(model, made)
    return model, made


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.rand(8, 64)).pow(2).mean().backward()
    optimizer.step()


def held(captured: Captured, name: str) -> torch.Tensor:
    """A tensor of the model as it lies in the slot."""
    for image in captured.images:
        for placed in image.layout.placed:
            if placed.laid.name == name:
                raw = bytearray(image.raw[placed.laid.offset : placed.laid.offset + placed.laid.size])
                dtype = getattr(torch, placed.laid.dtype)
                return torch.frombuffer(raw, dtype=dtype).view(placed.laid.shape)
    raise AssertionError(name)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("straight"), TOTAL)


@pytest.mark.parametrize("stop", [0, 1, 6, 7, 12, 15])
def test_a_resume_equals_the_straight_run(tmp_path: Path, straight: Outcome, stop: int) -> None:
    train(tmp_path, TOTAL, stop=stop, capture="overlapped", verify_capture=True)
    assert_same(straight, train(tmp_path, TOTAL, capture="overlapped"))


VARIANTS = [
    (torch.optim.AdamW, {"lr": 0.1, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.1, "foreach": True}),
    (torch.optim.AdamW, {"lr": 0.1, "foreach": False}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1}),
    (torch.optim.Adafactor, {"lr": 0.1}),
]


@pytest.mark.parametrize(("kind", "settings"), VARIANTS, ids=lambda value: str(getattr(value, "__name__", value)))
def test_the_step_waits_for_the_copy(gate: Gate, begin: Any, kind: Any, settings: dict[str, Any]) -> None:
    model, optimizer = model_and(kind, **settings)
    components = components_in({"model": model, "optimizer": optimizer})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    captured = begin(components).take(components)
    assert captured is not None
    stepping = threading.Thread(target=one_step, args=(model, optimizer))
    stepping.start()
    assert gate.reached.wait(20)
    stepping.join(0.2)
    assert stepping.is_alive()  # forward and backward are done by now, and the step is held back
    assert torch.equal(model[0].weight, before["0.weight"])
    gate.opened.set()
    stepping.join(20)
    assert captured.outcome() is None
    assert captured.waited_s() > 0
    assert not torch.equal(model[0].weight, before["0.weight"])
    for name, value in before.items():
        assert torch.equal(held(captured, name).view(value.shape), value), name


def test_what_can_change_elsewhere_is_copied_at_once(gate: Gate, begin: Any) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    ema = copy.deepcopy(model)
    components = components_in({"model": model, "optimizer": optimizer, "ema": ema, "mine": torch.ones(3)})
    captured = begin(components).take(components)
    buffer, average = model[1].running_mean.clone(), ema[0].weight.clone()
    model(torch.rand(8, 64))  # a forward pass moves the buffers of BatchNorm
    ema[0].weight.data.zero_()
    gate.opened.set()
    assert captured.outcome() is None
    assert torch.equal(held(captured, "1.running_mean"), buffer)
    assert not torch.equal(model[1].running_mean, buffer)
    tensors = [
        held(Captured(images=(image,), components={}, release=lambda: None), "0.weight")
        for image in captured.images
        if image.layout.name == "ema.safetensors"
    ]
    assert torch.equal(tensors[0], average)


@pytest.mark.parametrize("place", ["positional", "keyword"])
def test_a_closure_runs_beside_the_copy(gate: Gate, begin: Any, place: str) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    components = components_in({"model": model, "optimizer": optimizer})
    before = model[0].weight.detach().clone()
    captured = begin(components).take(components)
    ran = threading.Event()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.rand(8, 64)).pow(2).mean()
        loss.backward()
        ran.set()
        return loss

    arguments = {"args": (closure,)} if place == "positional" else {"kwargs": {"closure": closure}}
    stepping = threading.Thread(target=optimizer.step, **arguments)
    stepping.start()
    assert ran.wait(20)
    assert torch.equal(model[0].weight, before)
    gate.opened.set()
    stepping.join(20)
    assert captured.outcome() is None
    assert torch.equal(held(captured, "0.weight"), before)
    assert not torch.equal(model[0].weight, before)


def test_every_optimizer_waits_and_others_do_not(gate: Gate, begin: Any) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    critic, of_critic = model_and(torch.optim.AdamW, lr=0.1)
    components = components_in({"model": model, "critic": critic, "optimizer": optimizer, "of_critic": of_critic})
    captured = begin(components).take(components)
    stranger, of_stranger = model_and(torch.optim.SGD, lr=0.1)  # a step of it does not wait
    one_step(stranger, of_stranger)
    stepping = [threading.Thread(target=one_step, args=pair) for pair in ((model, optimizer), (critic, of_critic))]
    for thread in stepping:
        thread.start()
    for thread in stepping:
        thread.join(0.1)
        assert thread.is_alive()
    gate.opened.set()
    for thread in stepping:
        thread.join(20)
    assert captured.outcome() is None


@pytest.mark.parametrize(("place", "verify", "found"), [(0, False, True), (4000, False, False), (4000, True, True)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unseen_change_beside_the_step(
    begin: Any, place: int, verify: bool, found: bool, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the copy gets there it is found by the sample at the head of every tensor, or anywhere with `verify`;
    after that the copy is whole already."""
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    components = components_in({"model": model, "optimizer": optimizer})
    before = model[0].weight.detach().clone()
    real = copying.copy_in_chunks

    def change_too(name: str, source: Any, target: Any) -> None:
        change = name == "model.0.weight"
        if change and when == "before":
            model[0].weight.data.view(-1)[place] += 1.0
        real(name, source, target)
        if change and when == "after":
            model[0].weight.data.view(-1)[place] += 1.0

    monkeypatch.setattr(copying, "copy_in_chunks", change_too)
    captured = begin(components, verify=verify).take(components)
    told = captured.outcome()
    assert (told is not None) is (found and when == "before")
    assert told is None or told.startswith("model.0.weight was changed")
    assert torch.equal(held(captured, "0.weight"), before) is (when == "after")


def test_a_torn_copy_is_never_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    real = copying.copy_in_chunks
    spoil = [True]

    def change_first(name: str, source: Any, target: Any) -> None:
        if spoil[0]:
            model[0].weight.data.view(-1)[0] += 1.0
        real(name, source, target)

    monkeypatch.setattr(copying, "copy_in_chunks", change_first)
    told: list[Any] = []
    things = {"model": model, "optimizer": optimizer}
    with mementum.open_run(
        tmp_path, task="torn", **things, every_steps=1, capture="overlapped", on_event=told.append
    ) as run:
        run.record()
        run.wait()
        assert [event.step for event in told if isinstance(event, SaveSkipped)] == [1]
        spoil[0] = False
        run.record()
        run.wait()
    assert [event.step for event in told if isinstance(event, Committed)] == [2]


def test_an_optimizer_that_calls_no_hooks_is_copied_at_once_and_said(tmp_path: Path) -> None:
    class Bare(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter -= 0.1

    Bare.step.hooked = True  # type: ignore[attr-defined]  # else Optimizer.__init__ would wrap it
    model = torch.nn.Linear(4, 4)
    optimizer = Bare(model.parameters(), lr=0.1)
    del optimizer.__dict__["_optimizer_step_pre_hooks"]
    told: list[Any] = []
    with mementum.open_run(
        tmp_path, task="bare", model=model, optimizer=optimizer, capture="overlapped", on_event=told.append
    ) as run:
        run.record()
    assert [event.text for event in told if isinstance(event, Note)] == [
        "optimizer: its step does not call torch's hooks, so its state is copied while the loop waits"
    ]


def test_a_copy_that_fails_costs_one_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)

    def fail(name: str, source: Any, target: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(copying, "copy_in_chunks", fail)
    told: list[Any] = []
    things = {"model": model, "optimizer": optimizer}
    with mementum.open_run(
        tmp_path, task="f", **things, every_steps=1, capture="overlapped", on_event=told.append
    ) as run:
        run.record()
        one_step(model, optimizer)  # is not held back for ever
        run.wait()
        monkeypatch.undo()
        run.record()
    assert [type(event) for event in told if isinstance(event, Failed | Committed)] == [Failed, Committed]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    hooks = len(_global_optimizer_pre_hooks)
    train(tmp_path, 3, capture="overlapped")
    assert len(_global_optimizer_pre_hooks) == hooks
    assert not [thread for thread in threading.enumerate() if thread.name == "mementum-copy"]


def test_scaling_and_inf_steps(tmp_path: Path) -> None:
    def make() -> Parts:
        made = parts()
        made.extra["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
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

    straight = train(tmp_path / "straight", 12, make=make, step=step)
    for stop in (3, 6, 7):
        train(tmp_path / str(stop), 12, stop=stop, make=make, step=step, capture="overlapped")
        assert_same(straight, train(tmp_path / str(stop), 12, make=make, step=step, capture="overlapped"))


def test_accumulation_is_captured_between_steps_only(tmp_path: Path) -> None:
    def step(made: Parts, batches: list[Any]) -> float:
        return sum(step_once(made, batch) for batch in batches)

    def run(root: Path, total: int, **wishes: Any) -> bytes:
        made = parts()
        opening = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler, "data": made.loader}
        with mementum.open_run(root, task="a", every_steps=1, **opening, **wishes) as opened:
            for _, batches in opened.steps(made.loader, total, accumulate=3):
                step(made, batches)
                opened.record()
        return made.model[0].weight.detach().numpy().tobytes()

    whole = run(tmp_path / "whole", 7)
    run(tmp_path / "cut", 4, capture="overlapped")
    assert run(tmp_path / "cut", 7, capture="overlapped") == whole


@pytest.mark.parametrize("change", ["in place", "through data"])
def test_a_change_before_the_copy_gets_there_is_found(gate: Gate, begin: Any, change: str) -> None:
    """Then the copy and the live tensor agree, and both are of another instant than the rest."""
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    components = components_in({"model": model, "optimizer": optimizer})
    captured = begin(components).take(components)
    with torch.no_grad():
        (model[2].weight if change == "in place" else model[2].weight.data).fill_(7.0)
    gate.opened.set()
    assert captured.outcome() == "model.2.weight was changed while it was copied, not by its optimizer's step"


def test_after_an_overtaken_copy_everything_is_copied_at_once(tmp_path: Path) -> None:
    model, optimizer = model_and(torch.optim.SGD, lr=0.1)
    told: list[Any] = []
    things = {"model": model, "optimizer": optimizer}
    with mementum.open_run(tmp_path, task="g", **things, every_steps=1, keep_last=None, on_event=told.append) as run:
        for number, _ in run.steps([0] * 4, total=4):
            with torch.no_grad():
                model[2].weight.fill_(float(number))
            one_step(model, optimizer)
            run.record()
            run.wait() if number > 1 else None
    committed = [event.step for event in told if isinstance(event, Committed)]
    skipped = [event.step for event in told if isinstance(event, SaveSkipped)]
    assert (committed[-1], sorted(committed + skipped)) == (4, [1, 2, 3, 4])
    assert len([event for event in told if isinstance(event, Note) and "as with capture" in event.text]) <= 1


def test_a_momentum_encoder_inside_the_model_is_exact(tmp_path: Path) -> None:
    """Its weights have no gradient, lie in the optimizer, and are moved by the forward pass."""

    def make() -> Parts:
        made = parts()
        made.extra["key"] = torch.nn.Linear(6, 8)
        made.extra["key"].requires_grad_(False)
        everything = [*made.model.parameters(), *made.extra["key"].parameters()]
        made.optimizer = torch.optim.AdamW(everything, lr=1e-2)
        made.scheduler = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 0.02, total_steps=1000)
        return made

    def step(made: Parts, batch: Any) -> float:
        key, query = made.extra["key"], made.model[0]
        with torch.no_grad():
            key.weight.lerp_(query.weight, 0.1)
        return step_once(made, batch)

    straight = train(tmp_path / "straight", 12, make=make, step=step)
    for stop in (1, 5, 9):
        train(tmp_path / str(stop), 12, stop=stop, make=make, step=step)
        assert_same(straight, train(tmp_path / str(stop), 12, make=make, step=step))
