"""The head of a slot: all that a later process needs to load its snapshot, or to make a checkpoint of it.

Three parts: a line of JSON with what a manifest will say, a line of JSON with the plan of the files, and the context's
bytes. The slot itself proves them with a digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mementum.errors import UnknownFormat
from mementum.execute.plan import FileLayout, Placed
from mementum.format import index as indexes
from mementum.format import typed_json
from mementum.format.blocks import Stretch
from mementum.format.fields import Fields, read_json
from mementum.format.weights import Laid
from mementum.records import DataFile, Granularity, Health, Index, Reach, Save, StoredTensor, record

FORMAT = 1  # of the head; a head of another one is left alone


@record
class Doubt:
    """What was known of the run's health when the slot was sealed, where that was not clean: of this snapshot, and of
    those before it from step `onset` on."""

    health: Health
    onset: int
    why: str


@record
class Told:
    """What is known of a snapshot besides its files and its context."""

    task: str
    id: str
    seq: int
    attempt: int
    claim: str  # a digest of its claim: another folder of the same name has other ones
    parent: str | None
    step: int
    epoch: int
    time: str
    save: Save
    debug_info: tuple[Mapping[str, Any], ...] = ()
    metrics: Mapping[str, float]
    exactness: tuple[str, ...] = ()
    versions: Mapping[str, str]
    code: Mapping[str, Any]
    user: Mapping[str, Any]
    doubt: Doubt | None = None


@record
class Still:
    """A file of frozen tensors that lies durable in an earlier checkpoint's folder."""

    folder: str
    file: DataFile
    tensors: tuple[StoredTensor, ...]


@record
class Headed:
    """A head that was read. `stills`: where the frozen files are, by name."""

    told: Told
    layouts: tuple[FileLayout, ...]
    stills: Mapping[str, Still]
    context: bytes


def render(told: Told, planned: bytes, context: bytes) -> bytes:
    """The head's bytes; `planned` is what `render_plan` gave."""
    fields = {
        "format": FORMAT,
        "task": told.task,
        "id": told.id,
        "seq": told.seq,
        "attempt": told.attempt,
        "claim": told.claim,
        "parent": told.parent,
        "step": told.step,
        "epoch": told.epoch,
        "time": told.time,
        "reason": told.save.reason,
        "granularity": int(told.save.granularity),
        "reach": int(told.save.reach),
        "numbers": dict(told.save.numbers),
        "cause": told.save.cause,
        "debug_info": [dict(row) for row in told.debug_info],
        "metrics": dict(told.metrics),
        "exactness": list(told.exactness),
        "versions": dict(told.versions),
        "code": dict(told.code),
        "user": dict(told.user),
    }
    if told.doubt is not None:
        fields["doubt"] = [told.doubt.health.value, told.doubt.onset, told.doubt.why]
    return b"\n".join((typed_json.dumps(fields), planned, context))


def render_plan(layouts: Sequence[FileLayout], stills: Mapping[str, Still]) -> bytes:
    """The plan of the files, which stays the same from save to save."""
    files = [
        {
            "name": layout.name,
            "header": len(layout.header),
            "raw_size": layout.raw_size,
            "codec": layout.codec,
            "frozen": layout.frozen,
            "stretches": [[part.offset, part.size, part.width] for part in layout.stretches],
            "tensors": [_row(placed) for placed in layout.placed],
            "still": _still(stills[layout.name]) if layout.frozen else None,
        }
        for layout in layouts
    ]
    return json.dumps(files, separators=(",", ":")).encode()


def _row(placed: Placed) -> list[object]:
    laid = placed.laid
    return [placed.component, laid.name, laid.dtype, list(laid.shape), laid.itemsize, laid.offset, laid.size]


def _still(still: Still) -> dict[str, str]:
    proof = indexes.render(Index(rank=0, files=(still.file,), tensors=still.tensors))
    return {"folder": still.folder, "index": proof.decode()}


def parse(head: bytes) -> Headed:
    """Read a head whose digest was found right. UnknownFormat if it is of another version, or not one."""
    first, _, rest = head.partition(b"\n")
    second, _, context = rest.partition(b"\n")
    fields = typed_json.loads(first)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise UnknownFormat("the slot was written by another version")
    try:
        told = _told(fields)
        files = tuple(read_json(b'{"files":' + second + b"}", "slot").objects("files"))
        layouts = tuple(_layout(item) for item in files)
        stills = {item.text("name"): _read_still(item) for item in files if item.data.get("still") is not None}
    except (KeyError, TypeError, ValueError) as cause:
        raise UnknownFormat(f"the slot's head lacks something: {cause}") from cause
    return Headed(told=told, layouts=layouts, stills=stills, context=context)


def _told(fields: Mapping[str, Any]) -> Told:
    save = Save(
        reason=fields["reason"],
        granularity=Granularity(fields["granularity"]),
        reach=Reach(fields["reach"]),
        numbers=fields["numbers"],
        **({"cause": fields["cause"]} if "cause" in fields else {}),  # not in slots of an earlier version
    )
    doubt = None
    if "doubt" in fields:
        health, onset, why = fields["doubt"]
        doubt = Doubt(health=Health(health), onset=onset, why=why)
    return Told(
        doubt=doubt,
        task=fields["task"],
        id=fields["id"],
        seq=fields["seq"],
        attempt=fields["attempt"],
        claim=fields["claim"],
        parent=fields["parent"],
        step=fields["step"],
        epoch=fields["epoch"],
        time=fields["time"],
        save=save,
        debug_info=tuple(fields["debug_info"]),
        metrics=fields["metrics"],
        exactness=tuple(fields["exactness"]),
        versions=fields["versions"],
        code=fields["code"],
        user=fields["user"],
    )


def _layout(item: Fields) -> FileLayout:
    placed = tuple(
        Placed(
            component=component,
            laid=Laid(name=name, dtype=dtype, shape=tuple(shape), itemsize=itemsize, offset=offset, size=size),
        )
        for component, name, dtype, shape, itemsize, offset, size in item.items("tensors")
    )
    return FileLayout(
        name=item.text("name"),
        header=bytes(item.count("header")),  # its bytes stand at the beginning of the raw stream
        placed=placed,
        stretches=tuple(Stretch(offset=at, size=size, width=width) for at, size, width in item.items("stretches")),
        codec=item.text("codec"),
        raw_size=item.count("raw_size"),
        frozen=bool(item.data["frozen"]),
    )


def _read_still(item: Fields) -> Still:
    still = item.data["still"]
    proof = indexes.parse(still["index"].encode(), "slot.still")
    return Still(folder=still["folder"], file=proof.files[0], tensors=proof.tensors)
