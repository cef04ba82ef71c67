"""Differing: what of two checkpoints is not the same, by what stands in their manifests, indexes and contexts."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from mementum.cli.measuring import Name
from mementum.errors import CheckpointDamaged, UnknownFormat
from mementum.format import index as indexes
from mementum.format import manifest as manifests
from mementum.format import typed_json
from mementum.format.generations import key_of
from mementum.records import Block, DataFile, Entry, Index, StoredFile, StoredTensor, record
from mementum.recover.verify import CONTEXT, INDEX
from mementum.storage.store import Store

PARTS = ("metrics", "versions", "code", "memory", "user", "decision")  # of a manifest, compared by path
LEFT_OUT = frozenset({*PARTS, "files", "format", "digest", "debug_info"})  # the rest of it is compared field by field
LIST_MAX = 16  # values of a list that are told apart; a longer one, such as a generator's state, is one value

How = Literal["equal", "may differ", "differs"]


@record
class Change:
    """A value that is not the same in both. ABSENT stands where one has none."""

    path: str
    first: Any
    second: Any


@record
class TensorChange:
    """A tensor of both that is not equal for certain: `differs` where a block that is all its own does, `may differ`
    where it shares the blocks that differ with others."""

    name: Name
    how: How
    blocks: int
    blocks_differing: int
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def same_form(self) -> bool:
        return self.dtypes[0] == self.dtypes[1] and self.shapes[0] == self.shapes[1]


@record
class Side:
    """What of a checkpoint is compared."""

    entry: Entry
    index: Index
    context: Mapping[str, Any]


@record
class Differences:
    """All of them. `parts` has those of the manifest by part: fields, and each of PARTS."""

    parts: Mapping[str, tuple[Change, ...]]
    context: tuple[Change, ...]
    equal: int
    changed: tuple[TensorChange, ...]
    only_first: tuple[StoredTensor, ...]
    only_second: tuple[StoredTensor, ...]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def side_of(store: Store, entry: Entry) -> Side:
    """What the small files of a checkpoint say. CheckpointDamaged where one is not what the manifest says."""
    found: list[Index] = []
    context: dict[str, Any] = {}
    for file in entry.manifest.files:
        key = key_of(entry.folder, file)
        if INDEX.fullmatch(file.name):
            found.append(indexes.parse(_proved(store, key, file, entry), key))
        elif CONTEXT.fullmatch(file.name):
            context[file.name[: len("context-00000")]] = _read(_proved(store, key, file, entry), key)
    whole = Index(
        rank=0,
        files=tuple(file for one in found for file in one.files),
        tensors=tuple(tensor for one in found for tensor in one.tensors),
        bases=tuple(base for one in found for base in one.bases),
    )
    return Side(entry=entry, index=whole, context=next(iter(context.values())) if len(context) == 1 else context)


def differences(first: Side, second: Side) -> Differences:
    """What is not the same, by digests alone: no data is read."""
    ours, theirs = _fields(first.entry), _fields(second.entry)
    plain = [{name: value for name, value in fields.items() if name not in LEFT_OUT} for fields in (ours, theirs)]
    parts = {"fields": tuple(changes(plain[0], plain[1]))}
    parts |= {name: tuple(changes(ours.get(name, {}), theirs.get(name, {}))) for name in PARTS}
    here, there = (_by_name(side.index) for side in (first, second))
    both = [
        (name, _compared(name, first.index, here[name], second.index, there[name])) for name in here if name in there
    ]
    return Differences(
        parts=parts,
        context=tuple(changes(first.context, second.context)),
        equal=sum(one.how == "equal" for _, one in both),
        changed=tuple(one for _, one in both if one.how != "equal"),
        only_first=tuple(tensor for name, tensor in here.items() if name not in there),
        only_second=tuple(tensor for name, tensor in there.items() if name not in here),
    )


def changes(first: Any, second: Any, path: str = "") -> Iterator[Change]:
    """What is not the same of two values of JSON, by path."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            inner = f"{path}.{name}" if path else str(name)
            yield from changes(first.get(name, ABSENT), second.get(name, ABSENT), inner)
    elif _is_short(first) and _is_short(second) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from changes(one, other, f"{path}[{number}]")
    elif type(first) is not type(second) or first != second:
        yield Change(path=path, first=first, second=second)


def _is_short(value: object) -> bool:
    return isinstance(value, list) and len(value) <= LIST_MAX


def _fields(entry: Entry) -> dict[str, Any]:
    """The manifest as it stands in its file, with what became known since."""
    fields: dict[str, Any] = json.loads(manifests.render(entry.manifest))
    fields["metrics"] = typed_json.encode(dict(entry.metrics))
    fields["health"] = entry.health.value
    return {**fields, "size": entry.manifest.size}


def _proved(store: Store, key: str, file: StoredFile, entry: Entry) -> memoryview:
    data = store.get(key)
    if manifests.digest(data) != file.digest:
        raise CheckpointDamaged(entry.manifest.id, [(key, "it does not match its digest")])
    return data


def _read(data: memoryview, key: str) -> Any:
    """The bare JSON: decoding it may need classes of the training program."""
    try:
        return json.loads(bytes(data))["components"]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise UnknownFormat(f"{key} names no components") from cause


def _by_name(index: Index) -> dict[Name, StoredTensor]:
    return {(tensor.component, tensor.name): tensor for tensor in index.tensors}


def _compared(name: Name, index: Index, tensor: StoredTensor, other: Index, second: StoredTensor) -> TensorChange:
    ours, theirs = _pieces(index, tensor), _pieces(other, second)
    same_form = (tensor.dtype, tensor.shape) == (second.dtype, second.shape)
    how: How = "differs"
    differing = len(set(ours) - set(theirs))
    if same_form and ours == theirs:
        how = "equal"
    elif same_form:
        own = {(begin, size): digest for begin, size, digest in theirs if begin >= 0 and begin + size <= second.size}
        certain = any(own.get((begin, size), digest) != digest for begin, size, digest in ours)
        how = "differs" if certain else "may differ"
    return TensorChange(
        name=name,
        how=how,
        blocks=len(ours),
        blocks_differing=differing,
        dtypes=(tensor.dtype, second.dtype),
        shapes=(tensor.shape, second.shape),
    )


def _pieces(index: Index, tensor: StoredTensor) -> list[tuple[int, int, str]]:
    """The blocks in which a tensor lies: where each begins as seen from the tensor, its raw size and its digest."""
    file = next((file for file in index.files if file.name == tensor.file), None)
    if file is None or not tensor.size:
        return []
    begins = _begins(file)
    found: list[tuple[int, int, str]] = []
    for number in range(max(bisect_right(begins, tensor.offset) - 1, 0), len(file.blocks)):
        block: Block = file.blocks[number]
        if begins[number] >= tensor.offset + tensor.size:
            break
        found.append((begins[number] - tensor.offset, block.raw_size, block.raw_digest))
    return found


def _begins(file: DataFile) -> Sequence[int]:
    return [0, *accumulate(block.raw_size for block in file.blocks)][:-1]
