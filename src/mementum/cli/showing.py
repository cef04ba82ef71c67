"""Showing: `mementum show`, all that is known of one checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from mementum.cli.failing import INTEGRITY, OK, warn
from mementum.cli.listing import place_fields, standing
from mementum.cli.reading import Contents, Held, address_in, find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, moment, printable, size
from mementum.errors import MementumError, UnknownFormat
from mementum.format import index, typed_json
from mementum.format import manifest as manifests
from mementum.format.generations import key_of
from mementum.records import LEVELS, Damage, Entry, Place, StoredFile, StoredTensor, record
from mementum.recover.verify import CONTEXT, INDEX
from mementum.rooting import part_of
from mementum.storage.store import Store

INDENT = "  "


@record
class Component:
    """What a checkpoint holds of one component, over all ranks. `kind` is None where no context names it."""

    name: str
    kind: str | None
    tensors: int
    elements: int
    size: int


@record
class Holdings:
    """What index and context say, and what of them cannot be read."""

    components: tuple[Component, ...]
    damage: tuple[Damage, ...]


def show(root: str, address: str | None, *, as_json: bool) -> int:
    """Print one checkpoint; the exit code."""
    contents = look(root)
    for damage in contents.nameless:
        warn(f"warning: {damage.key}: {damage.what}")
    held = find(contents, address_in(contents, address))
    require_readable(held)
    store = part_of(contents.root, held.home)
    holdings = _holdings(store, held)
    if as_json:
        print(rendered(_fields(contents, held, holdings)))
    else:
        print("\n".join(printable(line) for line in _lines(contents, held, holdings)))
    return INTEGRITY if holdings.damage else OK


def _holdings(store: Store, held: Held) -> Holdings:
    kinds: dict[str, str] = {}
    tensors: list[StoredTensor] = []
    damage: list[Damage] = []
    for file in held.entry.manifest.files:
        if file.digest is None:
            continue
        try:
            data = _proved(store, key_of(held.entry.folder, file), file)
            if INDEX.fullmatch(file.name):
                tensors += index.parse(data, file.name).tensors
            elif CONTEXT.fullmatch(file.name):
                kinds |= _kinds(data, file.name)
        except MementumError as error:
            damage.append(Damage(key=f"{held.place}/{file.name}", what=error.message))
    names = dict.fromkeys((*kinds, *(tensor.component for tensor in tensors)))
    components = tuple(_component(name, kinds.get(name), tensors) for name in names)
    return Holdings(components=components, damage=tuple(damage))


def _proved(store: Store, key: str, file: StoredFile) -> memoryview:
    data = store.get(key)
    if manifests.digest(data) != file.digest:
        raise UnknownFormat("it does not match its digest")
    return data


def _kinds(data: memoryview, what: str) -> dict[str, str]:
    """The kinds of components by name, from the bare JSON: decoding a whole context may need torch."""
    try:
        components: Mapping[str, Any] = json.loads(bytes(data))["components"]
        return {str(name): str(component["kind"]) for name, component in components.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise UnknownFormat(f"{what} names no components") from cause


def _component(name: str, kind: str | None, tensors: list[StoredTensor]) -> Component:
    own = [tensor for tensor in tensors if tensor.component == name]
    return Component(
        name=name,
        kind=kind,
        tensors=len(own),
        elements=sum(math.prod(tensor.shape) for tensor in own),
        size=sum(tensor.size for tensor in own),
    )


def _fields(contents: Contents, held: Held, holdings: Holdings) -> dict[str, Any]:
    """The manifest as it stands in its file, with late metrics, and what is known besides."""
    manifest: dict[str, Any] = json.loads(manifests.render(held.entry.manifest))
    return {
        **manifest,
        "metrics": typed_json.encode(dict(held.entry.metrics)),
        "path": contents.path(held),
        "size": held.entry.manifest.size,
        "components": [
            {
                "name": part.name,
                "kind": part.kind,
                "tensors": part.tensors,
                "elements": part.elements,
                "size": part.size,
            }
            for part in holdings.components
        ],
        "health": held.entry.health.value,
        "health_why": held.entry.judged_why,
        "pinned": held.entry.pinned,
        "pinned_by": sorted(held.entry.pinned_by),
        "tiers": [place_fields(place) for place in held.entry.places],
        "restore_s": held.entry.restore_s,
        "damaged": held.damaged,
        "verified": held.entry.verified,
        "damage": [{"key": damage.key, "what": damage.what} for damage in holdings.damage],
    }


def _lines(contents: Contents, held: Held, holdings: Holdings) -> Iterator[str]:
    manifest = held.entry.manifest
    facts = {
        "task": f"{held.task} (attempt {manifest.attempt}, save {manifest.seq})",
        "step": f"{manifest.step} (epoch {manifest.epoch})",
        "when": f"{moment(manifest.time)} UTC",
        "reason": manifest.reason,
        "state": standing(held.entry),
        **_judged(held.entry),
        "proof": _proof(held),
        "parent": manifest.parent or "none: it began from nothing",
        "ranks": str(manifest.world_size),
        "size": f"{size(manifest.size)} in {counted(len(manifest.files), 'file')}",
        "path": contents.path(held),
        **{f"tier {place.tier}": _copy(place) for place in held.entry.places},
    }
    yield f"checkpoint {manifest.id}"
    yield from _pairs(facts)
    yield from (f"{INDENT}not exact: {reason}" for reason in manifest.exactness)
    for title, values in (
        ("decision", manifest.decision),
        ("metrics", held.entry.metrics),
        ("versions", manifest.versions),
        ("code", manifest.code),
        ("memory", {name: _memory(name, value) for name, value in manifest.memory.items()}),
        ("user", manifest.user),
    ):
        if values:
            yield title
            yield from _pairs(values)
    yield "files"
    rows = [(key_of("", file).lstrip("/"), size(file.size)) for file in manifest.files]
    yield from (INDENT + line for line in columns(("name", "size"), rows, right=frozenset({"size"})))
    yield "holds"
    yield from (INDENT + line for line in _table(holdings))
    if holdings.damage:
        yield "damage"
        yield from (f"{INDENT}{damage.key}: {damage.what}" for damage in holdings.damage)


def _copy(place: Place) -> str:
    levels = "" if place.levels == LEVELS else f", level {', '.join(map(str, place.levels))} only"
    damaged = "" if place.damaged is None else f"; damaged: {place.damaged}"
    return f"{size(place.size)} since {moment(place.time)} UTC{levels} ({place.url}){damaged}"


def _judged(entry: Entry) -> dict[str, str]:
    """What became known after it was saved: of its health, and why it must stay."""
    found: dict[str, str] = {}
    if entry.judged is not None:
        saved = "" if entry.health is entry.manifest.health else f" (it was saved as {entry.manifest.health.value})"
        found["health"] = f"{entry.health.value}: {entry.judged_why}{saved}"
    if entry.pinned is not None:
        found["pinned"] = entry.pinned
        others = sorted(one for one in entry.pinned_by if one not in entry.pinned)
        found |= {"also pinned by": ", ".join(others)} if others else {}
    return found


def _proof(held: Held) -> str:
    verified = held.entry.verified
    if held.damaged is not None:
        before = "" if verified is None else f" (it was whole at {moment(verified)} UTC)"
        return f"damaged: {held.damaged}{before}"
    return "not verified since it was written" if verified is None else f"verified {moment(verified)} UTC"


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    width = max(len(str(name)) for name in values)
    for name, value in values.items():
        yield f"{INDENT}{name!s:<{width}}  {value if isinstance(value, str) else _word(value)}"


def _word(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _bytes(value: object) -> str:
    return size(value) if type(value) is int and value >= 0 else repr(value)


def _memory(name: str, value: object) -> str:
    return f"{value} %" if name.endswith("_percent") else _bytes(value)


def _table(holdings: Holdings) -> list[str]:
    rows = [
        (part.name, part.kind or "unknown", str(part.tensors), f"{part.elements:,}", size(part.size))
        for part in holdings.components
    ]
    total = (
        "total",
        "",
        str(sum(part.tensors for part in holdings.components)),
        f"{sum(part.elements for part in holdings.components):,}",
        size(sum(part.size for part in holdings.components)),
    )
    head = ("component", "kind", "tensors", "elements", "size")
    return columns(head, [*rows, total], right=frozenset({"tensors", "elements", "size"}))
