"""A store that says since when nothing has moved: what the place takes counts, what its callers take does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from mementum.clock import ManualClock
from mementum.storage.around import Around
from mementum.storage.local import LocalStore
from mementum.storage.stirred import Motion, Stirred
from mementum.storage.store import Buffer, Stat, Store
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract

CALL_S, CHUNK_S = 7.0, 3.0


class Slow(Around):
    """Every call takes its time, and each chunk of a put too."""

    def __init__(self, clock: ManualClock, look: Callable[[], None]) -> None:
        super().__init__(LocalStore(SimDisk(), "root"))
        self.clock, self.look = clock, look

    def _take(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)
        self.look()

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        def slowly() -> Iterator[Buffer]:
            for chunk in chunks:
                self._take(CHUNK_S)
                yield chunk

        return super().put(key, slowly())

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self._take(CALL_S)
        return super().get(key, start, size)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        self._take(CALL_S)
        return super().folders(prefix)

    def delete(self, key: str) -> None:
        self._take(CALL_S)
        super().delete(key)


class TestStirred(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Stirred(LocalStore(SimDisk(), "root"), Motion(ManualClock()))


def test_what_the_place_takes_is_seen_while_it_takes_it() -> None:
    clock, seen = ManualClock(), list[float]()
    motion = Motion(clock)
    store = Stirred(Slow(clock, lambda: seen.append(motion.stalled_s)), motion)

    def chunks() -> Iterator[bytes]:
        for _ in range(2):
            clock.sleep(100.0)  # whoever makes them takes that long
            seen.append(motion.stalled_s)
            yield b"ab"

    store.put("a", chunks())
    assert seen == [0.0, CHUNK_S, 0.0, CHUNK_S]
    seen.clear()
    assert bytes(store.get("a")) == b"abab"
    assert store.folders() == ()
    store.delete("a")
    assert seen == [CALL_S] * 3
    clock.sleep(100.0)
    assert motion.stalled_s == 0.0


def test_a_call_that_fails_is_over() -> None:
    clock = ManualClock()
    motion = Motion(clock)

    def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        Stirred(Slow(clock, fails), motion).get("a")
    assert motion.stalled_s == 0.0
