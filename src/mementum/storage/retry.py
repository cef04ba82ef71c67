"""A store around a store that tries again when the place does not answer, and finds out what became of lost answers."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import tenacity
from blake3 import blake3

from mementum.clock import Clock
from mementum.errors import KeyMissing, KeyTaken, Unreachable, UsageError
from mementum.storage.around import Around
from mementum.storage.chunks import can_repeat, flat, pieces
from mementum.storage.keys import check_key, check_range
from mementum.storage.store import Buffer, Stat, Store, size_of

T = TypeVar("T")
ATTEMPTS = 8  # with the waits below half a minute: a restart of a server, a change of a load balancer
PATIENCE_S = 120.0  # of one call, its tries included; a place that is gone for longer is the caller's to come back to
FIRST_WAIT_S = 0.25
DOUBLINGS_MAX = 10  # the bound is reached by then, and powers of two stay numbers
WAIT_S_MAX = 20.0  # an overloaded place needs no longer to let a few through
PAGE = 1000  # objects listed in one try: as many as object stores tell in one answer
PIECE = 8 << 20  # bytes that are read back at a time, to compare

Told = Callable[[Unreachable, float], None]


class Retrying(Around):
    """A `Store` that repeats calls which end in `Unreachable`, and no others, up to `attempts` times within
    `patience_s` seconds; then the last `Unreachable` is raised. `emit` gets each one and the seconds until the next
    try, and `answered` is called after each call that has succeeded. UsageError unless both limits are above 0.

    Waits are drawn between half of a bound and the bound, which doubles ("equal jitter", after M. Brooker, "Exponential
    Backoff And Jitter", AWS Architecture Blog, 2015), from numbers of its own: the program's are part of its state.

    A put whose answer was lost may have been done. So when the key is taken at a later try, the object is read back:
    the same bytes are ours, others are KeyTaken. Whoever puts a key to be the only one that has it puts something of
    its own into it. Chunks that can be gone through once, an iterator, are sent once: if that fails, the object is
    looked for and no more; and their digest is made on the way, which lists are spared.
    """

    def __init__(
        self,
        inner: Store,
        clock: Clock,
        emit: Told | None = None,
        *,
        answered: Callable[[], None] | None = None,
        attempts: int = ATTEMPTS,
        patience_s: float = PATIENCE_S,
        rng: random.Random | None = None,
    ) -> None:
        if attempts < 1 or not patience_s > 0:
            raise UsageError(f"attempts={attempts} and patience_s={patience_s} must be above 0")
        super().__init__(inner)
        self._clock, self._emit, self._answered = clock, emit, answered
        self._attempts, self._patience_s = attempts, patience_s
        self._rng = rng if rng is not None else random.Random()

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        sending = _Sending(key, chunks)

        def once() -> Stat:
            if sending.is_spent:
                size = size_of(self._inner, key)
                if size is not None:
                    return self._ours(sending, size)
            try:
                with sending.trying():
                    return self._inner.put(key, sending)
            except KeyTaken:
                size = size_of(self._inner, key) if sending.tries > 1 else None
                if size is None:
                    raise
                return self._ours(sending, size)

        return self._tried(once, sending)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        sending = _Sending(key, chunks)

        def once() -> Stat:
            if sending.is_spent:
                size = size_of(self._inner, key)
                if size is not None and self._is_same(sending, size):
                    return Stat(key=key, size=size)
            with sending.trying():
                return self._inner.replace(key, sending)

        return self._tried(once, sending)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_range(key, start, size)
        return self._tried(lambda: self._whole(key, start, size))

    def _whole(self, key: str, start: int, size: int | None) -> memoryview:
        """What a store that cannot tell a cut from an end calls the end is looked at twice."""
        data = self._inner.get(key, start, size)
        if size is not None and data.nbytes < size:
            there = size_of(self._inner, key)
            if there is not None and start + data.nbytes < there:
                raise Unreachable(key, f"{key}: the answer broke off after {data.nbytes} bytes")
        return data

    def list(self, prefix: str = "") -> Iterator[Stat]:
        last = ""
        going: Iterator[Stat] | None = None

        def once() -> tuple[Stat, ...]:
            nonlocal going
            if going is None:
                going = (stat for stat in self._inner.list(prefix) if stat.key > last)
            try:
                return tuple(itertools.islice(going, PAGE))
            except Unreachable:
                going = None  # a generator that has raised has ended: begin anew, behind the last one told
                raise

        while page := self._tried(once):
            last = page[-1].key
            yield from page

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        return self._tried(lambda: self._inner.folders(prefix))

    def delete(self, key: str) -> None:
        self._tried(lambda: self._inner.delete(key))

    def sweep(self) -> tuple[str, ...]:
        return self._tried(self._inner.sweep)

    def _tried(self, once: Callable[[], T], sending: _Sending | None = None) -> T:
        until = self._clock.monotonic() + self._patience_s

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, Unreachable) and not (sending is not None and sending.is_over)

        def is_enough(state: tenacity.RetryCallState) -> bool:
            return state.attempt_number >= self._attempts or self._clock.monotonic() + state.upcoming_sleep > until

        def tell(state: tenacity.RetryCallState) -> None:
            error = None if state.outcome is None else state.outcome.exception()
            if self._emit is not None and isinstance(error, Unreachable):
                self._emit(error, state.upcoming_sleep)

        done = tenacity.Retrying(
            sleep=self._clock.sleep,
            wait=lambda state: self._wait_s(state.attempt_number),
            stop=is_enough,
            retry=tenacity.retry_if_exception(may_pass),
            before_sleep=tell,
            reraise=True,
        )(once)
        if self._answered is not None:
            self._answered()
        return done

    def _wait_s(self, attempt: int) -> float:
        bound_s = min(FIRST_WAIT_S * 2.0 ** min(attempt - 1, DOUBLINGS_MAX), WAIT_S_MAX)
        return self._rng.uniform(bound_s / 2.0, bound_s)

    def _ours(self, sending: _Sending, size: int) -> Stat:
        if not self._is_same(sending, size):
            raise KeyTaken(sending.key)
        return Stat(key=sending.key, size=size)

    def _is_same(self, sending: _Sending, size: int) -> bool:
        """Whether the object of `size` bytes that is there is the one that we have sent."""
        there = (bytes(self._whole(sending.key, at, min(PIECE, size - at))) for at in range(0, size, PIECE))
        try:
            return sending.is_same(there, size)
        except KeyMissing:  # removed since we looked
            return False


class _Sending:
    """The chunks of one put on their way, and what is known of them when its answer is lost."""

    def __init__(self, key: str, chunks: Iterable[Buffer]) -> None:
        self.key = key
        self.tries = 0
        self.is_over = False  # they can be sent once, and were
        self._chunks = chunks
        self._lost: Unreachable | None = None
        self._digest = None if can_repeat(chunks) else blake3()  # of what will not come again
        self._begun = False
        self._size: int | None = None  # once all of them have been seen
        self._most = 0  # bytes that were seen in one go

    def __iter__(self) -> Iterator[Buffer]:
        """UsageError at the end, so that nothing half is kept, if they are not what they were the first time."""
        sent = 0
        for chunk in self._chunks:
            self._begun = True
            sent += memoryview(chunk).nbytes
            self._most = max(self._most, sent)
            if self._digest is not None:
                self._digest.update(flat(chunk))
            yield chunk
        self._begun = True
        if sent != (self._most if self._size is None else self._size):
            raise UsageError(f"{self.key}: {self._most} bytes came at one try and {sent} at another")
        self._size = sent

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left to send."""
        return self._digest is not None and self._begun

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Around each try. One more of what is spent raises the error of the one that there was."""
        if self.is_spent and self._lost is not None:
            self.is_over = True
            raise self._lost
        self.tries += 1
        try:
            yield
        except Unreachable as error:
            self._lost = error
            raise

    def is_same(self, there: Iterator[bytes], size: int) -> bool:
        """Whether these pieces, of `size` bytes in all, are what was sent, all of it."""
        if self._size is not None and self._size != size:
            return False
        if self._digest is None:
            return all(ours == theirs for ours, theirs in itertools.zip_longest(pieces(self._chunks, PIECE), there))
        if self._size is None:
            return False
        found = blake3()
        for piece in there:
            found.update(piece)
        return bool(found.digest() == self._digest.digest())
