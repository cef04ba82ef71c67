"""The index: one rank's map from tensors to bytes, with the digests of every block of every data file."""

from __future__ import annotations

import json

from mementum.errors import UnknownFormat
from mementum.format.blocks import MAX_BLOCK
from mementum.format.codec import is_delta
from mementum.format.fields import FORMAT, PLAIN, Fields, read_json, require_known
from mementum.format.generations import key_of
from mementum.format.manifest import folder_of
from mementum.records import Block, DataFile, Index, StoredTensor


def name(rank: int) -> str:
    return f"index-{rank:05d}.json"


def render(index: Index) -> bytes:
    """The index as JSON: one line a tensor and a block, so that a difference can be read."""
    files = ",\n".join(_render_file(file) for file in index.files)
    tensors = ",\n".join(
        _compact(
            {
                "component": tensor.component,
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "file": tensor.file,
                "offset": tensor.offset,
                "size": tensor.size,
            }
        )
        for tensor in index.tensors
    )
    bases = ",\n".join(_render_file(file) for file in index.bases)
    counted = f'"bases": [\n{bases}\n], ' if bases else ""
    refers = bool(bases) or any(file.folder is not None for file in index.files)
    return (
        f'{{"format": {FORMAT if refers else PLAIN}, "rank": {index.rank}, '
        f'"files": [\n{files}\n], {counted}"tensors": [\n{tensors}\n]}}\n'
    ).encode()


def _render_file(file: DataFile) -> str:
    blocks = ",\n".join(
        _compact([block.offset, block.size, block.raw_size, block.codec, block.digest, block.raw_digest])
        if block.codec != "raw"
        else _compact([block.offset, block.size, block.raw_size, block.codec, block.digest])
        for block in file.blocks
    )
    told = "".join(
        f'"{name}": {_compact(value)}, ' for name, value in (("folder", file.folder), ("base", file.base)) if value
    )
    return f'{{"name": {_compact(file.name)}, "size": {file.size}, {told}"blocks": [\n{blocks}\n]}}'


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parse(data: bytes | memoryview, what: str = "index") -> Index:
    """Read an index; UnknownFormat names the field that is not as it should be.

    Holds afterwards: the blocks of a file cover its size without gap, every tensor lies inside its file's raw stream,
    and a file that was coded against a base has one, whole in itself and cut into blocks of the same raw sizes."""
    fields = require_known(read_json(data, what))
    files = tuple(_parse_file(item) for item in fields.objects("files"))
    if len({file.name for file in files}) != len(files):
        raise UnknownFormat(f"{what}.files names a file twice")
    bases = tuple(_parse_file(item) for item in fields.objects("bases")) if "bases" in fields.data else ()
    _require_bases(what, files, bases)
    whole = {file.name: sum(raw_sizes(file)) for file in files}
    tensors: list[StoredTensor] = []
    for item in fields.objects("tensors"):
        tensor = StoredTensor(
            component=item.text("component"),
            name=item.text("name"),
            dtype=item.text("dtype"),
            shape=_shape(item),
            file=item.text("file"),
            offset=item.count("offset"),
            size=item.count("size"),
        )
        if tensor.offset + tensor.size > whole.get(tensor.file, -1):
            raise UnknownFormat(f"{item.path} does not lie inside {tensor.file}")
        tensors.append(tensor)
    return Index(rank=fields.count("rank"), files=files, tensors=tuple(tensors), bases=bases)


def _require_bases(what: str, files: tuple[DataFile, ...], bases: tuple[DataFile, ...]) -> None:
    """UnknownFormat unless what was coded against a base has it, and no base has one itself: there are no chains."""
    by_key = {key_of("", base): base for base in bases}
    if len(by_key) < len(bases):
        raise UnknownFormat(f"{what}.bases names a file twice")
    for base in bases:
        if base.folder is None or base.base is not None or any(is_delta(block.codec) for block in base.blocks):
            raise UnknownFormat(f"{what}.bases: {base.name} is not a whole file of another checkpoint")
    for file in files:
        found = None if file.base is None else by_key.get(file.base)
        if found is None and (file.base is not None or any(is_delta(block.codec) for block in file.blocks)):
            raise UnknownFormat(f"{what}.files: the base of {file.name} is not among the bases")
        if found is not None and raw_sizes(found) != raw_sizes(file):
            raise UnknownFormat(f"{what}.files: {file.name} and its base are not cut into the same blocks")


def raw_sizes(file: DataFile) -> tuple[int, ...]:
    """How a file's raw stream is cut into blocks."""
    return tuple(block.raw_size for block in file.blocks)


def _shape(item: Fields) -> tuple[int, ...]:
    shape = item.items("shape")
    if len(shape) > 64 or not all(type(extent) is int and 0 <= extent < 1 << 62 for extent in shape):
        item.wrong("shape", "a list of extents")
    return tuple(shape)


def _parse_file(item: Fields) -> DataFile:
    blocks: list[Block] = []
    offset = 0
    for number, row in enumerate(item.items("blocks")):
        block = _parse_block(row, f"{item.path}.blocks[{number}]")
        if block.offset != offset or block.raw_size > MAX_BLOCK:
            raise UnknownFormat(f"{item.path}.blocks[{number}] does not follow the block before it, or is too large")
        offset += block.size
        blocks.append(block)
    file = DataFile(
        name=item.text("name"),
        size=item.count("size"),
        blocks=tuple(blocks),
        folder=folder_of(item),
        base=item.text_or_none("base"),
    )
    if offset != file.size:
        raise UnknownFormat(f"{item.path}: the blocks of {file.name} cover {offset} of {file.size} bytes")
    return file


def _parse_block(row: object, path: str) -> Block:
    match row:
        case [int(offset), int(size), int(raw_size), str(codec), str(digest), *rest] if (
            min(offset, size, raw_size) >= 0 and all(isinstance(more, str) for more in rest) and len(rest) <= 1
        ):
            raw_digest = str(rest[0]) if rest else digest
            if codec == "raw" and size != raw_size:
                raise UnknownFormat(f"{path} is raw, and its two sizes differ")
            return Block(offset=offset, size=size, raw_size=raw_size, codec=codec, digest=digest, raw_digest=raw_digest)
    raise UnknownFormat(f"{path} is not a block")
