"""A store around a store that behaves as servers and networks do on a bad day, for authors of stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from mementum.clock import Clock
from mementum.errors import AccessRefused, Unreachable
from mementum.storage.around import Around
from mementum.storage.store import Buffer, Stat, Store
from mementum.testing.simdisk import Choose

T = TypeVar("T")
STALL_S = 30.0  # what a client waits for an answer before it gives up, or nearly so
THROTTLED_CALLS = 2  # that are refused in a row once a server has had too much
IN_A_ROW_MAX = 4  # faults, so that who tries again more often gets through

Fault = Literal["refused", "lost answer", "cut", "stall", "throttled", "denied"]
PASSING: tuple[Fault, ...] = ("refused", "lost answer", "cut", "stall", "throttled")  # what may be gone the next time


class FaultyStore(Around):
    """A `Store` that before each call asks `choose` for one of `faults`, where None is none:

    - refused: Unreachable, and nothing was done;
    - lost answer: it was done, and then Unreachable;
    - cut: a put or replace breaks off between two chunks, or behind the last one; a get that asked for a size brings
      fewer bytes; a list breaks off between two objects; every other call is refused;
    - stall: the clock, if there is one, moves by 30 s; then it is done;
    - throttled: this call and the next are refused;
    - denied: AccessRefused, and nothing was done.

    After four Unreachable in a row one call passes. `seen` counts the faults that there were.
    """

    def __init__(
        self,
        inner: Store,
        choose: Choose,
        *,
        faults: Sequence[Fault | None] = (None, *PASSING),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inner)
        self._choose, self._faults, self._clock = choose, tuple(faults), clock
        self._turn = threading.Lock()
        self._refusals = 0  # still to come, of a throttled place
        self._in_a_row = 0
        self.seen: dict[Fault, int] = dict.fromkeys((fault for fault in faults if fault is not None), 0)

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._sent(key, chunks, self._inner.put)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._sent(key, chunks, self._inner.replace)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        fault = self._next(key, cuts=size is not None)
        data = self._done(key, fault, lambda: self._inner.get(key, start, size))
        return data[: len(data) // 2] if fault == "cut" else data

    def list(self, prefix: str = "") -> Iterator[Stat]:
        fault = self._next(prefix, cuts=True)
        for stat in self._done(prefix, fault, lambda: self._inner.list(prefix)):
            if fault == "cut" and self._choose((False, True)):
                break
            yield stat
        if fault == "cut":
            raise _broken_off(prefix)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        return self._done(prefix, self._next(prefix), lambda: self._inner.folders(prefix))

    def delete(self, key: str) -> None:
        self._done(key, self._next(key), lambda: self._inner.delete(key))

    def sweep(self) -> tuple[str, ...]:
        return self._done("", self._next(""), self._inner.sweep)

    def _sent(self, key: str, chunks: Iterable[Buffer], send: Callable[[str, Iterable[Buffer]], Stat]) -> Stat:
        fault = self._next(key, cuts=True)
        if fault != "cut":
            return self._done(key, fault, lambda: send(key, chunks))

        def all_but_the_end() -> Iterator[Buffer]:
            for chunk in chunks:
                if self._choose((False, True)):
                    break
                yield chunk
            raise _broken_off(key)

        return send(key, all_but_the_end())

    def _next(self, key: str, *, cuts: bool = False) -> Fault | None:
        """The fault of a call, which is raised at once if it is one that leaves nothing done."""
        with self._turn:
            fault = self._chosen()
            if fault is not None:
                self.seen[fault] += 1
            self._in_a_row = self._in_a_row + 1 if fault is not None and fault not in ("stall", "denied") else 0
        if fault == "stall" and self._clock is not None:
            self._clock.sleep(STALL_S)
        if fault == "denied":
            raise AccessRefused(key, f"{key}: the server does not let us")
        if fault in ("refused", "throttled") or (fault == "cut" and not cuts):
            raise Unreachable(key, f"{key}: the server is busy")
        return fault

    def _chosen(self) -> Fault | None:
        if self._in_a_row >= IN_A_ROW_MAX:
            self._refusals = 0
            return None
        if self._refusals:
            self._refusals -= 1
            return "throttled"
        fault = self._choose(self._faults)
        if fault == "throttled":
            self._refusals = THROTTLED_CALLS - 1
        return fault

    def _done(self, key: str, fault: Fault | None, call: Callable[[], T]) -> T:
        done = call()
        if fault == "lost answer":
            raise Unreachable(key, f"{key}: no answer")
        return done


def _broken_off(key: str) -> Unreachable:
    return Unreachable(key, f"{key}: the connection was closed")
