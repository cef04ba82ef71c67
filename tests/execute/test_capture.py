"""A capture is a copy: bit for bit what the state was, whatever its dtype and strides, whatever training does next."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mementum.errors import UnsupportedState
from mementum.execute.capture import SLOTS, BlockingCapture, Captured
from mementum.live.stateful import component_for
from mementum.live.tree import as_bytes

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


def component(name: str, thing: Any) -> Any:
    return component_for(name, thing, dict)


def raw_of(captured: Captured, name: str) -> bytes:
    """The captured bytes of the tensor called `name`."""
    found = [
        bytes(image.raw[tensor.offset : tensor.offset + tensor.size])
        for image in captured.images
        for tensor in image.layout.tensors
        if tensor.name == name
    ]
    assert len(found) == 1
    return found[0]


def take(*components: Any, codec: str = "raw") -> Captured:
    captured = BlockingCapture(codec=codec).take(components)
    assert captured is not None
    return captured


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)], ids=str)
def test_every_dtype_is_copied_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    captured = take(component("state", {"before": torch.ones(1, dtype=torch.uint8), "t": tensor}))
    assert raw_of(captured, "t") == raw.numpy().tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.arange(5.0, requires_grad=True),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
    ],
    ids=["transposed", "strided", "expanded", "channels last", "conj", "neg", "grad", "odd values"],
)
def test_views_are_copied_in_c_order(tensor: torch.Tensor) -> None:
    captured = take(component("state", {"t": tensor}))
    assert raw_of(captured, "t") == as_bytes(tensor).numpy().tobytes()
    assert raw_of(captured, "t") == bytes(as_bytes(tensor.detach().clone(memory_format=torch.contiguous_format)))


def test_what_training_does_afterwards_does_not_reach_the_copy() -> None:
    model = torch.nn.Linear(3, 2)
    before = as_bytes(model.weight).numpy().tobytes()
    captured = take(component("model", model))
    with torch.no_grad():
        model.weight.add_(1)
    assert raw_of(captured, "weight") == before


def test_a_model_has_the_names_of_its_state_dict() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.add_module("a/b~1", torch.nn.Linear(1, 1))
    names = {tensor.name for image in take(component("model", model)).images for tensor in image.layout.tensors}
    assert names == set(model.state_dict())


def test_only_models_have_the_short_names() -> None:
    captured = take(component("own", {"state": {"t": torch.ones(1)}, "t": torch.zeros(1)}))
    assert {tensor.name for tensor in captured.images[0].layout.tensors} == {"state/t", "t"}


def test_a_tensor_of_two_names_is_copied_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    captured = take(component("model", model))
    (image,) = captured.images
    assert [tensor.name for tensor in image.layout.tensors] == ["0.weight"]
    state = captured.components["model"]["state"]["state"]
    assert state["0.weight"] == state["1.weight"]


def test_views_that_only_overlap_are_copied_each() -> None:
    whole = torch.arange(4.0)
    captured = take(component("state", {"whole": whole, "half": whole[:2], "t": whole.reshape(2, 2)}))
    assert raw_of(captured, "half") == whole[:2].numpy().tobytes()
    assert raw_of(captured, "t") == raw_of(captured, "whole") == whole.numpy().tobytes()


def test_weights_are_raw_behind_a_header_and_the_rest_has_the_codec() -> None:
    model = torch.nn.Linear(2, 2)
    captured = take(component("model", model), component("more", {"t": torch.ones(3)}), codec="zstd:1")
    assert [(image.layout.name, image.layout.codec) for image in captured.images] == [
        ("model.safetensors", "raw"),
        ("optimizer.blocks", "zstd:1"),
    ]
    head = captured.images[0].layout.header
    assert bytes(captured.images[0].raw[: len(head)]) == head
    assert [len(image.raw) for image in captured.images] == [image.layout.raw_size for image in captured.images]
    assert captured.components["model"]["kind"] == "module"
    assert captured.components["more"]["kind"] == "container"


def test_there_are_only_so_many_slots_and_release_gives_them_back() -> None:
    capture = BlockingCapture(codec="raw")
    parts = [component("state", {"t": torch.ones(1)})]
    taken = [capture.take(parts) for _ in range(SLOTS)]
    assert None not in taken
    assert capture.take(parts) is None
    taken[0].release()
    again = capture.take(parts)
    assert again is not None
    assert capture.take(parts) is None


def test_two_snapshots_do_not_share_memory_and_memory_is_used_again() -> None:
    capture = BlockingCapture(codec="raw")
    tensor = torch.ones(4)
    first = capture.take([component("state", {"t": tensor})])
    tensor.fill_(2)
    second = capture.take([component("state", {"t": tensor})])
    assert raw_of(first, "t") == torch.ones(4).numpy().tobytes()
    assert raw_of(second, "t") == torch.full((4,), 2.0).numpy().tobytes()
    address = first.images[0].raw.obj.ctypes.data
    first.release()
    assert capture.take([component("state", {"t": tensor})]).images[0].raw.obj.ctypes.data == address


def test_state_may_grow_shrink_and_change_between_captures() -> None:
    capture = BlockingCapture(codec="raw")
    for size in (4, 1000, 0, 3, 4):
        for dtype in (torch.float32, torch.int64):
            tensor = torch.arange(size).to(dtype)
            captured = capture.take([component("state", {"t": tensor})])
            assert raw_of(captured, "t") == tensor.numpy().tobytes()
            captured.release()


def test_equal_names_in_another_order_are_not_mixed_up() -> None:
    capture = BlockingCapture(codec="raw")
    a, b = torch.zeros(3), torch.ones(3)
    capture.take([component("state", {"a": a, "b": b})]).release()
    captured = capture.take([component("state", {"b": b, "a": a})])
    assert (raw_of(captured, "a"), raw_of(captured, "b")) == (a.numpy().tobytes(), b.numpy().tobytes())


def test_a_failed_copy_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = BlockingCapture(codec="raw")
    parts = [component("state", {"t": torch.ones(1)})]
    monkeypatch.setattr("mementum.execute.capture.copy", _fail)
    for _ in range(SLOTS + 1):
        with pytest.raises(RuntimeError, match="no memory"):
            capture.take(parts)
    monkeypatch.undo()
    assert capture.take(parts) is not None


def _fail(*_: object) -> None:
    raise RuntimeError("no memory")


def test_a_state_that_cannot_be_read_frees_its_slot_too() -> None:
    capture = BlockingCapture(codec="raw")
    bare = torch.empty(2, device="meta")
    for _ in range(SLOTS + 1):
        with pytest.raises(UnsupportedState, match=r"state\.t"):
            capture.take([component("state", {"t": bare})])
    assert capture.take([component("state", {"t": torch.ones(1)})]) is not None
