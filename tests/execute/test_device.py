"""Tests of the copy from a GPU; `bench/gpu.py` is the longer check of the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from mementum.execute import device
from mementum.execute.device import DeviceCopy, pin

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def test_a_tensor_of_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="a tensor of cpu is not copied from a GPU"):
        DeviceCopy([(torch.zeros(2), np.zeros(8, np.uint8))])


def test_a_copy_of_nothing_ends() -> None:
    copy = DeviceCopy([])
    ended = threading.Event()
    ending = threading.Thread(target=lambda: (copy.issue(), copy.hold_back(), copy.finish(), ended.set()))
    ending.start()
    ending.join(timeout=10)
    assert ended.is_set()


def test_a_step_is_held_back_until_the_copy_is_queued() -> None:
    copy = DeviceCopy([])
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (copy.hold_back(), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    copy.issue()
    waiting.join(timeout=10)
    assert passed.is_set()


def test_what_keeps_a_copy_from_being_queued_is_raised_in_the_save_and_holds_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Done:
        waited = 0

        def synchronize(self) -> None:
            self.waited += 1

    class Lane:
        done = Done()

    def refuse(lane: object) -> None:
        raise RuntimeError("out of memory")

    copy = DeviceCopy([])
    lane = Lane()
    monkeypatch.setattr(copy, "_lanes", (lane,))
    monkeypatch.setattr(device, "_queue", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        copy.issue()
    copy.hold_back()
    with pytest.raises(RuntimeError, match="out of memory"):
        copy.finish()
    assert lane.done.waited == 1  # what was queued before may still be written


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, so memory is pinned")
def test_without_a_gpu_nothing_is_pinned() -> None:
    assert pin(np.zeros(4096, np.uint8)) is None


@needs_gpu
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.T, lambda x: x[::2], lambda x: x.expand(3, -1, -1)])
def test_the_bytes_are_those_at_the_beginning(make: object) -> None:
    assert callable(make)
    base = torch.arange(3000.0, device="cuda").reshape(50, 60)
    source = make(base)
    expected = source.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().copy()
    target = np.zeros(expected.size, np.uint8)
    let_go = pin(target)
    copy = DeviceCopy([(source, target)])
    thread = threading.Thread(target=copy.issue)
    thread.start()
    copy.hold_back()
    base.zero_()  # what the next step does
    copy.finish()
    thread.join()
    assert np.array_equal(target, expected)
    assert let_go is not None
    let_go()


@needs_gpu
def test_a_source_that_is_freed_is_not_overwritten() -> None:
    size = 1 << 24
    target = np.zeros(size, np.uint8)
    source = torch.full((size,), 7, dtype=torch.uint8, device="cuda")
    copy = DeviceCopy([(source, target)])
    copy.issue()
    del source
    taken = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(4)]
    copy.finish()
    assert (target == 7).all()
    assert len(taken) == 4


@needs_gpu
def test_memory_that_is_pinned_already_is_refused_without_a_trace() -> None:
    memory = np.zeros(1 << 20, np.uint8)
    let_go = pin(memory)
    assert let_go is not None
    assert pin(memory) is None
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
    let_go()
    again = pin(memory)
    assert again is not None
    again()
