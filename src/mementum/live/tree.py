"""Trees of state: nested dicts, lists and tuples whose tensors are taken out under names, and put back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from mementum.errors import CheckpointDamaged, UnsupportedState
from mementum.format.blocks import digest
from mementum.format.typed_json import TensorParts, TensorRef
from mementum.format.weights import RESERVED
from mementum.live.parts import is_made_of_parts, put_together, take_apart
from mementum.records import record

DEPTH_MAX = 100  # no state of a real optimizer nests so deep; a cycle would never end
PROVERS = 4  # threads: two reach the speed of memory where four are no slower (24 GB/s against 10 of one)
ALONE = 16 << 20  # bytes: below it one thread is done before others are begun

# Integers of less than a byte and packed quantised numbers: torch has the types, and copies no tensor of them.
UNCOPYABLE = frozenset(
    getattr(torch, name)
    for name in (*(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)), "quint4x2", "quint2x4")
    if hasattr(torch, name)
)


def split(tree: object, *, component: str, named_by: str = "") -> tuple[object, dict[str, torch.Tensor]]:
    """The tree with every tensor replaced by a TensorRef, and the tensors by name.

    A tensor is called after its path. Those right under the key `named_by` are called by their own keys alone: a
    model's file has the names of its state dict, as every reader of safetensors expects.
    A tensor that occurs twice (tied weights) is taken out once. Tensors are the live ones, detached: nothing is
    copied here. UnsupportedState names a tensor that has no bytes of its own kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    seen: dict[tuple[object, ...], str] = {}

    def walk(node: object, parts: tuple[str, ...]) -> object:
        if isinstance(node, torch.Tensor):
            return _take_out(node, parts)
        if len(parts) > DEPTH_MAX:
            raise UnsupportedState(_path(component, parts[:8]), node, why="nests too deep, or refers to itself")
        kind = type(node)
        if kind is dict or kind is OrderedDict:
            assert isinstance(node, dict)
            return kind((key, walk(value, (*parts, _part(key)))) for key, value in node.items())
        if kind is list or kind is tuple:
            assert isinstance(node, list | tuple)
            return kind(walk(value, (*parts, str(number))) for number, value in enumerate(node))
        return node

    def _take_out(tensor: torch.Tensor, parts: tuple[str, ...]) -> TensorRef | TensorParts:
        _require_bytes(tensor, _path(component, parts))
        tensor = tensor.detach()
        if not is_made_of_parts(tensor):
            return TensorRef(name=_keep(tensor, parts))
        kind, held, facts = take_apart(tensor)
        names = {
            part: _keep(dense.detach(), (*parts[:-1], f"{parts[-1] if parts else 'value'}.{part}"))
            for part, dense in held.items()
        }
        return TensorParts(kind=kind, parts=names, facts=facts)

    def _keep(tensor: torch.Tensor, parts: tuple[str, ...]) -> str:
        identity = _identity(tensor)
        if identity in seen:
            return seen[identity]
        name = "/".join(parts) or "value"  # a state may be one tensor
        if len(parts) == 2 and parts[0] == named_by:
            name = parts[1].replace("~1", "/").replace("~0", "~")
        while name in tensors or name == RESERVED:  # the keys 1 and "1" of one dict
            name += "~"
        tensors[name] = tensor
        if tensor.numel():
            seen[identity] = name
        return name

    return walk(tree, ()), tensors


