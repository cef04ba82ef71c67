"""A snapshot is the state at its boundary, byte for byte, whatever a program does to its objects in between."""

from __future__ import annotations

import copy
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from mementum.clock import SystemClock
from mementum.execute import copying, structure
from mementum.execute.capture import BlockingCapture, Capture, Captured
from mementum.execute.copying import REPLACED
from mementum.execute.overlap import OverlappedCapture
from mementum.format import typed_json
from mementum.live.component import Component
from mementum.live.stateful import components_in
from mementum.live.tree import as_bytes, split

WAIT_S = 20.0  # for a copy that is held up; only a broken test waits so long
STEPS = 200  # of a machine: each kind of change comes about eight times
State = dict[str, tuple[str, tuple[int, ...], bytes]]


class Gate:
    """Holds the first piece of every copy until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.opened.set()
        real = copying.copy_in_chunks

        def wait(name: str, source: Any, target: Any) -> None:
            assert self.opened.wait(WAIT_S)
            real(name, source, target)

        monkeypatch.setattr(copying, "copy_in_chunks", wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


class Program:
    """A model with tied weights and buffers, a head, an average of the model, and two optimizers."""

    def __init__(self, chance: random.Random) -> None:
        torch.manual_seed(chance.randrange(1 << 30))
        self.chance = chance
        self.model: Any = torch.nn.Module()
        self.model.inner = torch.nn.Linear(8, 8)
        self.model.norm = torch.nn.BatchNorm1d(8)
        self.model.tied = torch.nn.Linear(8, 8, bias=False)
        self.model.tied.weight = self.model.inner.weight
        self.model.register_buffer("shaped", torch.randn(2, 6))
        self.head = torch.nn.Linear(8, 3)
        self.average: Any = copy.deepcopy(self.model)
        self.average.requires_grad_(False)
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.sgd = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)
        self.mine = torch.zeros(5)
        things = {"model": self.model, "head": self.head, "average": self.average, "adam": self.adam, "sgd": self.sgd}
        self.components: Sequence[Component] = components_in({**things, "mine": self.mine})
        self.added = 0
        for _ in range(3):
            self.train()

    def now(self) -> tuple[State, dict[str, bytes]]:
        """All tensors by component and name, copied, and the trees, by a reading that knows no short cut."""
        held: State = {}
        trees: dict[str, bytes] = {}
        for component in self.components:
            tree, tensors = split(
                component.read(), component=component.name, named_by="state" if component.weights else ""
            )
            trees[component.name] = typed_json.encode(tree, path="$")
            for name, tensor in tensors.items():
                raw = as_bytes(tensor).numpy().tobytes()
                held[f"{component.name}/{name}"] = (str(tensor.dtype), tuple(tensor.shape), raw)
        return held, trees

    def parameter(self) -> torch.nn.Parameter:
        return self.chance.choice([*self.model.parameters(), *self.head.parameters()])

    # What a program may do. A step of an optimizer waits for the copy; all else does not.

    def train(self) -> None:
        for optimizer, module in ((self.adam, self.model), (self.sgd, self.head)):
            for parameter in module.parameters():
                parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
            optimizer.step()

    def in_turn(self) -> None:
        self.chance.choice((self.adam, self.sgd)).step()

    def write_in_place(self) -> None:
        with torch.no_grad():
            self.parameter().add_(1.0)

    def write_through_data(self) -> None:
        self.parameter().data.mul_(-1.5).add_(0.25)

    def swap_data(self) -> None:
        parameter = self.parameter()
        parameter.data = torch.randn(parameter.shape).to(parameter.dtype)

    def swap_data_for_a_view(self) -> None:
        """All in one flat piece of memory, as some programs keep their parameters."""
        parameters = list(self.head.parameters())
        flat = torch.cat([one.data.reshape(-1) for one in parameters])
        for parameter, piece in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            parameter.data = piece.view(parameter.shape)

    def turn_layout(self) -> None:
        weight = self.head.weight
        weight.data = weight.data.t().contiguous().t()

    def turn_in_place(self) -> None:
        weight = self.model.inner.weight
        weight.data = weight.data.t()

    def reshape_in_place(self) -> None:
        buffer = self.model.shaped
        self.model.shaped = buffer.view(4, 3) if buffer.shape == (2, 6) else buffer.view(2, 6)

    def replace_optimizer_state(self) -> None:
        for values in self.adam.state.values():
            values["exp_avg"] = values["exp_avg"] * 2 + 1

    def forget_optimizer_state(self) -> None:
        self.sgd.state.clear()

    def name_another_state(self) -> None:
        values = self.sgd.state[self.head.bias]
        if values.pop("slow", None) is None:
            values["slow"] = torch.randn(3)
            values["seen"] = values.get("seen", 0) + 1

    def load_optimizer(self) -> None:
        self.adam.load_state_dict(copy.deepcopy(self.adam.state_dict()))

    def change_rate(self) -> None:
        self.adam.param_groups[0]["lr"] *= 0.9
        self.sgd.param_groups[0]["momentum"] = self.chance.choice((0.5, 0.9))

    def freeze_or_thaw(self) -> None:
        parameter = self.parameter()
        parameter.requires_grad_(not parameter.requires_grad)

    def add_a_buffer(self) -> None:
        self.added += 1
        self.model.norm.register_buffer(f"more{self.added}", torch.randn(4), persistent=self.chance.random() < 0.7)

    def take_a_buffer_away(self) -> None:
        names = [name for name, _ in self.model.norm.named_buffers() if name.startswith("more")]
        if names:
            delattr(self.model.norm, self.chance.choice(names))

    def replace_a_buffer(self) -> None:
        self.model.norm.running_mean = torch.randn(8)

    def add_a_group(self) -> None:
        self.added += 1
        layer = torch.nn.Linear(2, 2, bias=self.chance.random() < 0.5)
        setattr(self.head, f"layer{self.added}", layer)
        if len(self.sgd.param_groups) < 5:
            self.sgd.add_param_group({"params": list(layer.parameters()), "lr": 0.5})

    def halve(self) -> None:
        dtype = self.chance.choice((torch.float16, torch.bfloat16, torch.float32))
        self.head.to(dtype)
        self.sgd.state.clear()

    def tie_or_untie(self) -> None:
        tied = self.model.tied.weight is self.model.inner.weight
        weight = self.model.inner.weight
        self.model.tied.weight = torch.nn.Parameter(weight.detach().clone()) if tied else weight

    def change_mode(self) -> None:
        self.model.norm.train(not self.model.norm.training)

    def average_in_place(self) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.average.inner.parameters(), self.model.inner.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)

    def average_through_data(self) -> None:
        self.average.inner.weight.data.copy_(self.model.inner.weight.data * 0.5)

    def average_anew(self) -> None:
        self.average.load_state_dict(copy.deepcopy(self.average.state_dict()))
        self.average.inner.weight = torch.nn.Parameter(torch.randn(8, 8), requires_grad=self.chance.random() < 0.3)

    def replace_a_module(self) -> None:
        self.model.norm = torch.nn.BatchNorm1d(8)

    def forward(self) -> None:
        if self.model.norm.training:
            self.model.norm(torch.randn(4, 8))

    def write_mine(self) -> None:
        self.mine.add_(1.0)

    def empty(self) -> None:
        self.model.norm.nothing = torch.nn.Buffer(torch.empty(0, self.chance.randrange(3)))

    def hook(self) -> None:
        """From now on code of somebody else's takes part in the reading."""
        if self.added % 3 == 0:
            handle = self.head.register_state_dict_post_hook(lambda module, state, prefix, metadata: None)
            self.added += 1
            if self.chance.random() < 0.5:
                handle.remove()


