"""Retention: which checkpoints stay, each with the reason. It only speaks; `pruning` acts."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.records import Entry, Granularity, Verdict, record


@record
class Retention:
    """Keep the newest `last` (None: all), and every one whose step is a multiple of `every_steps`. Exact ones and
    others are counted apart: however many others there are, as many exact ones stay. Others older than those go.

    Newest is by sequence number, never by step or time. A checkpoint that is known to be damaged counts for
    nothing: it neither takes a place nor is deleted, since a person may still want what can be read of it.
    """

    last: int | None
    every_steps: int | None = None


def retain(entries: Sequence[Entry], retention: Retention) -> tuple[Verdict, ...]:
    """A verdict on each entry, newest first. The newest whole exact one is always kept."""
    verdicts: list[Verdict] = []
    exact = others = 0  # whole ones seen so far
    for entry in sorted(entries, key=lambda entry: entry.order, reverse=True):
        manifest = entry.manifest
        if entry.damaged is not None:
            verdicts.append(Verdict(id=manifest.id, keep=True, reason=f"damaged ({entry.damaged}): left for a person"))
            continue
        if manifest.granularity is Granularity.FULL:
            exact += 1
            rank = exact
        else:
            others += 1
            rank = max(others, exact)
        keep, reason = _judge(entry, rank, retention)
        verdicts.append(Verdict(id=manifest.id, keep=keep, reason=reason))
    return tuple(verdicts)


def _judge(entry: Entry, rank: int, retention: Retention) -> tuple[bool, str]:
    manifest = entry.manifest
    if retention.last is None:
        return True, "everything is kept"
    if rank <= max(retention.last, 1):
        return True, f"one of the newest {max(retention.last, 1)}"
    if retention.every_steps and manifest.step % retention.every_steps == 0:
        return True, f"step {manifest.step} is a multiple of {retention.every_steps}"
    return False, f"older than the newest {max(retention.last, 1)}"
