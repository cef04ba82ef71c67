"""Ageing: which levels of which checkpoints go by now. It only speaks; `withering` acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from mementum.decide.protection import NOTHING, folders_named, protected
from mementum.records import LEVELS, Entry, Granularity, record

DAY_S = 86_400.0
NAMES = ("weights", "optimizer", "context")  # of the levels


@record
class Ageing:
    """After how many days, from the time of its save, each level of a checkpoint goes. None: never."""

    level_0: float | None = None
    level_1: float | None = None
    level_2: float | None = None

    @property
    def days(self) -> tuple[float | None, float | None, float | None]:
        return (self.level_0, self.level_1, self.level_2)


NEVER = Ageing()


@record
class Aged:
    """A checkpoint of which these `levels` are to be left; without any it goes."""

    id: str
    folder: str
    levels: tuple[int, ...]
    reason: str


def aged(
    entries: Sequence[Entry], ageing: Ageing, *, now_s: float, waiting: Mapping[str, str] = NOTHING
) -> tuple[Aged, ...]:
    """What is to be dropped by now, oldest first. `now_s`: seconds since 1970.

    Whatever is protected keeps all of its levels, and so does every checkpoint whose files another one names: it does
    not matter here which of them."""
    if all(days is None for days in ageing.days):
        return ()
    safe = protected(entries, waiting=waiting)
    named = {folder for entry in entries for folder in folders_named(entry)}
    found: list[Aged] = []
    for entry in sorted(entries, key=lambda entry: entry.order):
        if entry.manifest.id in safe or entry.folder in named:
            continue
        age_days = _age_days(entry, now_s)
        gone = () if age_days is None else tuple(level for level in held(entry) if _is_over(ageing, level, age_days))
        if gone and age_days is not None:
            left = tuple(level for level in held(entry) if level not in gone)
            what = ", ".join(f"{NAMES[level]} after {ageing.days[level]:g}" for level in gone)
            reason = f"{age_days:.1f} days old: {what} days"
            found.append(Aged(id=entry.manifest.id, folder=entry.folder, levels=left, reason=reason))
    return tuple(found)


def held(entry: Entry) -> tuple[int, ...]:
    """The levels that it has: one that was saved without an optimizer has none to lose."""
    without = {1} if entry.manifest.granularity is Granularity.WEIGHTS else set()
    return tuple(level for level in LEVELS if level in entry.manifest.levels and level not in without)


def _is_over(ageing: Ageing, level: int, age_days: float) -> bool:
    days = ageing.days[level]
    return days is not None and age_days >= days


def _age_days(entry: Entry, now_s: float) -> float | None:
    """None where its time is none: then nothing of it ages."""
    try:
        saved = datetime.fromisoformat(entry.manifest.time)
    except ValueError:
        return None
    saved = saved if saved.tzinfo is not None else saved.replace(tzinfo=UTC)
    return (now_s - saved.timestamp()) / DAY_S
