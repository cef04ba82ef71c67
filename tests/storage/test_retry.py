"""What may pass is tried again, lost answers are found out, and nothing is lost, doubled or half."""

import contextlib
import random
from pathlib import Path

import pytest

from mementum.clock import ManualClock
from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable, UsageError
from mementum.storage import retry as retry_module
from mementum.storage.local import LocalStore
from mementum.storage.retry import FIRST_WAIT_S, WAIT_S_MAX, Retrying
from mementum.storage.store import Stat, Store
from mementum.testing.faulty_store import FaultyStore
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract

ONCE = ("refused", "lost answer", "stall", "throttled")  # what a put of an iterator comes through


class TestRetryingAFaultyStore(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        clock, rng = ManualClock(), random.Random(tmp_path.name)
        faulty = FaultyStore(LocalStore(SimDisk(), "root"), rng.choice, faults=(None, *ONCE), clock=clock)
        return Retrying(faulty, clock, attempts=100, patience_s=1e6, rng=rng)


class Scripted:
    """A store whose calls have the given faults in turn, then none."""

    def __init__(self, *faults: str | None, attempts: int = 8, patience_s: float = 120.0) -> None:
        self.inner, self.clock = LocalStore(SimDisk(), "root"), ManualClock()
        self._coming = list(faults)
        self.told: list[tuple[str, float]] = []
        self.faulty = FaultyStore(self.inner, self._choose, faults=(None, *faults), clock=self.clock)
        self.store = Retrying(self.faulty, self.clock, self._tell, attempts=attempts, patience_s=patience_s)

    def _choose(self, options):
        if options == (False, True):
            return True  # break off at once
        return self._coming.pop(0) if self._coming else None

    def _tell(self, error: Unreachable, wait_s: float) -> None:
        self.told.append((error.message, wait_s))

    @property
    def all_came(self) -> bool:
        return not self._coming


def test_each_try_is_told_and_waits_longer():
    at = Scripted(*["refused"] * 4, None)
    before = random.getstate()
    assert at.store.put("a", [b"1"]) == Stat(key="a", size=1)
    assert random.getstate() == before  # the program's random numbers are part of its state
    assert [message for message, _ in at.told] == ["a: the server is busy"] * 4
    waits = [wait_s for _, wait_s in at.told]
    assert all(FIRST_WAIT_S * 2**n / 2 <= wait_s <= FIRST_WAIT_S * 2**n for n, wait_s in enumerate(waits))
    assert at.clock.monotonic() == pytest.approx(sum(waits))


def test_each_call_that_succeeds_is_told_and_no_other():
    at, answered = Scripted(*["refused"] * 3), []
    store = Retrying(at.faulty, at.clock, answered=lambda: answered.append(at.clock.monotonic()), attempts=2)
    with pytest.raises(Unreachable):
        store.get("a")
    assert answered == []
    store.put("a", [b"1"])
    assert store.folders() == ()
    assert answered == [at.clock.monotonic()] * 2


def test_after_so_many_tries_the_last_error_is_raised():
    at = Scripted(*["refused"] * 3, attempts=3)
    with pytest.raises(Unreachable, match="a: the server is busy"):
        at.store.get("a")
    assert len(at.told) == 2


def test_patience_ends_before_a_wait_that_is_too_long():
    at = Scripted(*["refused", "refused", "refused", "refused", None] * 20, attempts=1000, patience_s=1.0)
    with pytest.raises(Unreachable):
        at.store.get("a")
    assert at.clock.monotonic() <= 1.0
    assert 1 <= len(at.told) <= 3


def test_waits_have_a_bound():
    store = Retrying(LocalStore(SimDisk(), "root"), ManualClock(), rng=random.Random(1))
    assert max(store._wait_s(attempt) for attempt in range(1, 2000)) <= WAIT_S_MAX
    assert min(store._wait_s(2000) for _ in range(100)) >= WAIT_S_MAX / 2


@pytest.mark.parametrize(("attempts", "patience_s"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_limits_that_are_none_are_refused(attempts, patience_s):
    with pytest.raises(UsageError):
        Retrying(LocalStore(SimDisk(), "root"), ManualClock(), attempts=attempts, patience_s=patience_s)


def test_what_does_not_pass_is_not_tried_again():
    at = Scripted("denied")
    with pytest.raises(AccessRefused):
        at.store.put("a", [b"1"])
    with pytest.raises(KeyMissing):
        at.store.get("a")
    assert (at.told, at.clock.monotonic()) == ([], 0.0)


@pytest.mark.parametrize("make", [list, iter])
def test_a_put_whose_answer_was_lost_is_ours(make):
    at = Scripted("lost answer", "refused", None)
    assert at.store.put("a", make([b"we", b"ights"])) == Stat(key="a", size=7)
    assert bytes(at.inner.get("a")) == b"weights"
    assert at.faulty.seen["lost answer"] == 1


@pytest.mark.parametrize("make", [list, iter])
@pytest.mark.parametrize("theirs", [b"weighty", b"weight", b"weights!", b""])
def test_what_another_has_put_is_taken(make, theirs):
    at = Scripted("refused")
    at.inner.put("a", [theirs])
    with pytest.raises(KeyTaken):
        at.store.put("a", make([b"we", b"ights"]))
    assert bytes(at.inner.get("a")) == theirs


def test_a_key_that_is_taken_at_the_first_try_is_not_read():
    at = Scripted(None, "denied")
    at.inner.put("a", [b"1"])
    with pytest.raises(KeyTaken):
        at.store.put("a", [b"1"])
    assert not at.all_came


def test_an_answer_that_arrives_while_we_look_is_ours():
    at = Scripted()

    class Late(FaultyStore):
        """The first put is done only when the second one is sent."""

        def put(self, key, chunks):
            if not at.told:
                raise Unreachable(key, "no answer")
            at.inner.put(key, chunks)
            return at.inner.put(key, chunks)

    store = Retrying(Late(at.inner, lambda options: None), at.clock, at._tell)
    assert store.put("a", [b"1", b"2"]) == Stat(key="a", size=2)
    at.told.clear()
    with pytest.raises(KeyTaken):
        store.put("a", [b"1", b"3"])


def test_a_put_that_was_cut_is_sent_again_from_a_list_and_not_from_an_iterator():
    at = Scripted("cut")
    assert at.store.put("a", [b"1", b"2"]).size == 2
    assert bytes(at.inner.get("a")) == b"12"
    at = Scripted("cut")
    chunks = iter([b"1", b"2"])
    with pytest.raises(Unreachable, match="was closed"):
        at.store.put("a", chunks)
    assert list(at.inner.list()) == []
    assert len(at.told) == 1  # it was looked for once


def test_an_iterator_that_was_not_begun_is_sent_again():
    at = Scripted("refused", "refused", None)
    assert at.store.put("a", iter([b"1", b"2"])).size == 2
    assert bytes(at.inner.get("a")) == b"12"
    assert at.all_came


@pytest.mark.parametrize("fault", ["lost answer", "refused", "cut"])
def test_a_replace_is_done_once_more_from_a_list(fault):
    at = Scripted(fault)
    at.inner.put("a", [b"damaged"])
    assert at.store.replace("a", [b"we", b"ights"]) == Stat(key="a", size=7)
    assert bytes(at.inner.get("a")) == b"weights"


def test_a_replace_from_an_iterator_is_looked_for():
    at = Scripted("lost answer", None, None, "cut")  # replace, list, get; replace
    at.inner.put("a", [b"damaged"])
    assert at.store.replace("a", iter([b"we", b"ights"])) == Stat(key="a", size=7)
    with pytest.raises(Unreachable):
        at.store.replace("a", iter([b"we", b"aker"]))
    assert bytes(at.inner.get("a")) == b"weights"


class Spent:
    """Chunks that look as if they could be repeated."""

    def __init__(self) -> None:
        self._left = [b"12", b"3"]

    def __iter__(self):
        while self._left:
            yield self._left.pop(0)


class Forgetful(LocalStore):
    """It loses what its first put has put, after so many bytes."""

    def __init__(self, after: int) -> None:
        super().__init__(SimDisk(), "root")
        self._after: int | None = after

    def put(self, key, chunks):
        after, self._after = self._after, None
        if after is None:
            return super().put(key, chunks)
        sent = 0
        for chunk in chunks:
            sent += len(chunk)
            if sent == after:
                break
        else:
            assert sent < after
        raise Unreachable(key, "it was lost")


@pytest.mark.parametrize(("after", "second"), [(2, 1), (4, 0)])
def test_chunks_that_come_out_otherwise_the_second_time_are_not_kept(after, second):
    inner = Forgetful(after)
    with pytest.raises(UsageError, match=f"{min(after, 3)} bytes came at one try and {second} at another"):
        Retrying(inner, ManualClock()).put("a", Spent())
    assert list(inner.list()) == []


def test_objects_are_compared_piece_by_piece(monkeypatch):
    monkeypatch.setattr(retry_module, "PIECE", 10)
    data = random.Random(3).randbytes(25)
    for make in (list, iter):
        at = Scripted("lost answer")
        assert at.store.put("a", make([data[:7], data[7:]])).size == 25
        for wrong in (data[:24] + bytes([data[24] ^ 1]), data[:24], data + b"1"):
            at = Scripted("refused")
            at.inner.put("a", [wrong])
            with pytest.raises(KeyTaken):
                at.store.put("a", make([data]))


def test_a_get_that_brings_too_little_is_repeated():
    at = Scripted("cut", None, None, "cut")  # get, list, get; get
    at.inner.put("a", [b"0123456789"])
    assert bytes(at.store.get("a", 2, 6)) == b"234567"
    assert bytes(at.store.get("a", 8, 6)) == b"89"
    assert [message for message, _ in at.told] == [
        "a: the answer broke off after 3 bytes",
        "a: the answer broke off after 1 bytes",
    ]


def test_a_list_goes_on_behind_what_was_told(monkeypatch):
    monkeypatch.setattr(retry_module, "PAGE", 2)
    keys = [f"k{n}" for n in range(7)]
    at = Scripted()
    for key in keys:
        at.inner.put(key, [b"1"])
    rng = random.Random(6)
    for _ in range(20):
        store = Retrying(FaultyStore(at.inner, rng.choice, faults=(None, "cut", "refused")), at.clock, attempts=100)
        assert [stat.key for stat in store.list()] == keys
        assert [stat.key for stat in store.list("k3")] == ["k3"]


@pytest.mark.parametrize("run", range(4))
def test_nothing_is_lost_or_doubled_or_half(seed, run):
    """Against a model: each call is done or not, as its answer says; where there is none, it is one of both."""
    rng = random.Random(f"{seed} {run}")
    clock, inner = ManualClock(), LocalStore(SimDisk(), "root")
    faulty = FaultyStore(inner, rng.choice, clock=clock)
    store = Retrying(faulty, clock, attempts=6, patience_s=1e6, rng=rng)
    model: dict[str, bytes] = {}
    given_up = 0
    for _ in range(250):
        key, data = rng.choice(("a", "a/b", "f/c", "f/d", "g/h/e")), rng.randbytes(rng.randrange(30))
        if key in ("a", "a/b") and {"a", "a/b"} - {key} & set(model):
            continue  # a folder's name and a file's
        at = rng.randrange(len(data) + 1)
        chunks = rng.choice((list, iter))([data[:at], data[at:]])
        after = dict(model)
        call = rng.choice(("put", "put", "put", "replace", "delete", "get", "list", "folders"))
        try:
            if call == "put":
                after[key] = data
                with contextlib.suppress(KeyTaken):
                    assert store.put(key, chunks) == Stat(key=key, size=len(data))
                    assert key not in model
                    model = after
            elif call == "replace":
                after[key] = data
                assert store.replace(key, chunks).size == len(data)
                model = after
            elif call == "delete":
                after.pop(key, None)
                store.delete(key)
                model = after
            elif call == "get":
                with contextlib.suppress(KeyMissing):
                    start, size = rng.randrange(20), rng.choice((None, 5, 100))
                    found = bytes(store.get(key, start, size))
                    assert found == model[key][start : None if size is None else start + size]
            elif call == "list":
                assert [(stat.key, stat.size) for stat in store.list()] == sorted(
                    (key, len(data)) for key, data in model.items()
                )
            else:
                assert {key.partition("/")[0] for key in model if "/" in key} <= set(store.folders())
        except Unreachable:
            given_up += 1
        there = {stat.key: bytes(inner.get(stat.key)) for stat in inner.list()}
        assert there in (model, after)
        if there != model:
            assert call in ("put", "replace", "delete")
            model = there
        assert inner.sweep() == ()
    assert min(faulty.seen.values()) > 10
    assert given_up < 60


def test_any_other_error_of_a_store_is_raised_at_once():
    class Full(LocalStore):
        def put(self, key, chunks):
            raise StoreError(key, "the disk is full")

    clock = ManualClock()
    with pytest.raises(StoreError, match="the disk is full"):
        Retrying(Full(SimDisk(), "root"), clock).put("a", [b"1"])
    assert clock.monotonic() == 0.0
