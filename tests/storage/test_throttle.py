"""A throttled store keeps the contract of a store, and its rate."""

from pathlib import Path

import pytest

from mementum.clock import ManualClock
from mementum.errors import UsageError
from mementum.storage.local import LocalStore
from mementum.storage.pace import Pace
from mementum.storage.retry import Retrying
from mementum.storage.store import Store
from mementum.storage.throttle import Throttled
from mementum.testing.faulty_store import FaultyStore
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract


class TestThrottled(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Throttled(LocalStore(SimDisk(), "root"), Pace(1000.0, ManualClock()))


def test_puts_and_replaces_share_the_rate_and_gets_have_none():
    clock = ManualClock()
    store = Throttled(LocalStore(SimDisk(), "root"), Pace(100.0, clock))
    store.put("a", [bytes(60), bytes(40)])  # a second's worth is there at once
    assert clock.monotonic() == 0.0
    store.put("b", [bytes(50)])
    assert clock.monotonic() == pytest.approx(0.5)
    store.replace("b", [bytes(10), bytes(15)])
    assert clock.monotonic() == pytest.approx(0.75)
    assert bytes(store.get("a", 10, 90)) == bytes(90)
    assert [stat.size for stat in store.list("a")] == [100]
    assert clock.monotonic() == pytest.approx(0.75)


def test_bytes_that_are_sent_again_are_counted_again():
    clock = ManualClock()
    once = iter(["lost answer"] + [None] * 10)
    faulty = FaultyStore(LocalStore(SimDisk(), "root"), lambda options: next(once))
    store = Throttled(Retrying(faulty, clock), Pace(100.0, clock))
    store.put("a", [bytes(50)] * 4)
    assert bytes(store.get("a", size=1)) == b"\0"
    assert clock.monotonic() == pytest.approx(3.01, abs=0.26)  # twice 200 at 100 a second, less a burst; one short wait


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(bytes_per_s):
    with pytest.raises(UsageError, match="a number of bytes per second above 0"):
        Throttled(LocalStore(SimDisk(), "root"), Pace(bytes_per_s, ManualClock()))
