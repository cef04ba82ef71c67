"""Tests of values that are seen late; those of a device need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mementum.perceive.late import Late

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


@pytest.fixture
def no_sync() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_what_lies_on_the_cpu_is_there_at_once() -> None:
    late: Late[int] = Late()
    assert late.put(3, torch.tensor(2.5, requires_grad=True))
    assert late.put(4, [torch.tensor([[1, 2]]), torch.tensor([0.5], dtype=torch.float64)])
    assert late.ready() == [(3, (2.5,)), (4, (1.0, 2.0, 0.5))]
    assert late.ready() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_every_dtype_is_read(dtype: torch.dtype) -> None:
    late: Late[str] = Late()
    late.put("x", torch.ones((), dtype=dtype))
    assert late.ready() == [("x", (1.0,))]


def test_a_value_is_that_of_the_instant_it_was_put() -> None:
    late: Late[str] = Late()
    loss = torch.tensor([1.0, 2.0])
    late.put("loss", loss)
    loss.zero_()
    assert late.ready() == [("loss", (1.0, 2.0))]


def test_more_than_the_limit_is_dropped() -> None:
    late: Late[int] = Late(pending_max=2)
    assert [late.put(number, torch.tensor(1.0)) for number in range(4)] == [True, True, False, False]
    assert [key for key, _ in late.ready()] == [0, 1]
    assert late.put(9, torch.tensor(1.0))


def test_what_is_forgotten_does_not_come() -> None:
    late: Late[int] = Late()
    late.put(1, torch.tensor(1.0))
    late.forget()
    late.put(2, torch.tensor(2.0))
    assert late.ready() == [(2, (2.0,))]


@needs_gpu
def test_values_of_a_device_come_in_order_and_nobody_waits(no_sync: None) -> None:
    late: Late[int] = Late()
    a = torch.ones(2000, 2000, device="cuda")
    for number in range(8):
        late.put(number, (a @ a).sum() * 0 + number)
    seen = late.ready()
    event = torch.cuda.Event()
    event.record()
    while not event.query():  # `synchronize` is what the debug mode forbids
        seen += late.ready()
    seen += late.ready()
    assert seen == [(number, (float(number),)) for number in range(8)]


@needs_gpu
def test_pinned_memory_is_used_again() -> None:
    late: Late[int] = Late()
    for number in range(5):
        late.put(number, torch.full((3,), float(number), device="cuda"))
        torch.cuda.synchronize()
        assert late.ready() == [(number, (float(number),) * 3)]
    assert [len(places) for places in late._free.values()] == [1]
