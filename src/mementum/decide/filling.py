"""Filling: how much must come free in a place that fills up, and which checkpoints give it. It only speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mementum.decide.evict import Eviction, Holdings, evict
from mementum.decide.protection import NOTHING
from mementum.decide.retain import Retention, retain
from mementum.records import Entry, Usage, Verdict, record

# Parts of a very large disk are more than anybody needs: a tenth of a file system of petabytes holds years of saves,
# and such ones are run at nine tenths. So marks count in at most so much of it; Elasticsearch bounds its marks likewise
# (`max_headroom`, 100 to 200 GB). What a thousand checkpoints take is never more than is asked for.
COUNTED_CHECKPOINTS = 1000
COUNTED_MIN = 100 << 30


@record
class Marks:
    """Shares of a place that may be used: from `clean_from` on checkpoints go, until `clean_to`; what is saved for no
    emergency must stay below `emergency`. `bounded`: whether they count in a part of a very large place only."""

    clean_from: float
    clean_to: float
    emergency: float
    bounded: bool = True


@record
class Needs:
    """Bytes that must come free: `clean` for the marks, `save` for what is about to be written. `limit`: bytes that may
    be used for that, or at all where nothing is."""

    clean: int
    save: int
    limit: int

    @property
    def most(self) -> int:
        return max(self.clean, self.save)


def needs(usage: Usage, marks: Marks, *, coming: int = 0, full: int = 0) -> Needs:
    """What must come free before `coming` bytes are written. `full`: bytes of a full checkpoint."""
    counted = min(usage.size, max(COUNTED_CHECKPOINTS * full, COUNTED_MIN)) if marks.bounded else usage.size

    def line(share: float) -> int:
        return usage.size - round((1 - share) * counted)

    emergency = line(marks.emergency)
    clean = usage.used - line(marks.clean_to) if usage.used >= line(marks.clean_from) else 0
    return Needs(
        clean=max(clean, 0),
        save=max(usage.used + coming - emergency, 0) if coming else 0,
        limit=emergency if coming else line(marks.clean_from),
    )


def freed_by(verdicts: Sequence[Verdict], entries: Sequence[Entry], held: Holdings) -> int:
    """Bytes of files that only what goes has."""
    kept = {verdict.id for verdict in verdicts if verdict.keep}
    stays = {blob.key for entry in entries if entry.manifest.id in kept for blob in held[entry.folder]}
    goes = {blob.key: blob.size for entry in entries for blob in held[entry.folder] if blob.key not in stays}
    return sum(goes.values())


def with_stayed(verdicts: Sequence[Verdict], stayed: Mapping[str, str]) -> tuple[Verdict, ...]:
    """As they have come out: what stayed nevertheless is kept."""
    return tuple(replace(one, keep=True, reason=stayed[one.id]) if one.id in stayed else one for one in verdicts)


def give(
    entries: Sequence[Entry],
    retention: Retention,
    *,
    need: int,
    holdings: Holdings | None = None,
    waiting: Mapping[str, str] = NOTHING,
) -> Eviction:
    """Choose what goes until `need` bytes come free, as `evict` does. What the retention names by more than its being
    new (the best, multiples of a step, spread ones) goes only when all else that may go has gone."""
    judged = retain(entries, replace(retention, last=1))
    rather = {verdict.id: verdict.reason for verdict in judged if verdict.keep}
    first = evict(entries, need=need, holdings=holdings, waiting={**rather, **waiting})
    if not first.missing:
        return first
    gone = {verdict.id: verdict for verdict in first.verdicts if not verdict.keep}
    left = [entry for entry in entries if entry.manifest.id not in gone]
    second = evict(left, need=first.missing, holdings=holdings, waiting=waiting)
    verdicts = {**{verdict.id: verdict for verdict in second.verdicts}, **gone}
    return Eviction(
        verdicts=tuple(verdicts[verdict.id] for verdict in first.verdicts),
        freed=first.freed + second.freed,
        missing=second.missing,
    )
