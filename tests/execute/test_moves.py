"""Memory that is shared or resized while a copy reads it by its address waits for the copy; torch is left as it was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mementum.clock import SystemClock
from mementum.execute import copying, moves
from mementum.execute.overlap import OverlappedCapture
from mementum.execute.snapshot import Label
from mementum.live.stateful import components_in

STORAGE = torch.UntypedStorage

LABEL = Label(id="c0", seq=1, attempt=1, step=1)


def methods() -> dict[str, Any]:
    """As they are now; runs of other tests in this process may still be open."""
    return {name: getattr(STORAGE, name) for name in moves.METHODS}


class Gate:
    """Holds every background copy, once it has begun, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        copied = copying.copy_in_chunks

        def held_up(name: str, source: Any, target: Any) -> None:
            self.reached.set()
            assert self.opened.wait(60)
            copied(name, source, target)

        monkeypatch.setattr(copying, "copy_in_chunks", held_up)


def share(tensor: torch.Tensor) -> None:
    tensor.share_memory_()


def send(tensor: torch.Tensor) -> None:
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(tensor)  # pickles, which shares, on this thread
    queue.get()


def shrink(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(tensor.nbytes // 2)


def grow(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(tensor.nbytes * 64)


@pytest.fixture
def training() -> Iterator[tuple[torch.nn.Module, OverlappedCapture, Any]]:
    before = methods()
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    components = components_in({"model": model, "optimizer": optimizer})
    capture = OverlappedCapture(codec="raw", components=components, clock=SystemClock())
    yield model, capture, components
    capture.close()
    assert methods() == before


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.parametrize("move", [share, send, shrink, grow])
def test_what_moves_waits_for_the_copy(training: Any, move: Any, gate: Gate) -> None:
    model, capture, components = training
    before = model.weight.detach().clone()
    captured = capture.take(components)
    assert captured is not None
    captured.seal(LABEL, lambda: None)  # which begins the copy
    assert gate.reached.wait(60)
    moving = threading.Thread(target=move, args=(model.weight.data,))
    moving.start()
    moving.join(0.2)
    assert moving.is_alive(), "it did not wait"
    gate.opened.set()
    moving.join(60)
    assert not moving.is_alive()
    assert captured.outcome() is None
    raw = np.frombuffer(captured.images[0].raw, np.uint8)
    assert before.numpy().tobytes() in raw.tobytes()
    captured.release()


def test_other_memory_does_not_wait(training: Any, gate: Gate) -> None:
    _, capture, components = training
    captured = capture.take(components)
    assert captured is not None
    captured.seal(LABEL, lambda: None)  # which begins the copy
    assert gate.reached.wait(60)
    torch.zeros(1000).share_memory_()
    torch.zeros(1000).untyped_storage().resize_(8000)
    assert not gate.opened.is_set()
    gate.opened.set()
    assert captured.outcome() is None
    captured.release()


def test_many_guards_end_in_any_order() -> None:
    asked: list[str] = []

    class Guard:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, address: int) -> Guard:
            return self

        def __enter__(self) -> None:
            asked.append(self.name)

        def __exit__(self, *ended: object) -> None:
            asked.append(f"{self.name} ended")

    before = methods()
    let_go = {name: moves.guard(Guard(name)) for name in "abc"}
    for name, expected in (("b", ["a", "c"]), ("a", ["c"]), ("c", [])):
        let_go.pop(name)()
        asked.clear()
        torch.zeros(4).untyped_storage().resize_(64)
        assert asked == [*expected, *(f"{one} ended" for one in reversed(expected))]
    assert methods() == before


def test_what_is_shared_already_is_not_asked_for() -> None:
    asked: list[int] = []

    def entered(address: int) -> Any:
        asked.append(address)
        return threading.Lock()

    tensor = torch.zeros(16).share_memory_()
    let_go = moves.guard(entered)
    try:
        send(tensor)
        assert asked == []
        torch.zeros(4).share_memory_()
        assert len(asked) == 1
    finally:
        let_go()


def test_a_fork_does_not_wait_for_a_copy_that_it_has_not(training: Any, gate: Gate) -> None:
    model, capture, components = training
    captured = capture.take(components)
    assert captured is not None
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        model.weight.data.share_memory_()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gate.opened.set()
    assert captured.outcome() is None
    captured.release()


@pytest.mark.parametrize("sure", [False, True])
def test_a_tensor_that_is_given_other_memory_before_its_copy_begins(training: Any, gate: Gate, sure: bool) -> None:
    """Its old memory may be gone by then, unless it was held: it is copied from there, or not at all."""
    model, capture, components = training
    gate.opened.set()
    first = capture.take(components)  # reads the structure, so that the next may only peek
    assert first is not None
    assert first.outcome() is None
    first.release()
    go_on = threading.Event()
    capture._copier.submit(lambda: go_on.wait(60))  # what follows an earlier copy may take long
    before = model.weight.detach().numpy().tobytes()
    captured = capture.take(components, sure=sure)
    assert captured is not None
    model.weight.data = torch.zeros(512, 512)
    go_on.set()
    assert captured.outcome() == (None if sure else copying.REPLACED)
    assert before in bytes(captured.images[0].raw)  # the first copy's, where there is no second
    captured.release()


def test_modes_that_change_beside_a_copy_are_no_other_structure(training: Any, gate: Gate) -> None:
    model, capture, components = training
    gate.opened.set()
    for mode in (True, True, False, True):
        model.train(mode)
        go_on = threading.Event()
        capture._copier.submit(lambda go_on=go_on: go_on.wait(60))
        captured = capture.take(components)
        assert captured is not None
        model.train(not mode)
        model.bias.requires_grad_(not model.bias.requires_grad)
        go_on.set()
        assert captured.outcome() is None
        assert captured.components["model"]["state"]["eval"] == ([] if mode else [""])
        captured.release()