CHANGES = [name for name, value in vars(Program).items() if callable(value) and name[0] != "_"]
CHANGES = [name for name in CHANGES if name not in ("now", "parameter")]


def bytes_of(captured: Captured) -> State:
    """All tensors of a capture, as they lie in its files."""
    return {
        f"{placed.component}/{placed.laid.name}": (
            f"torch.{placed.laid.dtype}",
            placed.laid.shape,
            bytes(image.raw[placed.laid.offset : placed.laid.offset + placed.laid.size]),
        )
        for image in captured.images
        for placed in image.layout.placed
    }


def trees_of(captured: Captured) -> dict[str, bytes]:
    return {name: typed_json.encode(told["state"], path="$") for name, told in captured.components.items()}


def assert_is(captured: Captured, expected: tuple[State, dict[str, bytes]], history: Sequence[str]) -> None:
    held, trees = bytes_of(captured), trees_of(captured)
    assert trees == expected[1], history[-3:]
    assert held.keys() == expected[0].keys(), history[-3:]
    differ = [name for name, value in expected[0].items() if held[name] != value]
    assert not differ, (differ, history[-3:])


@pytest.fixture(params=["blocking", "overlapped", "overlapped, frozen files reused"])
def capture_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(structure, "FROZEN_MIN", 1)
    made: list[Capture] = []

    def make(program: Program) -> Capture:
        if request.param == "blocking":
            made.append(BlockingCapture(codec="raw"))
        else:
            reuse = request.param.endswith("reused")
            made.append(
                OverlappedCapture(
                    codec="raw", components=program.components, clock=SystemClock(), verify=True, reuse_frozen=reuse
                )
            )
        return made[-1]

    yield make
    for capture in made:
        capture.close()


