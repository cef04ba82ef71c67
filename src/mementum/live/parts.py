"""Tensors that are made of parts: sparse ones and quantised ones, taken apart to dense tensors and put together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

COMPRESSED = {  # layout: (kind, what gives the compressed indices, what gives the plain ones)
    torch.sparse_csr: ("sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("sparse_bsc", "ccol_indices", "row_indices"),
}
LAYOUTS = {kind: layout for layout, (kind, _, _) in COMPRESSED.items()}
PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)


def is_made_of_parts(tensor: torch.Tensor) -> bool:
    """Whether a tensor's bytes are those of several dense tensors."""
    if tensor.is_quantized:
        return tensor.qscheme() in PER_TENSOR + PER_CHANNEL
    return tensor.layout is torch.sparse_coo or tensor.layout in COMPRESSED


def take_apart(tensor: torch.Tensor) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """Its kind, its dense parts by name, and plain facts; `put_together` makes the same tensor of them."""
    if tensor.is_quantized:
        return _take_quantised_apart(tensor)
    facts: dict[str, Any] = {"size": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        parts = {"indices": tensor._indices(), "values": tensor._values()}
        return "sparse_coo", parts, {**facts, "coalesced": tensor.is_coalesced()}
    kind, compressed, plain = COMPRESSED[tensor.layout]
    parts = {"compressed": getattr(tensor, compressed)(), "plain": getattr(tensor, plain)(), "values": tensor.values()}
    return kind, parts, facts


def _take_quantised_apart(tensor: torch.Tensor) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    numbers = tensor.int_repr()
    if tensor.qscheme() in PER_TENSOR:
        scale, zero = tensor.q_scale(), tensor.q_zero_point()
        return "quantised", {"numbers": numbers}, {"dtype": dtype, "scale": scale, "zero_point": zero}
    parts = {"numbers": numbers, "scales": tensor.q_per_channel_scales(), "zeros": tensor.q_per_channel_zero_points()}
    return "quantised_channels", parts, {"dtype": dtype, "axis": tensor.q_per_channel_axis()}


def put_together(kind: str, parts: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> torch.Tensor:
    """The tensor that was taken apart. KeyError, ValueError or RuntimeError where the parts do not fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says of some layouts, once, that they are in beta
        if kind == "sparse_coo":
            return torch.sparse_coo_tensor(
                parts["indices"], parts["values"], facts["size"], is_coalesced=facts["coalesced"], check_invariants=True
            )
        if kind in LAYOUTS:
            return torch.sparse_compressed_tensor(
                parts["compressed"],
                parts["plain"],
                parts["values"],
                facts["size"],
                layout=LAYOUTS[kind],
                check_invariants=True,
            )
        if kind == "quantised":
            return torch._make_per_tensor_quantized_tensor(parts["numbers"], facts["scale"], facts["zero_point"])
        if kind == "quantised_channels":
            return torch._make_per_channel_quantized_tensor(
                parts["numbers"], parts["scales"], parts["zeros"], facts["axis"]
            )
    raise ValueError(f"no tensor is made of parts of kind {kind!r}")
