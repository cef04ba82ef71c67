"""Every dtype and every layout of torch, found by inspection: each comes back as it was, bit for bit, or is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mementum.errors import UnsupportedState
from mementum.live.tree import UNCOPYABLE, prove, same, split
from trips import Box, resume, save_now

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTISED = {torch.qint8, torch.quint8, torch.qint32}  # made by quantising only
PLAIN = [dtype for dtype in DTYPES if dtype not in UNCOPYABLE | QUANTISED]

# Layouts that are refused by name. The list may not grow: what torch adds is tested, or a person decides why not.
NO_LAYOUT = {
    torch.jagged: "of nested tensors, which are refused: their parts are objects",
    torch._mkldnn: "an opaque form of the processor's library; to_dense() gives the numbers",  # type: ignore[attr-defined]
}
LAYOUTS = {value for value in vars(torch).values() if isinstance(value, torch.layout)}


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every byte of it another one, whatever number that makes."""
    count = dtype.itemsize * int(torch.Size(shape).numel())
    pattern = torch.arange(1, count + 1).remainder(251).to(torch.uint8)
    return (pattern.remainder(2).bool() if dtype is torch.bool else pattern.view(dtype)).reshape(shape)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


DENSE: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: filled(dtype, 3, 4),
    "transposed": lambda dtype: filled(dtype, 3, 4).T,
    "permuted": lambda dtype: filled(dtype, 2, 3, 4).permute(1, 2, 0),
    "channels last": lambda dtype: filled(dtype, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every third": lambda dtype: filled(dtype, 20)[1::3],
    "a column": lambda dtype: filled(dtype, 4, 5)[:, 2],
    "expanded": lambda dtype: filled(dtype, 1, 3).expand(4, 3),
    "no dimension": lambda dtype: filled(dtype, 1)[0],
    "empty": lambda dtype: torch.empty(0, dtype=dtype),
    "empty with a shape": lambda dtype: torch.empty(2, 0, 3, dtype=dtype),
}

# torch warns once a process, so that whichever test is first must bear it.
pytestmark = pytest.mark.filterwarnings("ignore:.*(beta state|ComplexHalf|quantize).*:UserWarning")


