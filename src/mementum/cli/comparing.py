"""Comparing: `mementum diff`, what of two checkpoints is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.cli.differing import ABSENT, Change, Differences, TensorChange, differences, side_of
from mementum.cli.failing import OK, warn
from mementum.cli.measuring import Apart, Name, apart, tensors_of
from mementum.cli.reading import Contents, Held, address_in, find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, moment, printable
from mementum.records import StoredTensor
from mementum.rooting import part_of

INDENT = "  "
SHOWN_MAX = 40  # rows of a part of the answer; all of them stand in the JSON
VALUE_MAX = 60  # characters of a value
HEAD = ("tensor", "how", "blocks", "form")
DEEP_HEAD = ("tensor", "changed", "largest difference", "relative", "form")
DEEP_RIGHT = frozenset({"changed", "largest difference", "relative"})


def diff(root: str, first: str, second: str, *, deep: bool, as_json: bool) -> int:
    """Print what is not the same; the exit code."""
    contents = look(root)
    for damage in contents.nameless:
        warn(f"warning: {damage.key}: {damage.what}")
    ours, theirs = (_held(contents, address) for address in (first, second))
    sides = [side_of(part_of(contents.root, one.home), one.entry) for one in (ours, theirs)]
    found = differences(sides[0], sides[1])
    measured = None
    if deep:
        wanted = {change.name for change in found.changed if change.same_form}
        streams = [
            tensors_of(part_of(contents.root, one.home), one.entry.folder, side.index, wanted, id=one.id)
            for one, side in zip((ours, theirs), sides, strict=True)
        ]
        measured = _measured(streams[0], streams[1], {change.name: change.dtypes[0] for change in found.changed})
        found = _settled(found, measured)
    if as_json:
        print(rendered(_fields(contents, ours, theirs, found, measured)))
    else:
        print("\n".join(printable(line) for line in _lines(ours, theirs, found, measured)))
    return OK


def _held(contents: Contents, address: str) -> Held:
    held = find(contents, address_in(contents, address))
    require_readable(held)
    return held


def _measured(
    first: Iterator[tuple[Name, memoryview]], second: Iterator[tuple[Name, memoryview]], dtypes: Mapping[Name, str]
) -> dict[Name, Apart]:
    """How far tensors of the same names are apart. Where both checkpoints lay them out alike, one of each is held."""
    found: dict[Name, Apart] = {}
    waiting: dict[Name, memoryview] = {}
    for name, raw in first:
        while name not in waiting:
            other, theirs = next(second)
            waiting[other] = theirs
        found[name] = apart(dtypes[name], raw, waiting.pop(name))
    return found


def _settled(found: Differences, measured: Mapping[Name, Apart]) -> Differences:
    """What may differ does or does not, now that the numbers were read."""
    same = {name for name, one in measured.items() if not one.changed}
    changed = tuple(
        replace(one, how="differs") if one.name in measured else one for one in found.changed if one.name not in same
    )
    return replace(found, equal=found.equal + len(found.changed) - len(changed), changed=changed)


def _lines(ours: Held, theirs: Held, found: Differences, measured: Mapping[Name, Apart] | None) -> Iterator[str]:
    for letter, held in (("a", ours), ("b", theirs)):
        manifest = held.entry.manifest
        saved = f"saved {moment(manifest.time)} UTC"
        yield f"{letter}  checkpoint {manifest.id} of step {manifest.step} ({held.task}), {saved}"
    for name, some in found.parts.items():
        yield from _changes(name, some)
    yield from _tensors(found, measured)
    yield from _changes("context", found.context)


def _changes(title: str, some: Sequence[Change]) -> Iterator[str]:
    if not some:
        yield f"{title}: the same"
        return
    yield title
    rows = [(one.path, _value(one.first), _value(one.second)) for one in some[:SHOWN_MAX]]
    yield from (INDENT + line for line in columns(("", "a", "b"), rows)[1:])
    yield from _more(len(some))


def _tensors(found: Differences, measured: Mapping[Name, Apart] | None) -> Iterator[str]:
    counts = {how: sum(one.how == how for one in found.changed) for how in ("differs", "may differ")}
    said = [f"{found.equal} equal", f"{counts['differs']} {'differs' if counts['differs'] == 1 else 'differ'}"]
    said += [f"{counts['may differ']} may differ"] if counts["may differ"] else []
    said += [f"{len(found.only_first)} only in a"] if found.only_first else []
    said += [f"{len(found.only_second)} only in b"] if found.only_second else []
    yield f"tensors: {', '.join(said)}"
    if found.changed and measured is None:
        rows = [
            ("/".join(one.name), one.how, f"{one.blocks_differing} of {one.blocks}", _form(one))
            for one in found.changed[:SHOWN_MAX]
        ]
        yield from (INDENT + line for line in columns(HEAD, rows))
    elif found.changed and measured is not None:
        ordered = sorted(found.changed, key=lambda one: _rank(measured.get(one.name)), reverse=True)
        deep = [("/".join(one.name), *_gap(measured.get(one.name)), _form(one)) for one in ordered[:SHOWN_MAX]]
        yield from (INDENT + line for line in columns(DEEP_HEAD, deep, right=DEEP_RIGHT))
    yield from _more(len(found.changed))
    for letter, some in (("a", found.only_first), ("b", found.only_second)):
        yield from (f"{INDENT}only in {letter}: {one.component}/{one.name}" for one in some[:SHOWN_MAX])
        yield from _more(len(some))
    if counts["may differ"] and measured is None:
        yield f"{INDENT}those that may differ share their blocks with others; --deep reads and compares the numbers"


def _rank(one: Apart | None) -> tuple[float, float]:
    """The farthest apart first; before them those of which nothing can be measured."""
    return (float("inf"), 0.0) if one is None or one.relative is None else (one.relative, one.most or 0.0)


def _gap(one: Apart | None) -> tuple[str, str, str]:
    if one is None:
        return "-", "-", "-"
    unlike = f" ({one.unlike} not finite)" if one.unlike else ""
    changed = f"{one.changed} of {one.elements}"
    if one.most is None or one.relative is None:
        return changed, "-", "-"
    return changed, f"{one.most:.3g}{unlike}", f"{one.relative:.3g}"


def _form(one: TensorChange) -> str:
    forms = [f"{dtype} {list(shape)}" for dtype, shape in zip(one.dtypes, one.shapes, strict=True)]
    return forms[0] if forms[0] == forms[1] else f"{forms[0]} -> {forms[1]}"


def _more(count: int) -> Iterator[str]:
    if count > SHOWN_MAX:
        yield f"{INDENT}and {count - SHOWN_MAX} more: --json has all of them"


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else repr(value)
    return text if len(text) <= VALUE_MAX else f"{text[: VALUE_MAX - 1]}…"


def _fields(
    contents: Contents, ours: Held, theirs: Held, found: Differences, measured: Mapping[Name, Apart] | None
) -> dict[str, Any]:
    return {
        "a": _side(contents, ours),
        "b": _side(contents, theirs),
        "deep": measured is not None,
        **{name: [_change(one) for one in some] for name, some in found.parts.items()},
        "tensors": {
            "equal": found.equal,
            "changed": [_tensor_change(one, measured) for one in found.changed],
            "only_a": [_tensor(one) for one in found.only_first],
            "only_b": [_tensor(one) for one in found.only_second],
        },
        "context": [_change(one) for one in found.context],
    }


def _side(contents: Contents, held: Held) -> dict[str, Any]:
    step = held.entry.manifest.step
    return {"task": held.task, "checkpoint": held.id, "step": step, "path": contents.path(held)}


def _change(one: Change) -> dict[str, Any]:
    """A side that has no such value lacks its letter."""
    sides = {"a": one.first, "b": one.second}
    return {"path": one.path, **{letter: value for letter, value in sides.items() if value is not ABSENT}}


def _tensor(one: StoredTensor) -> dict[str, Any]:
    return {"component": one.component, "name": one.name, "dtype": one.dtype, "shape": list(one.shape)}


def _tensor_change(one: TensorChange, measured: Mapping[Name, Apart] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "component": one.name[0],
        "name": one.name[1],
        "how": one.how,
        "blocks": one.blocks,
        "blocks_differing": one.blocks_differing,
        "dtypes": list(one.dtypes),
        "shapes": [list(shape) for shape in one.shapes],
    }
    gap = None if measured is None else measured.get(one.name)
    if gap is not None:
        relative = gap.relative if gap.relative is None or gap.relative < float("inf") else None
        fields |= {
            "elements": gap.elements,
            "changed": gap.changed,
            "largest_difference": gap.most,
            "relative": relative,
            "unlike": gap.unlike,
        }
    return fields