def join(skeleton: object, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The tree again, every TensorRef replaced by what `tensor` gives for its name."""
    if isinstance(skeleton, TensorRef):
        return tensor(skeleton.name)
    if isinstance(skeleton, TensorParts):
        return put_together(
            skeleton.kind, {part: tensor(name) for part, name in skeleton.parts.items()}, skeleton.facts
        )
    if isinstance(skeleton, dict) and type(skeleton) in (dict, OrderedDict):
        return type(skeleton)((key, join(value, tensor)) for key, value in skeleton.items())
    if type(skeleton) in (list, tuple):
        assert isinstance(skeleton, list | tuple)
        return type(skeleton)(join(value, tensor) for value in skeleton)
    return skeleton


def leaves(tree: object, path: str) -> Iterator[tuple[str, object]]:
    """Every leaf with its path, depth first; empty containers count as leaves."""
    if type(tree) in (dict, OrderedDict) and tree:
        assert isinstance(tree, dict)
        for key, value in tree.items():
            yield from leaves(
                value, f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"
            )
    elif type(tree) in (list, tuple) and tree:
        assert isinstance(tree, list | tuple)
        for number, value in enumerate(tree):
            yield from leaves(value, f"{path}[{number}]")
    else:
        yield path, tree


def stored(tensors: Mapping[str, torch.Tensor], *, id: str) -> Callable[[str], torch.Tensor]:
    """A look-up for `join` that says when a tensor is missing."""

    def look_up(name: str) -> torch.Tensor:
        if name not in tensors:
            raise CheckpointDamaged(id, [("index", f"the context names a tensor {name!r} that is in no file")])
        return tensors[name]

    return look_up


@record
class Proof:
    """What a tensor is to be, bit for bit, after it was given away."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    digests: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...] = ()


def prove(tensor: torch.Tensor) -> Proof:
    """A proof of the tensor's present bits."""
    shape = tuple(tensor.shape)
    if not is_made_of_parts(tensor):
        return Proof(kind="dense", dtype=tensor.dtype, shape=shape, digests=(("", _digest(tensor)),))
    kind, parts, facts = take_apart(tensor)
    return Proof(
        kind=kind,
        dtype=tensor.dtype,
        shape=shape,
        digests=tuple((part, _digest(dense)) for part, dense in sorted(parts.items())),
        facts=tuple((name, repr(fact)) for name, fact in sorted(facts.items())),
    )


@record
class Given:
    """A tensor that was given away, and torch's count of changes to it at that time."""

    tensor: torch.Tensor
    version: int

    def is_still(self, live: torch.Tensor) -> bool:
        """Whether `live` has the bits that were given. Nothing need be read if it is the very tensor, unwritten."""
        given = self.tensor
        if given._version != self.version:
            return False
        kind = (live.data_ptr(), live.dtype, live.shape, live.stride())
        if kind == (given.data_ptr(), given.dtype, given.shape, given.stride()):
            return True
        return same(given, live)


def given(tree: object) -> object:
    """The tree with what was given away in the place of every tensor: enough where nothing but torch takes it."""
    return _with(tree, lambda tensor: Given(tensor=tensor, version=tensor._version))


def prove_all(tensors: Sequence[torch.Tensor]) -> list[Proof]:
    """The proofs of many tensors. Those that lie in host memory are digested by several threads."""
    proofs: dict[int, Proof] = {}
    ours = {id(tensor): tensor for tensor in tensors if tensor.is_cpu and _is_dense(tensor)}
    if sum(tensor.nbytes for tensor in ours.values()) >= ALONE:
        with ThreadPoolExecutor(PROVERS, thread_name_prefix="mementum-prove") as pool:
            proofs = dict(zip(ours, pool.map(prove, ours.values()), strict=True))
    # All others by this thread: a device's copy must follow what this thread has asked of the device.
    return [proofs[id(tensor)] if id(tensor) in proofs else prove(tensor) for tensor in tensors]


def proved(tree: object) -> object:
    """The tree with a proof in the place of every tensor."""
    tensors = [leaf for _, leaf in leaves(tree, "") if isinstance(leaf, torch.Tensor)]
    proofs = dict(zip(map(id, tensors), prove_all(tensors), strict=True))
    return _with(tree, lambda tensor: proofs[id(tensor)])


def _with(tree: object, make: Callable[[torch.Tensor], object]) -> object:
    def walk(node: object) -> object:
        if isinstance(node, torch.Tensor):
            return make(node)
        if isinstance(node, dict) and type(node) in (dict, OrderedDict):
            return type(node)((key, walk(value)) for key, value in node.items())
        if type(node) in (list, tuple):
            assert isinstance(node, list | tuple)
            return type(node)(walk(value) for value in node)
        return node

    return walk(tree)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _digest(tensor: torch.Tensor) -> str:
    return digest(as_bytes(tensor).numpy().data) if tensor.numel() else ""


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bits (NaN equals the same NaN)."""
    return prove(left) == prove(right)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in C order on the CPU, as a flat uint8 tensor; a view where that is possible."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
    kind = (tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), *kind)


def _require_bytes(tensor: torch.Tensor, path: str) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UnsupportedState(path, tensor, why="is a tensor subclass, whose bytes alone do not bring it back")
    if tensor.is_meta:
        raise UnsupportedState(path, tensor, why="is on the meta device and has no bytes")
    if tensor.dtype in UNCOPYABLE:
        raise UnsupportedState(path, tensor, why=f"has elements of {tensor.dtype}, which torch cannot copy")
    if (tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested) and not is_made_of_parts(tensor):
        kind = "nested" if tensor.is_nested else str(tensor.qscheme() if tensor.is_quantized else tensor.layout)
        raise UnsupportedState(path, tensor, why=f"is neither dense nor of a kind that can be taken apart ({kind})")


def _part(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    return text.replace("~", "~0").replace("/", "~1")


def _path(component: str, parts: tuple[str, ...]) -> str:
    return ".".join((component, *parts))
