"""Headers of safetensors files are read by safetensors itself, and data starts on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file

from mementum.errors import UsageError
from mementum.format.weights import ALIGNMENT, CODES, header, lay


def facts(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], int, int]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (name, dtype, tuple(tensor.shape), tensor.element_size(), tensor.numel() * tensor.element_size())


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def write(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    """A file as we lay it out; its header."""
    laid = lay(facts(name, tensor) for name, tensor in tensors.items())
    head = header(laid)
    path.write_bytes(head + b"".join(as_bytes(tensors[tensor.name]) for tensor in laid))
    return json.loads(head[8:])


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Tensors of any dtype, made of random bytes that are no NaN."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    raw = torch.randint(0, 2 if dtype == torch.bool else 60, (size,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", sorted(CODES))
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (0,), (4, 0, 2), (1, 2, 3, 4)])
def test_safetensors_reads_every_dtype_it_knows(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    tensor = numbers(getattr(torch, name), *shape)
    write(tmp_path / "a.safetensors", {"t": tensor})
    found = load_file(tmp_path / "a.safetensors")["t"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert as_bytes(found) == as_bytes(tensor)


def test_all_dtypes_in_one_file_in_any_order(tmp_path: Path) -> None:
    torch.manual_seed(2)
    tensors = {f"t.{name}": numbers(getattr(torch, name), 3, number) for number, name in enumerate(CODES)}
    for order in (list(tensors), list(reversed(tensors)), sorted(tensors)):
        path = tmp_path / "a.safetensors"
        write(path, {name: tensors[name] for name in order})
        found = load_file(path)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert as_bytes(found[name]) == as_bytes(tensor)


@pytest.mark.parametrize(
    "name", ["", "a b", "schicht.größe", "层.权重", "🙂", 'quo"te\\', "a/b~c", "line\nbreak", "x" * 5000]
)
def test_names_of_any_kind(tmp_path: Path, name: str) -> None:
    tensor = torch.arange(5.0)
    write(tmp_path / "a.safetensors", {name: tensor, "other": torch.zeros(2)})
    assert torch.equal(load_file(tmp_path / "a.safetensors")[name], tensor)


@pytest.mark.parametrize(
    ("name", "width"), [("complex128", 16), ("float8_e8m0fnu", 1), ("float4_e2m1fn_x2", 1), ("uint1", 1)]
)
def test_other_dtypes_are_bytes_with_one_more_dimension(tmp_path: Path, name: str, width: int) -> None:
    raw = torch.randint(0, 256, (6 * width,), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    tensor = raw.view(torch.complex128).reshape(2, 3) if name == "complex128" else raw.reshape(2, 3)
    laid = lay([("t", name, (2, 3), width, 6 * width)])
    head = header(laid)
    (tmp_path / "a.safetensors").write_bytes(head + as_bytes(tensor))
    assert json.loads(head[8:])["t"] == {"dtype": "U8", "shape": [2, 3, width], "data_offsets": [0, 6 * width]}
    found = load_file(tmp_path / "a.safetensors")["t"]
    assert torch.equal(found.reshape(-1), raw)


@pytest.mark.parametrize("count", [0, 1, 40, 41, 42, 43, 100, 1000])
def test_data_starts_on_a_page(tmp_path: Path, count: int) -> None:
    tensors = {f"layer.{number}.weight": torch.full((2,), float(number)) for number in range(count)}
    write(tmp_path / "a.safetensors", tensors)
    data = (tmp_path / "a.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert start % ALIGNMENT == 0
    assert data[start:] == b"".join(as_bytes(tensor) for tensor in tensors.values())
    assert load_file(tmp_path / "a.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("length", range(4096 - 160, 4096 - 60))
def test_the_padding_is_right_around_a_page(length: int) -> None:
    head = header(lay([("x" * length, "uint8", (1,), 1, 1)]))
    assert len(head) in (ALIGNMENT, 2 * ALIGNMENT)
    assert 8 + int.from_bytes(head[:8], "little") == len(head)
    assert len(head[8:].rstrip(b" ")) > len(head) - 8 - ALIGNMENT


def test_the_widest_come_first_and_equal_widths_keep_their_order() -> None:
    tensors = [("a", "uint8", (3,), 1, 3), ("b", "float64", (1,), 8, 8), ("c", "int8", (1,), 1, 1)]
    assert [(one.name, one.offset, one.size) for one in lay(tensors)] == [("b", 0, 8), ("a", 8, 3), ("c", 11, 1)]
    spread = lay(tensors, alignment=64)
    assert [(one.name, one.offset, one.size) for one in spread] == [("b", 0, 8), ("a", 64, 3), ("c", 128, 1)]


def test_every_tensor_is_aligned_to_its_elements() -> None:
    widths = {name: getattr(torch, name).itemsize for name in CODES}
    laid = lay((name, name, (3,), width, 3 * width) for name, width in widths.items())
    assert all(tensor.offset % tensor.itemsize == 0 for tensor in laid)
    ends = [tensor.offset + tensor.size for tensor in laid]
    assert [tensor.offset for tensor in laid] == [0, *ends[:-1]]


def test_the_metadata_says_who_wrote_it(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"t": torch.zeros(1)})
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "mementum": "1"}


def test_the_name_that_the_format_keeps_is_refused() -> None:
    with pytest.raises(UsageError, match="'__metadata__'"):
        header(lay([("__metadata__", "float32", (1,), 4, 4)]))


def test_a_header_beyond_the_formats_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="over the format's limit of 100000000"):
        header(lay([("x" * 100_000_000, "float32", (1,), 4, 4)]))
