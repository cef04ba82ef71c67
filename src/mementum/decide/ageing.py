"""Ageing: which levels of which checkpoints go by now. It only speaks; `withering` acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from mementum.decide.protection import NOTHING, folders_named, protected
from mementum.records import LEVELS, Entry, Granularity, record

DAY_S = 86_400.0
# Between one checkpoint and the next, and from the newest to now. A clock that is wrong by chance is so by decades more
# often than not, and a task that nobody has touched for so long is for a person to clear.
PAUSE_MAX_S = 730 * DAY_S
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
    not matter here which of them. The same for what lies behind a pause of PAUSE_MAX_S: there a clock was wrong."""
    if all(days is None for days in ageing.days):
        return ()
    safe = protected(entries, waiting=waiting)
    named = {folder for entry in entries for folder in folders_named(entry)}
    believed_s = _believed_from(entries, now_s)
    found: list[Aged] = []
    for entry in sorted(entries, key=lambda entry: entry.order):
        if entry.manifest.id in safe or entry.folder in named:
            continue
        saved_s = _saved_s(entry)
        age_days = None if saved_s is None or saved_s < believed_s else (now_s - saved_s) / DAY_S
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


def _believed_from(entries: Sequence[Entry], now_s: float) -> float:
    """The oldest time from which up to now there is no pause that is too long to be one."""
    known = [saved_s for entry in entries if (saved_s := _saved_s(entry)) is not None]
    found_s = now_s
    for saved_s in sorted((saved_s for saved_s in known if saved_s <= now_s), reverse=True):
        if found_s - saved_s > PAUSE_MAX_S:
            break
        found_s = saved_s
    return found_s


def _saved_s(entry: Entry) -> float | None:
    """Seconds since 1970. None where its time is none: then nothing of it ages."""
    try:
        saved = datetime.fromisoformat(entry.manifest.time)
    except ValueError:
        return None
    saved = saved if saved.tzinfo is not None else saved.replace(tzinfo=UTC)
    return saved.timestamp()