def sparse(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    eye = torch.eye(4).to(dtype)
    eye[2, 0] = -0.0 if dtype.is_floating_point else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        twice = torch.sparse_coo_tensor(torch.tensor([[1, 1], [0, 0]]), torch.ones(2, 3).to(dtype), (2, 2, 3))
        return {
            "coo": eye.to_sparse(),
            "coo, not coalesced, dense values": twice,
            "coo, nothing in it": torch.zeros(3, 2).to(dtype).to_sparse(),
            "csr": eye.to_sparse_csr(),
            "csr of 32-bit indices": torch.sparse_csr_tensor(
                torch.tensor([0, 1, 3], dtype=torch.int32),
                torch.tensor([2, 0, 2], dtype=torch.int32),
                eye[0, :3],
                (2, 3),
            ),
            "csr of a batch": torch.stack([eye, eye]).to_sparse_csr(),
            "csc": eye.to_sparse_csc(),
            "bsr": eye.to_sparse_bsr((2, 2)),
            "bsc": eye.to_sparse_bsc((2, 1)),
        }


def quantised() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    scales, zeros = torch.tensor([0.1, 0.3, 1e-3], dtype=torch.float64), torch.tensor([0, 3, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for dtype in sorted(QUANTISED, key=str):
            found[f"{dtype} by tensor"] = torch.quantize_per_tensor(numbers(3, 4), 1 / 3, 7, dtype)
            found[f"{dtype} by channel"] = torch.quantize_per_channel(numbers(3, 4), scales, zeros, 0, dtype)
            found[f"{dtype} by last channel"] = torch.quantize_per_channel(numbers(4, 3), scales, zeros, 1, dtype)
            found[f"{dtype} of nothing"] = torch.quantize_per_tensor(numbers(0, 2), 0.5, 0, dtype)
    return found


def read_in_another_way() -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for dtype in (dtype for dtype in PLAIN if dtype.is_complex):
        number = filled(dtype, 4)
        found |= {f"{dtype} conj": number.conj(), f"{dtype} conj of a part": number[::2].conj()}
        if dtype is not torch.complex32:  # whose parts torch cannot negate
            found |= {f"{dtype} neg": number.conj().imag, f"{dtype} neg of a part": number[1:].conj().imag[::2]}
    return found


def there_and_back(root: Path, held: dict[str, Any]) -> dict[str, Any]:
    save_now(root, {"state": {"box": Box(**held)}})
    fresh = Box()
    resume(root, {"state": {"box": fresh}})
    return fresh.held


def test_every_dtype_in_every_dense_form_comes_back(tmp_path: Path) -> None:
    held = {f"{dtype} {form}": make(dtype) for dtype in PLAIN for form, make in DENSE.items()}
    expected = {name: prove(tensor) for name, tensor in held.items()}
    back = there_and_back(tmp_path, held)
    assert [name for name in expected if prove(back[name]) != expected[name]] == []
    assert [name for name, tensor in back.items() if not tensor.is_contiguous()] == []
    assert len(held) >= 20 * len(DENSE)


def test_views_that_are_read_in_another_way_come_back_as_the_numbers_they_are(tmp_path: Path) -> None:
    held = read_in_another_way()
    assert {tensor.is_conj() or tensor.is_neg() for tensor in held.values()} == {True}
    back = there_and_back(tmp_path, held)
    for name, tensor in held.items():
        plain = tensor.resolve_conj().resolve_neg().clone()
        assert same(back[name], plain), name
        assert (back[name].is_conj(), back[name].is_neg()) == (False, False), name


def test_every_sparse_layout_comes_back(tmp_path: Path) -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64)
    held = {f"{dtype} {name}": tensor for dtype in dtypes for name, tensor in sparse(dtype).items()}
    back = there_and_back(tmp_path, held)
    for name, tensor in held.items():
        assert (back[name].layout, back[name].dtype, back[name].shape) == (tensor.layout, tensor.dtype, tensor.shape)
        assert prove(back[name]) == prove(tensor), name
        if tensor.layout is torch.sparse_coo:
            assert back[name].is_coalesced() == tensor.is_coalesced(), name
        assert torch.equal(back[name].to_dense(), tensor.to_dense()), name


def test_every_quantised_dtype_comes_back(tmp_path: Path) -> None:
    held = quantised()
    back = there_and_back(tmp_path, held)
    for name, tensor in held.items():
        assert (back[name].dtype, back[name].qscheme(), back[name].shape) == (
            tensor.dtype,
            tensor.qscheme(),
            tensor.shape,
        ), name
        assert prove(back[name]) == prove(tensor), name
        assert torch.equal(back[name].dequantize(), tensor.dequantize()), name


def test_a_proof_tells_the_parts_of_tensors_apart() -> None:
    """What looks alike when it is made dense is not the same state."""
    eye = torch.eye(2).to_sparse()
    assert not same(eye, torch.eye(2))
    scaled = [torch.quantize_per_tensor(torch.zeros(2), scale, 0, torch.qint8) for scale in (0.5, 0.25)]
    assert torch.equal(scaled[0].int_repr(), scaled[1].int_repr())
    assert not same(*scaled)
    halves = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 1.0]), (1,), check_invariants=True)
    assert not same(halves, halves.coalesce())


def test_every_dtype_is_copied_or_refused() -> None:
    assert set(DTYPES) == set(PLAIN) | UNCOPYABLE | QUANTISED
    for dtype in UNCOPYABLE:
        with pytest.raises(UnsupportedState, match="torch cannot copy"):
            split(torch.empty(2, dtype=dtype), component="s")


def test_every_layout_is_tested_or_refused() -> None:
    tested = {torch.strided} | {tensor.layout for tensor in sparse(torch.float32).values()}
    assert tested | NO_LAYOUT.keys() == LAYOUTS
    assert len(NO_LAYOUT) == 2
    with pytest.raises(UnsupportedState):
        split(torch.ones(2, 2).to_mkldnn(), component="s")
