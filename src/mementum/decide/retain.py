"""Retention: which checkpoints stay, each with the reason. It only speaks; `pruning` acts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mementum.decide.ageing import NEVER, Ageing
from mementum.decide.protection import NOTHING, is_clean, is_exact, needed_by, newest_of_their_kind, unforced
from mementum.decide.spacing import ages
from mementum.records import Entry, Verdict, record

TROUBLED_LAST = (
    2  # of states that are not clean: the newest is what a person wants to look at, one more if it is damaged
)
FURTHER_BACK = (
    3  # times as old as the one after it a spread one may be: with three, a trouble seen late is 5 spans back
)
MORE = "-"  # before the name of a metric of which more is better


@record
class Retention:
    """Keep the newest `last` (None: all), and every one whose step is a multiple of `every_steps`. Of older exact clean
    ones `spread` stay too, each up to three times as far back as the one after it, and of all of them the `best` by the
    metric `best_of` (`-name`: more is better; of equal ones the newer; what is no finite number does not count).

    Exact and inexact ones, clean ones and others are counted apart: however many others there are, as many clean exact
    ones stay. Others older than those go.

    Levels of what stays go by `ageing`. Newest is by sequence number, never by step or time. A checkpoint that is known
    to be damaged counts for nothing: it neither takes a place nor is deleted, since a person may still want what can be
    read of it.
    """

    last: int | None
    every_steps: int | None = None
    spread: int = 0
    best: int = 0
    best_of: str = "loss"
    ageing: Ageing = NEVER


def retain(
    entries: Sequence[Entry], retention: Retention, *, waiting: Mapping[str, str] = NOTHING
) -> tuple[Verdict, ...]:
    """A verdict on each entry, newest first.

    Whatever else is asked, what `protection.protected` names stays, and so does every one whose files one that stays
    needs. `waiting`: reasons by id, of those that somebody is not through with."""
    newest_first = sorted(entries, key=lambda entry: entry.order, reverse=True)
    whole = [entry for entry in newest_first if entry.damaged is None]
    needed = {**_best(whole, retention), **_spread(whole, retention), **newest_of_their_kind(whole)}
    ranks: dict[tuple[bool, bool], int] = {}
    verdicts: list[Verdict] = []
    for entry in newest_first:
        forced = unforced(entry, waiting)
        if entry.damaged is None:
            kind = (is_exact(entry), is_clean(entry))
            ranks[kind] = ranks.get(kind, 0) + 1
        if forced is not None:
            verdicts.append(_keep(entry, forced))
            continue
        # Others stand behind the clean exact ones that are newer, not only behind those of their kind.
        newer_clean = ranks.get((True, True), 0)
        verdicts.append(_judge(entry, ranks[kind], newer_clean, retention, needed.get(entry.manifest.id)))
    return _with_needed(verdicts, newest_first)


def _with_needed(verdicts: Sequence[Verdict], entries: Sequence[Entry]) -> tuple[Verdict, ...]:
    held = needed_by(entries, {verdict.id for verdict in verdicts if verdict.keep})
    return tuple(
        verdict if verdict.keep or verdict.id not in held else replace(verdict, keep=True, reason=held[verdict.id])
        for verdict in verdicts
    )


def _judge(entry: Entry, rank: int, newer_clean: int, retention: Retention, needed: str | None) -> Verdict:
    step, clean = entry.manifest.step, is_clean(entry)
    if retention.last is None:
        return _keep(entry, "everything is kept")
    last = max(retention.last, 1)
    if newer_clean <= last and rank <= (last if clean else TROUBLED_LAST):
        return _keep(entry, f"one of the newest {last}" if clean else _troubled("one of", entry))
    if retention.every_steps and step % retention.every_steps == 0:
        return _keep(entry, f"step {step} is a multiple of {retention.every_steps}")
    if needed is not None:
        return _keep(entry, needed)
    older = f"older than the newest {last}"
    if not clean:
        older = _troubled("older than", entry) if newer_clean <= last else f"{entry.health.value}, and {older}"
    return Verdict(id=entry.manifest.id, keep=False, reason=older)


def _troubled(place: str, entry: Entry) -> str:
    return f"{entry.health.value}, and {place} the newest {TROUBLED_LAST} that are not clean"


def _best(whole: Sequence[Entry], retention: Retention) -> dict[str, str]:
    """Of the clean exact ones, which are given newest first: by an accident a run that goes wrong may look better than
    it is."""
    name = retention.best_of.removeprefix(MORE)
    sign = -1 if retention.best_of.startswith(MORE) else 1
    clean = [entry for entry in whole if is_exact(entry) and is_clean(entry)]
    valued = [(value, entry) for entry in clean if (value := value_of(entry, name)) is not None]
    valued.sort(key=lambda pair: sign * pair[0])  # stable: of equal ones the newer comes first
    which = "the best" if retention.best == 1 else f"one of the best {retention.best}"
    return {entry.manifest.id: f"{which} by {name}: {value:.6g}" for value, entry in valued[: retention.best]}


def value_of(entry: Entry, metric: str) -> float | None:
    """What is known of a metric by now, if it is a finite number."""
    value: object = entry.metrics.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return number if math.isfinite(number) else None


def _spread(whole: Sequence[Entry], retention: Retention) -> dict[str, str]:
    """Of the clean exact ones that are older than the newest `last`: again and again the oldest that is at most
    FURTHER_BACK times as far back as the one before, or the next where there is none.

    While a run goes on, all of them get older by as much, so that the ratios between neighbours fall: what is kept is
    within reach of the one after it for ever, until those behind it can do without it or `spread` younger ones stand
    before it. That nothing is looked at but what there is now makes judging twice the same as judging once."""
    clean = [entry for entry in whole if is_exact(entry) and is_clean(entry)]
    if retention.last is None or not retention.spread or len(clean) <= max(retention.last, 1):
        return {}
    back = ages(clean)
    at = max(retention.last, 1) - 1
    found: dict[str, str] = {}
    while len(found) < retention.spread and at + 1 < len(clean):
        reach = FURTHER_BACK * max(back[at], 1)
        beyond = range(at + 1, len(clean))
        at = max((number for number in beyond if back[number] <= reach), default=at + 1)
        reason = f"{back[at]} steps back: of older clean ones {retention.spread} stay, each further back than the last"
        found[clean[at].manifest.id] = reason
    return found


def _keep(entry: Entry, reason: str) -> Verdict:
    return Verdict(id=entry.manifest.id, keep=True, reason=reason)
