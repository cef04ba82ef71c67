"""Lineage: the checkpoints of the branch that a run is on, among those of branches that it has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mementum.records import Entry, Health


def lineage(entries: Sequence[Entry], newest_id: str) -> tuple[Entry, ...]:
    """The checkpoint `newest_id` and those that it comes from, newest first.

    Each names its parent. Where that was removed, the line goes on from the newest clean one that is older than the
    parent, as ids tell, and of no later step than the child: a state comes from none that had trained for longer. So it
    goes on too if `newest_id` itself is a snapshot in memory, or was removed. What was removed cannot be asked where it
    came from, and the branch that a rollback has left is as old as it. The states of that branch are not clean, and are
    passed by here; a suspect one of the own branch is as well, which costs nothing: no run goes back to it.
    """
    by_id: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.order):
        by_id.setdefault(entry.manifest.id, entry)  # of copies of one checkpoint, which share its id, the first
    line: list[Entry] = []
    at = by_id.get(newest_id) or _before(by_id, newest_id, None)
    while at is not None:
        del by_id[at.manifest.id]  # no checkpoint comes from itself, whatever a manifest says
        line.append(at)
        parent = at.manifest.parent
        at = None if parent is None else by_id.get(parent) or _before(by_id, parent, at)
    return tuple(line)


def with_siblings(
    line: Sequence[Entry], entries: Iterable[Entry], left: Iterable[tuple[int, int]]
) -> tuple[Entry, ...]:
    """`line`, and what the same attempts have saved between its checkpoints, newest step first, each id once.

    A snapshot that lay in memory and was written later than its successor is nobody's parent, and yet a state of this
    branch. `left`: of every rollback the newest sequence number when it was decided, and the step that it went back to;
    what was saved by then of later steps is of a branch that was left."""
    known = {entry.manifest.id: entry for entry in line}
    behind = tuple(left)
    newest: dict[int, list[tuple[int, int]]] = {}
    for entry in line:
        newest.setdefault(entry.manifest.attempt, []).append((entry.manifest.seq, entry.manifest.step))
    for entry in entries:
        seq, step = entry.manifest.seq, entry.manifest.step
        followed = any(seq < one and step < at for one, at in newest.get(entry.manifest.attempt, ()))
        if followed and not any(seq <= last and step > back_to for last, back_to in behind):
            known.setdefault(entry.manifest.id, entry)
    return tuple(sorted(known.values(), key=lambda entry: (entry.manifest.step, entry.order), reverse=True))


def _before(by_id: dict[str, Entry], id: str, child: Entry | None) -> Entry | None:
    older = [
        entry
        for entry in by_id.values()
        if entry.manifest.id < id
        and entry.health is Health.CLEAN
        and (child is None or (entry.order < child.order and entry.manifest.step <= child.manifest.step))
    ]
    return max(older, key=lambda entry: entry.order, default=None)
