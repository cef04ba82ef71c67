"""Noting: what of a step goes into the journal, where a person may ask for it later, and is told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mementum.clock import Clock
from mementum.events import Alarmed, Emit, Note, Noticed
from mementum.records import Alarm, Situation, Skip

SKIPS_S = 60.0  # between two skips in the journal: why there is no save is asked for hours later, not for each step

Tell = Callable[[str, int | None, Mapping[str, Any]], None]  # kind, step, values: a fact for the journal


class Noting:
    """Remembers what was told last, so that what goes on is told once."""

    def __init__(self, *, tell: Tell, clock: Clock, emit: Emit) -> None:
        self._tell, self._clock, self._emit = tell, clock, emit
        self._skip, self._skipped_s = "", -SKIPS_S
        self._noticed: frozenset[str] = frozenset()

    def alarm(self, alarm: Alarm) -> None:
        self._emit(Alarmed(alarm=alarm))
        values = {
            "trouble": str(alarm.trouble),
            "value": alarm.value,
            "limit": alarm.limit,
            "text": alarm.text,
            "chance": alarm.chance,
            "claimed": alarm.claimed,
            "horizon_s": alarm.horizon_s,
        }
        self._tell("alarm", alarm.step, values)

    def notices(self, situation: Situation) -> None:
        """Those that are new."""
        now = frozenset(notice.source for notice in situation.notices)
        for notice in situation.notices:
            if notice.source not in self._noticed:
                self._emit(Noticed(step=situation.step, notice=notice))
                left = {} if notice.left_s is None else {"left_s": notice.left_s}
                self._tell("notice", situation.step, {"source": notice.source, "stops": notice.stops, **left})
        self._noticed = now

    def skip(self, situation: Situation, skip: Skip, *, would: bool) -> None:
        """Why there is no save, where that is news. `would`: there would have been one, which is always told."""
        about = skip.reason.partition(":")[0]
        recent = self._clock.monotonic() - self._skipped_s < SKIPS_S
        if not would and (about == self._skip or (recent and not skip.refused)):
            return
        self._skip, self._skipped_s = about, self._clock.monotonic()
        self._tell("refused" if skip.refused else "skip", situation.step, {"reason": skip.reason, **skip.numbers})
        if skip.refused or would:
            self._emit(Note(text=f"step {situation.step}: {skip.reason}"))
