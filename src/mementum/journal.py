"""The journal of an attempt: its facts, one line each, and beside them the chunks of its recorded vital signs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mementum.catalog import facts
from mementum.clock import Clock, timestamp
from mementum.errors import StoreError
from mementum.events import Emit, Failed
from mementum.format import vitals
from mementum.records import Fact
from mementum.storage.store import Home

OF_ENTRIES = frozenset({"health", "pin", "unpin"})  # kinds of facts that change what retention may remove
# Kinds that are written later where the disk refuses them: a start goes by them, and a full disk is why some go.
LASTING = OF_ENTRIES | {"diagnosis", "removed"}
WAITING_MAX = 1000  # such facts: a trouble makes a few, and one for each state that was saved in it


class Journal:
    """Written by the worker's thread alone."""

    def __init__(self, store: Home, attempt: int, *, clock: Clock, emit: Emit) -> None:
        self._store, self._attempt, self._clock, self._emit = store, attempt, clock, emit
        self._torn = self._unrecorded_told = False
        self._waiting: deque[Fact] = deque(maxlen=WAITING_MAX)
        self._waiting_told = False
        self.unlearnt = False  # whether it says something of checkpoints that the catalog has not been told

    def append(self, kind: str, checkpoint: str | None, step: int | None, values: Mapping[str, Any]) -> None:
        """Write a fact, after those that wait. One that cannot be written must not stand in the way of a save: if it is
        one that a start goes by it waits, of the newest of them; another is given up. That is told."""
        fact = Fact(kind=kind, time=timestamp(self._clock.now()), checkpoint=checkpoint, step=step, values=values)
        error = self._write([*self._waiting, fact])
        if error is None:
            return
        if kind not in LASTING:
            self._emit(Failed(what=f"a fact ({kind})", error=error.message, kept="the checkpoints"))
            return
        self._waiting.append(fact)
        if not self._waiting_told:
            self._waiting_told = True
            kept = f"the checkpoints, and the newest {WAITING_MAX} such facts until the disk takes them"
            self._emit(Failed(what=f"a fact ({kind})", error=error.message, kept=kept))

    @property
    def waiting(self) -> tuple[Fact, ...]:
        """What is known and could not be written yet, oldest first."""
        return tuple(self._waiting)

    def catch_up(self) -> bool:
        """Whether something waited, and stands in the journal now."""
        return bool(self._waiting) and self._write(self._waiting) is None

    def record(self, chunk: bytes, written: Callable[[bool], None]) -> None:
        """Write a chunk of vital signs, and tell `written` what became of it."""
        try:
            self._store.append(vitals.key(self._attempt), chunk)
            written(True)
        except StoreError as error:
            written(False)
            if not self._unrecorded_told:
                self._unrecorded_told = True
                self._emit(Failed(what="recording vital signs", error=error.message, kept="the checkpoints"))

    def _write(self, lines: Sequence[Fact]) -> StoreError | None:
        """All of them, of which those that wait are the first; else why not. What a failed try has left of them may
        come twice: the later one holds, and says the same."""
        data = b"".join(map(facts.render, lines))
        try:
            # After a failed append the file may end in half a line, which the new one must not continue.
            self._store.append(facts.journal_key(self._attempt), b"\n" + data if self._torn else data)
        except StoreError as error:
            self._torn = True
            return error
        self._torn = self._waiting_told = False
        self.unlearnt = self.unlearnt or any(fact.kind in OF_ENTRIES for fact in lines)
        self._waiting.clear()
        return None
