"""Watermarks: a place is kept from filling up, and is told of when nothing of ours in it may go."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from mementum.clock import Clock
from mementum.config.tiers import Watermarks
from mementum.decide.filling import Marks, Needs, needs
from mementum.errors import StoreError
from mementum.events import Emit, NoRoom, RoomMade
from mementum.perceive.budgets import KEPT
from mementum.records import Usage, record

# Causes of saves that are tried where there is no room: no other one comes, or the run is in trouble.
URGENT = frozenset({"notice", "end", "alarm", KEPT})
GB = 1e9
# Some file systems (btrfs, those behind a network) give the room of a removed file back a while later. For so long it
# counts as given back, or the next look would have more removed for the same bytes.
LATE_S = 60.0
PROMPT = 0.5  # of what was removed: a place that shows so much at once is not late, others write there meanwhile


@record
class Gave:
    """Bytes that came free with what was removed, and how many are missing."""

    freed: int
    missing: int


Free = Callable[[int], Gave]  # has so many bytes removed, as far as that is allowed


class Told(IntEnum):
    """What is known of a place that is short of room, until it is not any more."""

    NOTHING = 0
    FULL = 1  # nothing of ours may go, and there is still room for saves
    SKIPPING = 2  # saves are skipped


def marks_of(wanted: Watermarks, *, bounded: bool = True) -> Marks:
    """`bounded`: of a file system; a budget is meant as it is said."""
    return Marks(clean_from=wanted.clean_from, clean_to=wanted.clean_to, emergency=wanted.emergency, bounded=bounded)


class Level:
    """How full one place is. It belongs to the thread that removes checkpoints there."""

    def __init__(
        self,
        place: str,
        look: Callable[[], Usage | None],
        marks: Marks,
        *,
        full: int = 0,
        next_command: str,
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`place`: for people. `look`: None where nobody can say how full it is. `full`: bytes of a full checkpoint, as
        far as one knows. `next_command`: what a person may do where nothing of ours may go."""
        self._place, self._look, self._marks, self._full = place, look, marks, full
        self._next_command, self._clock, self._emit = next_command, clock, emit
        self._told = Told.NOTHING
        self._late: list[tuple[float, int]] = []  # bytes that are to come free, and until when that is believed
        self._seen: int | None = None  # bytes that were used at the last look

    def before(self, coming: int, free: Free) -> str | None:
        """Make room for `coming` bytes that are about to be written; why there is none, or None."""
        self._full = max(self._full, coming)
        usage = self._usage()
        if usage is None:
            return None
        wanted = self._needs(usage, coming)
        if not wanted.most:
            return None
        gave = free(wanted.most)
        usage, wanted = self._after(usage, gave, coming)
        if wanted.most:
            self._tell(usage, wanted, gave)
            usage = self._usage() or usage  # who listens may have given the place more
            wanted = self._needs(usage, coming)
        return f"{self._why(usage, coming)}, and nothing of ours there may go" if wanted.save else None

    def after(self, free: Free) -> None:
        """Clean, if it is time to, after something was written."""
        usage = self._usage()
        if usage is None:
            return
        wanted = self._needs(usage, 0)
        if wanted.most:
            gave = free(wanted.most)
            usage, wanted = self._after(usage, gave, 0)
        if wanted.most:
            self._tell(usage, wanted, gave)
        else:
            self._told = Told.NOTHING

    def refused(self, coming: int, free: Free) -> bool:
        """The place has taken no more, whatever it says of itself: there may be a quota, or somebody was faster. Make
        room for `coming` bytes all the same; whether it is worth trying again."""
        usage = self._usage()
        gave = free(coming)
        if usage is not None:
            usage, _ = self._after(usage, gave, coming)
        else:
            usage = Usage(used=0, size=0)
        if gave.missing and usage.free < coming:
            lacking = Needs(clean=0, save=gave.missing, limit=usage.size)
            self._tell(usage, lacking, gave)
            usage = self._usage() or usage
        return not gave.missing or usage.free >= coming

    def short_of(self, coming: int) -> str | None:
        """Why there is no room for `coming` bytes, or None. Nothing is removed; on any thread."""
        usage = self._usage()
        return None if usage is None or not self._needs(usage, coming).save else self._why(usage, coming)

    def _needs(self, usage: Usage, coming: int) -> Needs:
        return needs(usage, self._marks, coming=coming, full=self._full)

    def _usage(self) -> Usage | None:
        try:
            usage = self._look()
        except StoreError:
            return None  # the save itself will say what is wrong with this place
        if usage is None:
            return None
        if self._seen is not None and usage.used < self._seen:
            self._came_free(self._seen - usage.used)
        self._seen = usage.used
        now_s = self._clock.monotonic()
        self._late = [(until_s, size) for until_s, size in self._late if now_s < until_s]
        return Usage(used=max(0, usage.used - sum(size for _, size in self._late)), size=usage.size)

    def _came_free(self, size: int) -> None:
        """Of what was late, the oldest first."""
        left: list[tuple[float, int]] = []
        for until_s, late in self._late:
            left.append((until_s, late - min(late, size)))
            size -= min(late, size)
        self._late = [(until_s, late) for until_s, late in left if late]

    def _after(self, before: Usage, gave: Gave, coming: int) -> tuple[Usage, Needs]:
        """How full it is after a removal, and what is wanted still."""
        usage = self._usage() or before
        if gave.freed:
            seen = before.used - usage.used
            if seen < PROMPT * gave.freed:
                self._late.append((self._clock.monotonic() + LATE_S, gave.freed - max(seen, 0)))
                usage = self._usage() or before
            self._emit(RoomMade(place=self._place, used=usage.used, size=usage.size, freed=gave.freed))
        return usage, self._needs(usage, coming)

    def _tell(self, usage: Usage, wanted: Needs, gave: Gave) -> None:
        """Once, and once more if it comes to saves."""
        now = Told.SKIPPING if wanted.save else Told.FULL
        if now <= self._told:
            return
        self._told = now
        self._emit(
            NoRoom(
                place=self._place,
                used=usage.used,
                size=usage.size,
                limit=wanted.limit,
                freed=gave.freed,
                missing=wanted.most,
                saves=not wanted.save,
                next_command=self._next_command,
            )
        )

    def _why(self, usage: Usage, coming: int) -> str:
        above = f"{coming / GB:.3g} GB more would be above the mark for emergencies ({self._marks.emergency:.0%})"
        return f"{self._place} is used to {usage.share:.0%}: {above}"
