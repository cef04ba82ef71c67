"""Soundness: what of a run's state has to be finite, and what a checkpoint says of itself where it is not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mementum.catalog import facts
from mementum.errors import StoreError
from mementum.events import Emit, Note, NotFinite
from mementum.execute.finite import Finite, infinite
from mementum.execute.snapshot import Snapshot
from mementum.live.component import Component
from mementum.records import NON_FINITE, Health, Manifest, Resumed, StoredFile
from mementum.saving import Describe
from mementum.storage.store import Store

MEANT = "meant"  # the kind of the fact that names what held infinities when the task began
SHOWN_MAX = 3  # names in a sentence
REMEMBERED = 64  # steps of saves: the newest before one that is not finite is among the last few, kept ones apart


class Tell(Protocol):
    """Queues a fact for the journal."""

    def __call__(
        self, kind: str, *, step: int | None = None, checkpoint: str | None = None, values: Mapping[str, Any]
    ) -> None: ...


class Soundness:
    """Looks at each state before it is written, on the worker's thread, and marks what is not finite as diverged."""

    def __init__(self, finite: Finite, *, step: int, tell: Tell, emit: Emit) -> None:
        """`step`: that of the state with which the run begins."""
        self._finite, self._tell, self._emit = finite, tell, emit
        self._begun = step
        self._sound: deque[int] = deque(maxlen=REMEMBERED)  # steps whose states were looked at, and are finite
        self._found: NotFinite | None = None
        self._lock = threading.Lock()

    def look(self, snapshot: Snapshot, describe: Describe) -> Describe:
        """How the snapshot is to be described, now that it was looked at."""
        name, step = self._finite.first_bad(snapshot.images), snapshot.step
        with self._lock:
            if name is None:
                self._sound.append(step)
                return describe
            after_step = max((one for one in (self._begun, *self._sound) if one < step), default=0)
            found = self._found = NotFinite(id=snapshot.id, step=step, name=name, after_step=after_step)
        values = {"health": Health.DIVERGED.value, "why": f"{name} is not finite", "onset": step}
        self._tell("health", checkpoint=snapshot.id, step=step, values=values)
        self._emit(found)
        return lambda snapshot, files: _marked(describe, snapshot, files, name)

    def rewound(self, step: int) -> None:
        """The run has gone back to this step, whose state is finite; those after it will be others."""
        with self._lock:
            self._sound = deque((one for one in self._sound if one <= step), maxlen=REMEMBERED)
            self._begun, self._found = step, None

    def take_found(self) -> NotFinite | None:
        """The newest state that is not finite, if nobody has taken it yet; on any thread."""
        with self._lock:
            found, self._found = self._found, None
        return found


def _marked(describe: Describe, snapshot: Snapshot, files: Sequence[StoredFile], name: str) -> Manifest:
    manifest = describe(snapshot, files)
    return replace(manifest, health=Health.DIVERGED, decision={**manifest.decision, NON_FINITE: name})


def watch_soundness(
    components: Sequence[Component], store: Store, *, resumed: Resumed | None, tell: Tell, emit: Emit
) -> Soundness:
    """Infinities in what a task begins with are meant, and stand in the journal for those who resume it. What was
    loaded in part begins anew."""
    meant = frozenset[str]() if resumed is None else meant_before(store)
    if resumed is None or resumed.rung != "exact":
        begun = infinite(components)
        if begun - meant:
            tell(MEANT, values=dict.fromkeys(sorted(begun - meant), True))
            names = ", ".join(sorted(begun)[:SHOWN_MAX]) + (" and more" if len(begun) > SHOWN_MAX else "")
            emit(Note(text=f"{names}: infinite when the run began, and taken as meant so"))
        meant |= begun
    step = 0 if resumed is None else resumed.step
    return Soundness(Finite(components, meant=meant), step=step, tell=tell, emit=emit)


def meant_before(store: Store) -> frozenset[str]:
    """What earlier attempts have begun with. What cannot be read says nothing."""
    names: set[str] = set()
    for stat in store.list("journal/"):
        try:
            told = facts.parse(store.get(stat.key))
        except StoreError:
            continue
        names.update(name for fact in told if fact.kind == MEANT for name in fact.values)
    return frozenset(names)
