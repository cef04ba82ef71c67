"""The journal of an attempt: its facts, one line each, and beside them the chunks of its recorded vital signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mementum.catalog import facts
from mementum.clock import Clock, timestamp
from mementum.errors import StoreError
from mementum.events import Emit, Failed
from mementum.format import vitals
from mementum.records import Fact
from mementum.storage.store import Home

OF_ENTRIES = frozenset({"health", "pin", "unpin"})  # kinds of facts that change what retention may remove


class Journal:
    """Written by the worker's thread alone."""

    def __init__(self, store: Home, attempt: int, *, clock: Clock, emit: Emit) -> None:
        self._store, self._attempt, self._clock, self._emit = store, attempt, clock, emit
        self._torn = self._unrecorded_told = False
        self.unlearnt = False  # whether it says something of checkpoints that the catalog has not been told

    def append(self, kind: str, checkpoint: str | None, step: int | None, values: Mapping[str, Any]) -> None:
        """Write a fact. One that cannot be written is told and given up: it must not stand in the way of a save."""
        fact = Fact(kind=kind, time=timestamp(self._clock.now()), checkpoint=checkpoint, step=step, values=values)
        line = facts.render(fact)
        try:
            # After a failed append the file may end in half a line, which the new one must not continue.
            self._store.append(facts.journal_key(self._attempt), b"\n" + line if self._torn else line)
            self._torn = False
            self.unlearnt = self.unlearnt or kind in OF_ENTRIES
        except StoreError as error:
            self._torn = True
            self._emit(Failed(what=f"a fact ({kind})", error=error.message, kept="the checkpoints"))

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