def test_after_any_change_the_next_snapshot_is_the_state(capture_for: Any, rng: random.Random) -> None:
    program = Program(rng)
    capture = capture_for(program)
    history: list[str] = []
    again = 0
    for _ in range(STEPS):
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            history.append(rng.choice(CHANGES))
            getattr(program, history[-1])()
        captured = capture.take(program.components, sure=rng.random() < 0.5)
        assert captured is not None
        if captured.outcome() == REPLACED:  # the structure was only peeked at
            captured.release()
            again += 1
            captured = capture.take(program.components)
            assert captured is not None
        assert captured.outcome() is None, history[-3:]
        assert_is(captured, program.now(), history)
        captured.release()
    assert {*history} == {*CHANGES}
    assert (again > 0) is isinstance(capture, OverlappedCapture)


def test_a_change_beside_a_copy_is_told_or_is_not_in_it(gate: Gate, rng: random.Random) -> None:
    """Never committed torn: with `verify` the copy is of its boundary, or it says why it is not."""
    program = Program(rng)
    capture = OverlappedCapture(codec="raw", components=program.components, clock=SystemClock(), verify=True)
    history: list[str] = []
    told = 0
    for number in range(STEPS):
        capture.gave_up = False  # else everything after the first that is told would be copied at once
        expected = program.now()
        gate.opened.clear()
        captured = capture.take(program.components)
        assert captured is not None
        change = rng.choice([name for name in CHANGES if name not in ("train", "in_turn")])
        history.append(change)
        getattr(program, change)()
        if number % 2:
            threading.Timer(0.001, gate.opened.set).start()
            program.train()  # is held back
        gate.opened.set()
        if captured.outcome() is None:
            assert_is(captured, expected, history)
        else:
            told += 1
        captured.release()
        if number % 2 == 0:
            program.train()
    capture.close()
    assert 0 < told < STEPS / 2


@pytest.mark.parametrize("change", ["write_in_place", "write_through_data"])
def test_a_write_of_another_thread_is_found(gate: Gate, rng: random.Random, change: str) -> None:
    program = Program(rng)
    capture = OverlappedCapture(codec="raw", components=program.components, clock=SystemClock(), verify=True)
    gate.opened.clear()
    captured = capture.take(program.components)
    assert captured is not None
    other = threading.Thread(target=getattr(program, change))
    other.start()
    other.join(WAIT_S)
    gate.opened.set()
    told = captured.outcome()
    assert told is not None
    assert "was changed while it was copied, not by its optimizer's step" in told
    capture.close()


Way = Callable[[Program], None]


def _average(program: Program) -> None:
    with torch.no_grad():
        for mine, theirs in zip(program.average.parameters(), program.model.parameters(), strict=True):
            mine.lerp_(theirs, 0.3)


@pytest.mark.parametrize("of_its_own", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("when", ["before the step", "after the step", "beside the copy"])
def test_an_average_is_of_its_boundary(gate: Gate, rng: random.Random, when: str, of_its_own: bool) -> None:
    program = Program(rng)
    program.average.requires_grad_(of_its_own)
    capture = OverlappedCapture(codec="raw", components=program.components, clock=SystemClock(), reuse_frozen=True)
    for _ in range(4):
        if when == "before the step":
            _average(program)
        program.train()
        if when == "after the step":
            _average(program)
        expected = program.now()
        gate.opened.clear()
        captured = capture.take(program.components)
        assert captured is not None
        program.model.norm(torch.randn(4, 8))  # the forward pass, which moves the buffers
        if when == "beside the copy":
            _average(program)
        gate.opened.set()
        assert captured.outcome() is None
        assert_is(captured, expected, [when])
        captured.release()
    capture.close()


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(gate: Gate) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    components = components_in({"model": model, "optimizer": optimizer})
    capture = OverlappedCapture(codec="raw", components=components, clock=SystemClock())
    gate.opened.clear()
    captured = capture.take(components)
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT_S))
        optimizer.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gate.opened.set()
    assert captured is not None
    assert captured.outcome() is None
    capture.close()
