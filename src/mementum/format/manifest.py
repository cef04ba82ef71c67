"""The manifest: the file whose existence is the commit, made to be read with `jq` and to prove itself.

Its last field is `digest`: the blake3 of the file's own bytes with the 64 characters of the digest as zeros. So
every byte of it counts, whatever fields a later version adds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from mementum.errors import UnknownFormat, UsageError
from mementum.format import typed_json
from mementum.format.fields import FORMAT, PLAIN, Fields, read_json, require_known
from mementum.records import LEVELS, Granularity, Health, Manifest, StoredFile

NAME = "meta.json"
ZEROS = "0" * 64
FILES_MAX = 1_000_000  # more ranks times files than any job has
SIZE_MAX = 64 << 20  # 10,000 ranks with 40 files each; a file that is no manifest must not fill the memory of a reader
READ_MAX = SIZE_MAX + 1  # what a reader asks for: a byte more than it accepts
HEAD = 256  # bytes of a manifest in which its id stands
FOLDER = re.compile(r"step_[0-9]{10,19}(-[0-9]{1,3})?")  # of a checkpoint; no other is ever followed


def digest(data: bytes | memoryview) -> str:
    """blake3 in hex: of small files, where a strong digest costs nothing."""
    return blake3(data).hexdigest()


def has_id(head: bytes | memoryview, id: str) -> bool:
    """Whether a manifest, of which `head` are the first HEAD bytes or more, is that of this checkpoint."""
    return f'"id": {json.dumps(id, ensure_ascii=False)},'.encode() in bytes(head[:HEAD])


def is_plain(head: bytes | memoryview) -> bool:
    """Whether a manifest, of which `head` are the first HEAD bytes or more, says that it names only its own files, and
    that no level of it was dropped."""
    return f'"format": {PLAIN},'.encode() in bytes(head[:HEAD])


def render(manifest: Manifest) -> bytes:
    """The manifest's bytes, digest included. UsageError if they are more than a reader accepts."""
    refers = any(file.folder is not None for file in manifest.files)
    fields: dict[str, Any] = {
        "format": FORMAT if refers or manifest.levels != LEVELS else PLAIN,
        "id": manifest.id,
        **({"generation": manifest.generation} if manifest.generation > 1 else {}),
        "seq": manifest.seq,
        "task": manifest.task,
        "attempt": manifest.attempt,
        "parent": manifest.parent,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "time": manifest.time,
        "reason": manifest.reason,
        "decision": typed_json.encode(dict(manifest.decision)),
        "granularity": int(manifest.granularity),
        **({"levels": list(manifest.levels)} if manifest.levels != LEVELS else {}),
        "health": manifest.health.value,
        "metrics": typed_json.encode(dict(manifest.metrics)),
        "memory": typed_json.encode(dict(manifest.memory)),
        "debug_info": [typed_json.encode(dict(row)) for row in manifest.debug_info],
        "exactness": list(manifest.exactness),
        "files": [_render_file(file) for file in manifest.files],
        "world_size": manifest.world_size,
        "versions": dict(manifest.versions),
        "code": typed_json.encode(dict(manifest.code)),
        "user": typed_json.encode(dict(manifest.user)),
        "digest": ZEROS,
    }
    blank = (json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    if len(blank) > SIZE_MAX:
        raise UsageError(
            f"the manifest of step {manifest.step} would have {len(blank)} bytes, at most {SIZE_MAX} can be read again",
            kept="older checkpoints",
            next_command="keep what is large in the state, not in user fields or metrics",
        )
    return _with_digest(blank)


def _render_file(file: StoredFile) -> dict[str, object]:
    fields: dict[str, object] = {"name": file.name, "size": file.size}
    if file.folder is not None:
        fields["folder"] = file.folder
    if file.digest is not None:
        fields["blake3"] = file.digest
    return fields


def _with_digest(blank: bytes) -> bytes:
    head, _, tail = blank.rpartition(ZEROS.encode())
    return head + digest(blank).encode() + tail


def parse(data: bytes | memoryview, what: str = NAME) -> Manifest:
    """Read and prove a manifest. UnknownFormat says what is wrong: not JSON, changed, or a field; NotReadableHere if it
    is whole and newer. Every format keeps its digest in the same way, so that a changed byte never looks like an
    upgrade."""
    if len(data) > SIZE_MAX:
        raise UnknownFormat(f"{what} has over {SIZE_MAX} bytes, more than any manifest")
    fields = read_json(data, what)
    claimed = fields.text("digest")
    head, found, tail = bytes(data).rpartition(claimed.encode() or ZEROS.encode())
    if len(claimed) != len(ZEROS) or not found or digest(head + ZEROS.encode() + tail) != claimed:
        raise UnknownFormat(f"{what} was changed after it was written: it does not match its own digest")
    require_known(fields)
    if len(fields.items("files")) > FILES_MAX:
        raise UnknownFormat(f"{what} names more than {FILES_MAX} files")
    return Manifest(
        id=fields.text("id"),
        seq=fields.count("seq"),
        task=fields.text("task"),
        attempt=fields.count("attempt"),
        parent=fields.text_or_none("parent"),
        step=fields.count("step"),
        epoch=fields.count("epoch"),
        time=fields.text("time"),
        reason=fields.text("reason"),
        granularity=_granularity(fields),
        health=_health(fields),
        files=tuple(_parse_file(item) for item in fields.objects("files")),
        world_size=fields.count("world_size"),
        decision=_typed(fields, "decision"),
        metrics=_typed(fields, "metrics"),
        memory=_typed(fields, "memory"),
        debug_info=tuple(_decoded(row.data, row.path) for row in fields.objects("debug_info")),
        exactness=fields.texts("exactness"),
        versions=fields.mapping("versions"),
        code=_typed(fields, "code"),
        user=_typed(fields, "user"),
        generation=_generation(fields),
        levels=_levels(fields),
    )


def _parse_file(item: Fields) -> StoredFile:
    name = item.text("name")
    if not name or "/" in name or "\\" in name or "\0" in name or name in {".", ".."}:
        raise UnknownFormat(f"{item.path}.name is not a file name: {name!r}")
    digest, folder = item.text_or_none("blake3"), folder_of(item)
    if folder is not None and digest is not None:
        raise UnknownFormat(f"{item.path}: only files of data are another checkpoint's, and an index proves those")
    return StoredFile(name=name, size=item.count("size"), digest=digest, folder=folder)


def folder_of(item: Fields) -> str | None:
    """The folder of the checkpoint whose file it is, where that is another one. UnknownFormat if that is none of ours:
    nothing outside of the task is ever read, or counted, on the word of a file."""
    folder = item.text_or_none("folder")
    if folder is not None and not FOLDER.fullmatch(folder):
        raise UnknownFormat(f"{item.path}.folder is not the folder of a checkpoint: {folder!r}")
    return folder


def _typed(fields: Fields, name: str) -> Mapping[str, Any]:
    return _decoded(fields.mapping(name), f"{fields.path}.{name}")


def _decoded(data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    value = typed_json.decode(dict(data), path=path)
    if not isinstance(value, dict):
        raise UnknownFormat(f"{path} is not an object")
    return value


def _generation(fields: Fields) -> int:
    if "generation" not in fields.data:
        return 1
    return fields.count("generation") or fields.wrong("generation", "a number from 1")


def _levels(fields: Fields) -> tuple[int, ...]:
    if "levels" not in fields.data:
        return LEVELS
    levels = tuple(fields.items("levels"))
    if any(type(level) is not int for level in levels) or levels != tuple(each for each in LEVELS if each in levels):
        fields.wrong("levels", "some of 0, 1 and 2, in this order")
    return levels


def _granularity(fields: Fields) -> Granularity:
    try:
        return Granularity(fields.count("granularity"))
    except ValueError as cause:
        raise UnknownFormat(f"{fields.path}.granularity is not one that this version knows") from cause


def _health(fields: Fields) -> Health:
    try:
        return Health(fields.text("health"))
    except ValueError as cause:
        raise UnknownFormat(f"{fields.path}.health is not one that this version knows") from cause
