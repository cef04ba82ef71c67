"""The recorder: gathers the vital signs of every step, and gives them out as chunks for a file that grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mementum.records import Vitals

CHUNK_ROWS = 64  # 6 KB: what a disk takes at once anyway
CHUNK_S = 1.0  # what a kill may take of the newest vital signs; an append waits for the disk, so not oftener
WAITING_ROWS_MAX = 8192  # 0.7 MB, and some minutes of short steps: a disk that is behind for longer costs detail


class Form(Protocol):
    """How rows become bytes: `mementum.format.vitals`, or another module or object with these three."""

    def begin(self) -> bytes:
        """What stands before the first chunk."""
        ...

    def row(self, vitals: Vitals, /) -> bytes:
        """One step."""
        ...

    def chunk(self, rows: Sequence[bytes], /) -> bytes:
        """Rows that are appended at once."""
        ...


class Recorder:
    """One chunk is on its way at a time: after `due` has given one, it gives no other until `written` was told.

    `add`, `due` and `rest` belong to one thread; `written` may be told from another. A chunk that could not be written
    is given out again, with what came since. While the disk is behind, rows wait, up to WAITING_ROWS_MAX; then every
    second one of the older half is dropped, and counted in `dropped`: what is lost is detail, oldest first."""

    def __init__(self, form: Form) -> None:
        self.dropped = 0
        self._form = form
        self._rows: list[bytes] = []
        self._away: list[bytes] = []  # in the chunk that is on its way
        self._outcome: bool | None = None  # what was told of it
        self._begun = False
        self._since_s: float | None = None  # when the oldest row that waits came, or the last try failed

    def add(self, vitals: Vitals) -> None:
        """Take a step's vital signs in. Costs some microseconds and never waits."""
        self._rows.append(self._form.row(vitals))
        if self._since_s is None:
            self._since_s = vitals.at_s
        self._thin()

    def due(self, at_s: float) -> bytes | None:
        """Bytes to be appended now: of CHUNK_ROWS rows, or of what has waited for CHUNK_S. `at_s` as in the vital
        signs: seconds since the attempt began."""
        failed = self._settle()
        if failed:
            self._since_s = at_s
        if self._away or not self._rows or self._since_s is None:
            return None
        soon = self._begun and len(self._rows) >= CHUNK_ROWS
        return self._give() if soon or at_s - self._since_s >= CHUNK_S else None

    def rest(self) -> bytes | None:
        """All that is left, at the end: also a chunk of which nobody has told what became of it. Rows that are written
        twice are read once."""
        if self._away and self._outcome is None:
            self._outcome = False
        self._settle()
        return self._give() if self._rows else None

    def written(self, whole: bool) -> None:
        """Tell what became of the chunk that `due` gave last."""
        self._outcome = whole

    def _settle(self) -> bool:
        """Take note of what was told; whether it was a failure."""
        if not self._away or self._outcome is None:
            return False
        failed = not self._outcome
        if failed:
            # It may have left a part of itself. Whoever reads finds the next line or chunk after it.
            self._rows[:0] = self._away
            self._begun = False
            self._thin()
        self._away, self._outcome = [], None
        return failed

    def _give(self) -> bytes:
        data = self._form.chunk(self._rows)
        if not self._begun:
            data = self._form.begin() + data
            self._begun = True
        self._away, self._rows, self._since_s = self._rows, [], None
        return data

    def _thin(self) -> None:
        if len(self._rows) > WAITING_ROWS_MAX:
            half = len(self._rows) // 2
            kept = self._rows[1:half:2]
            self.dropped += half - len(kept)
            self._rows[:half] = kept
