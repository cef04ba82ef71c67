"""Retention: which checkpoints stay, each with the reason. It only speaks; `pruning` acts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mementum.records import Entry, Granularity, Health, Verdict, record

TROUBLED_LAST = (
    2  # of states that are not clean: the newest is what a person wants to look at, one more if it is damaged
)
FURTHER_BACK = (
    3  # times as old as the one after it a spread one may be: with three, a trouble seen late is 5 spans back
)


@record
class Retention:
    """Keep the newest `last` (None: all), and every one whose step is a multiple of `every_steps`. Of older exact clean
    ones `spread` stay too, each up to three times as far back as the one after it.

    Exact and inexact ones, clean ones and others are counted apart: however many others there are, as many clean exact
    ones stay. Others older than those go.

    Newest is by sequence number, never by step or time. A checkpoint that is known to be damaged counts for
    nothing: it neither takes a place nor is deleted, since a person may still want what can be read of it.
    """

    last: int | None
    every_steps: int | None = None
    spread: int = 0


def retain(entries: Sequence[Entry], retention: Retention) -> tuple[Verdict, ...]:
    """A verdict on each entry, newest first.

    Whatever else is asked, these stay: what is pinned or damaged, and of the whole exact ones the newest, the newest
    clean one, and the newest of all and of the clean ones of which every byte was read and found whole."""
    newest_first = sorted(entries, key=lambda entry: entry.order, reverse=True)
    whole = [entry for entry in newest_first if entry.damaged is None]
    needed = {**_spread(whole, retention), **_never_removed(whole)}
    ranks: dict[tuple[bool, bool], int] = {}
    verdicts: list[Verdict] = []
    for entry in newest_first:
        if entry.damaged is not None:
            verdicts.append(_keep(entry, f"damaged ({entry.damaged}): left for a person"))
            continue
        kind = (_is_exact(entry), _is_clean(entry))
        ranks[kind] = ranks.get(kind, 0) + 1
        # Others stand behind the clean exact ones that are newer, not only behind those of their kind.
        newer_clean = ranks.get((True, True), 0)
        verdicts.append(_judge(entry, ranks[kind], newer_clean, retention, needed.get(entry.manifest.id)))
    return tuple(verdicts)


def _judge(entry: Entry, rank: int, newer_clean: int, retention: Retention, needed: str | None) -> Verdict:
    step, clean = entry.manifest.step, _is_clean(entry)
    if entry.pinned is not None:
        return _keep(entry, f"pinned: {entry.pinned}")
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


def _never_removed(whole: Sequence[Entry]) -> dict[str, str]:
    """Reasons by id, of whole ones, newest first."""
    exact = [entry for entry in whole if _is_exact(entry)]
    clean = [entry for entry in exact if _is_clean(entry)]
    found: dict[str, str] = {}
    for some, reason in (
        (exact, "the newest full one"),
        (clean, "the newest full one that is clean"),
        ([entry for entry in exact if entry.verified is not None], "the newest full one that was verified"),
        ([entry for entry in clean if entry.verified is not None], "the newest clean full one that was verified"),
    ):
        if some:
            found.setdefault(some[0].manifest.id, reason)
    return found


def _spread(whole: Sequence[Entry], retention: Retention) -> dict[str, str]:
    """Of the clean exact ones that are older than the newest `last`: again and again the oldest that is at most
    FURTHER_BACK times as far back as the one before, or the next where there is none.

    While a run goes on, all of them get older by as much, so that the ratios between neighbours fall: what is kept is
    within reach of the one after it for ever, until those behind it can do without it or `spread` younger ones stand
    before it. That nothing is looked at but what there is now makes judging twice the same as judging once."""
    clean = [entry for entry in whole if _is_exact(entry) and _is_clean(entry)]
    if retention.last is None or not retention.spread or len(clean) <= max(retention.last, 1):
        return {}
    ages = _ages(clean)
    at = max(retention.last, 1) - 1
    found: dict[str, str] = {}
    while len(found) < retention.spread and at + 1 < len(clean):
        reach = FURTHER_BACK * max(ages[at], 1)
        beyond = range(at + 1, len(clean))
        at = max((number for number in beyond if ages[number] <= reach), default=at + 1)
        reason = f"{ages[at]} steps back: of older clean ones {retention.spread} stay, each further back than the last"
        found[clean[at].manifest.id] = reason
    return found


def _ages(newest_first: Sequence[Entry]) -> list[int]:
    """How many steps ago each was saved. Where a run went back to an earlier step, that itself took none."""
    ages = [0]
    for newer, older in pairwise(newest_first):
        ages.append(ages[-1] + max(newer.manifest.step - older.manifest.step, 0))
    return ages


def _keep(entry: Entry, reason: str) -> Verdict:
    return Verdict(id=entry.manifest.id, keep=True, reason=reason)


def _is_exact(entry: Entry) -> bool:
    return entry.manifest.granularity is Granularity.FULL


def _is_clean(entry: Entry) -> bool:
    return entry.health is Health.CLEAN
