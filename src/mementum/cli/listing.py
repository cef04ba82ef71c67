"""Listing: `mementum ls`, the checkpoints of a root as a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mementum.catalog import filters
from mementum.cli.failing import INTEGRITY, NOTHING, OK, warn
from mementum.cli.reading import Held, look
from mementum.cli.text import as_json as rendered
from mementum.cli.text import columns, counted, moment, printable, size
from mementum.format import typed_json
from mementum.format.levels import WEIGHTS, kind_of
from mementum.records import LEVELS, Entry, Granularity, Health, Manifest, Place

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ("task", "step", "id", "when (UTC)", "size", "state", "proof", "reason")
TIERS = "tiers"  # a column before the reason, where any checkpoint has a copy on one
RIGHT = frozenset({"step", "size"})
ID_MIN = 10  # characters: the time in an id, in milliseconds; longer where that leaves two the same
REASON_MIN = 24  # characters; a reason that is folded into fewer cannot be read
GAP = 3  # characters that the table puts between two columns
INDENT = "    "


def ls(root: str, *, task: str | None, as_json: bool, wanted: Sequence[str] = ()) -> int:
    """Print what there is, or what all of the filters in `wanted` mean; the exit code. Warns of manifests that cannot
    be read."""
    chosen = [filters.parse(text) for text in wanted]  # what is written wrongly is told before anything is read
    contents = look(root)
    if task is not None:
        contents = contents.of(task)
    for damage in contents.unreadable:
        warn(f"warning: {damage.key}: {damage.what}")
    if not contents.held and as_json:
        print(rendered([]))
    if contents.held:
        return listed(contents.held, chosen, wanted, as_json=as_json, path=contents.path)
    if contents.nameless:
        return INTEGRITY
    warn(f"{contents.root.name} has {counted(len(contents.homes), 'task')} and no checkpoint yet")
    return NOTHING


def listed(
    every: Sequence[Held],
    chosen: Sequence[filters.Filter],
    wanted: Sequence[str],
    *,
    as_json: bool,
    path: Callable[[Held], str | None],
) -> int:
    """Print those of some checkpoints that all filters mean, the newest first; the exit code."""
    held = newest_first(_chosen(every, chosen, wanted))
    if as_json:
        print(rendered([fields(one, path(one)) for one in held]))
    elif held:
        _print(held)
    if held:
        return OK
    warn(f"none of {counted(len(every), 'checkpoint')} is what the filter asks for")
    return NOTHING


def _chosen(every: Sequence[Held], chosen: Sequence[filters.Filter], wanted: Sequence[str]) -> Sequence[Held]:
    """Those that all filters mean. UsageError where one asks for a metric that no checkpoint has."""
    if not chosen:
        return every
    rows = [filters.row(one.entry, task=one.task, damaged=one.damaged) for one in every]
    metrics = {name for row in rows for name in row.metrics}
    for one, text in zip(chosen, wanted, strict=True):
        filters.require_metrics(one, text, metrics)
    found = zip(every, rows, strict=True)
    return [held for held, row in found if all(filters.matches(one, row) for one in chosen)]


def newest_first(held: Sequence[Held]) -> list[Held]:
    """Task by task, the one that saved last first. Within a task by sequence number: clocks may have been set back."""
    by_task: dict[str, list[Held]] = {}
    for one in held:
        by_task.setdefault(one.task, []).append(one)
    groups = [sorted(group, key=lambda one: one.entry.order, reverse=True) for group in by_task.values()]
    groups.sort(key=lambda group: group[0].entry.manifest.time, reverse=True)
    return [one for group in groups for one in group]


def fields(held: Held, path: str | None) -> dict[str, Any]:
    """A checkpoint for programs: full ids, bytes, times as they stand in the manifest."""
    entry, manifest = held.entry, held.entry.manifest
    return {
        "task": held.task,
        "home": held.home,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "id": manifest.id,
        "seq": manifest.seq,
        "attempt": manifest.attempt,
        "parent": manifest.parent,
        "time": manifest.time,
        "size": manifest.size,
        "granularity": kind_of(manifest.granularity, manifest.levels),
        "health": entry.health.value,
        "health_why": entry.judged_why,
        "pinned": entry.pinned,
        "pinned_by": sorted(entry.pinned_by),
        "tiers": [place_fields(place) for place in entry.places],
        "restore_s": entry.restore_s,
        "exactness": list(manifest.exactness),
        "damaged": held.damaged,
        "verified": entry.verified,
        "reason": manifest.reason,
        "metrics": typed_json.encode(dict(entry.metrics)),
        "path": path,
    }


def place_fields(place: Place) -> dict[str, Any]:
    """A copy on a tier, for programs."""
    return {
        "tier": place.tier,
        "url": place.url,
        "time": place.time,
        "generation": place.generation,
        "size": place.size,
        "levels": list(place.levels),
        "damaged": place.damaged,
        "verified": place.verified,
    }


def tiers_of(entry: Entry) -> str:
    """The tiers that have a copy; of one that has not all levels, which ones, and of a damaged one that it is."""
    return ", ".join(map(_tier_of, entry.places))


def _tier_of(place: Place) -> str:
    said = [] if place.levels == LEVELS else [f"level {', '.join(map(str, place.levels))}"]
    said += [] if place.damaged is None else ["damaged"]
    return f"{place.tier} ({', '.join(said)})" if said else place.tier


def state(manifest: Manifest) -> str:
    """Whether it resumes bit for bit, else what it holds; and its health where that is not clean."""
    word = kind_of(manifest.granularity, manifest.levels).replace("_", " ")
    if WEIGHTS not in manifest.levels:
        word = f"{word} only"
    if manifest.granularity is Granularity.FULL:
        word = "not exact" if manifest.exactness else "exact"
    return word if manifest.health is Health.CLEAN else f"{word}, {manifest.health.value}"


def standing(entry: Entry) -> str:
    """The same by all that became known after it was saved, and whether it is pinned."""
    words = state(replace(entry.manifest, health=entry.health))
    return words if entry.pinned is None else f"{words}, pinned"


def proof(held: Held) -> str:
    if held.damaged is not None:
        return "damaged"
    return "-" if held.entry.verified is None else f"verified {held.entry.verified[:10]}"


def id_width(ids: Sequence[str]) -> int:
    """How many characters tell the ids apart."""
    width = ID_MIN
    while len({one[:width] for one in ids}) < len(set(ids)):
        width += 1
    return width


def _print(held: Sequence[Held]) -> None:
    width = id_width([one.id for one in held])
    head = (*HEAD[:-1], TIERS, HEAD[-1]) if any(one.entry.places for one in held) else HEAD
    rows = [_row(one, width, tiers=TIERS in head) for one in held]
    if sys.stdout.isatty():
        from rich.console import Console

        draw(Console(), rows, head)
    else:
        print("\n".join(columns(head, rows, right=RIGHT)))
    print(_totals(held))


def _row(held: Held, id_width: int, *, tiers: bool) -> tuple[str, ...]:
    manifest = held.entry.manifest
    cells = (
        held.task,
        str(manifest.step),
        manifest.id[:id_width],
        moment(manifest.time),
        size(manifest.size),
        standing(held.entry),
        proof(held),
        *((tiers_of(held.entry) or "-",) if tiers else ()),
        manifest.reason,
    )
    return tuple(printable(cell) for cell in cells)


def draw(console: Console, rows: Sequence[Sequence[str]], head: Sequence[str] = HEAD) -> None:
    """A table on a terminal, or two lines a checkpoint where the terminal is too narrow for one."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    fixed = sum(max(cell_len(row[place]) for row in (head, *rows)) + GAP for place in range(len(head) - 1))
    if console.width < fixed + REASON_MIN:
        for task, step, id, *facts in rows:
            console.print(Text(f"{task}  step {step}  {id}"), soft_wrap=True)
            about = ", ".join(fact for fact in facts if fact != "-")
            console.print(Text(INDENT + about, style="dim"), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in RIGHT else "left", no_wrap=name != "reason", overflow="fold")
    for row in rows:
        colour = {"damaged": "red", "-": ""}.get(row[6], "green")
        # Text, never str: what a name has in square brackets is not markup.
        cells = [Text(cell, style=colour if place == 6 else "") for place, cell in enumerate(row)]
        table.add_row(*cells)
    console.print(table)


def _totals(held: Sequence[Held]) -> str:
    checkpoints = counted(len(held), "checkpoint")
    of = counted(len({one.task for one in held}), "task")
    counts = {
        "damaged": sum(one.damaged is not None for one in held),
        "suspect": sum(one.entry.health is Health.SUSPECT for one in held),
        "diverged": sum(one.entry.health is Health.DIVERGED for one in held),
        "pinned": sum(one.entry.pinned is not None for one in held),
    }
    said = "".join(f", {count} {word}" for word, count in counts.items() if count)
    return f"{checkpoints} of {of}, {size(sum(one.entry.manifest.size for one in held))}{said}"
