"""An S3 behind a bad wire: lost answers, errors of the server, stalls, cut bodies; nothing is lost, nothing doubled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable
from mementum.storage import objects_client
from mementum.storage.objects import PART_SIZE, ObjectStore, open_objects
from mementum.storage.store import Stat
from services import Server, s3_options_of
from wire import Fault, What, Wire

QUICK = {"read_timeout": "700ms"}  # where a stall is waited for; elsewhere a busy machine must not look like one


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_client, "BACKOFF_S", 0.001)


@pytest.fixture
def plain(s3_url: str, s3_options: dict[str, str]) -> ObjectStore:
    """The same bucket, past the bad wire."""
    return open_objects(s3_url, s3_options)


class Bad:
    """A store behind a wire that spoils the requests that begin so, as often as said."""

    def __init__(self, store: ObjectStore, wire: Wire) -> None:
        self.store, self.wire = store, wire

    def spoil(self, method: str, what: What, *, times: int = 1, code: str = "InternalError", of: str = "") -> None:
        left = iter(range(times))

        def choose(_number: int, line: str) -> Fault | None:
            hit = line.startswith(method) and of in line and next(left, None) is not None
            return Fault(what, code) if hit else None

        self.wire.choose = choose
        self.wire.seen.clear()

    def count(self, method: str, of: str = "") -> int:
        return sum(line.startswith(method) and of in line for line in self.wire.seen)


@pytest.fixture
def bad(s3_url: str, s3_server: Server) -> Iterator[Bad]:
    with _bad(s3_url, s3_server, {}) as made:
        yield made


@pytest.fixture
def hasty(s3_url: str, s3_server: Server) -> Iterator[Bad]:
    with _bad(s3_url, s3_server, QUICK) as made:
        yield made


@contextmanager
def _bad(s3_url: str, s3_server: Server, options: dict[str, str]) -> Iterator[Bad]:
    wire = Wire(s3_server.port)
    with wire.running() as port:
        store = open_objects(s3_url, s3_options_of(port) | options)
        store.put("probed", [b"so that its own conditions are known"])
        yield Bad(store, wire)


@pytest.mark.parametrize("what", ["lost after", "stall"])
def test_a_put_whose_answer_is_lost_is_found(hasty: Bad, plain: ObjectStore, what: What) -> None:
    bad = hasty
    bad.spoil("PUT", what)
    assert bad.store.put("a/meta.json", [b"the ", b"manifest"]) == Stat(key="a/meta.json", size=12)
    assert bad.count("PUT") == 1
    assert bytes(plain.get("a/meta.json")) == b"the manifest"


@pytest.mark.parametrize(("what", "code"), [("lost before", ""), (500, "InternalError"), (503, "SlowDown")])
def test_a_put_that_did_not_happen_is_told_and_tried_again(bad: Bad, plain: ObjectStore, what: What, code: str) -> None:
    bad.spoil("PUT", what, code=code)
    with pytest.raises(Unreachable) as caught:
        bad.store.put("a/meta.json", [b"1"])
    assert code in caught.value.message
    assert bad.count("PUT") == 1
    with pytest.raises(KeyMissing):
        plain.get("a/meta.json")
    bad.store.put("a/meta.json", [b"1"])
    assert bytes(plain.get("a/meta.json")) == b"1"


def test_a_put_that_nobody_can_look_after_knows_itself_later(bad: Bad, plain: ObjectStore) -> None:
    bad.spoil("", "lost after", times=1000)
    with pytest.raises(Unreachable):
        bad.store.put("a/meta.json", [b"ours"])
    bad.spoil("none", 500)
    with pytest.raises(KeyTaken):
        plain.put("a/meta.json", [b"ours"])
    with pytest.raises(KeyTaken):
        bad.store.put("a/meta.json", [b"something else"])
    assert bad.store.put("a/meta.json", [b"ours"]) == Stat(key="a/meta.json", size=4)
    with pytest.raises(KeyTaken):
        bad.store.put("a/meta.json", [b"ours"])


def test_of_a_lost_put_and_another_writer_the_other_has_the_key(bad: Bad, plain: ObjectStore) -> None:
    bad.spoil("PUT", "lost before")
    with pytest.raises(Unreachable):
        bad.store.put("a/meta.json", [b"ours"])
    plain.put("a/meta.json", [b"theirs"])
    with pytest.raises(KeyTaken):
        bad.store.put("a/meta.json", [b"ours"])
    bad.spoil("PUT", "lost before")
    plain.put("b/meta.json", [b"theirs"])
    with pytest.raises(KeyTaken):
        bad.store.put("b/meta.json", [b"ours"])
    assert bytes(plain.get("a/meta.json")) == bytes(plain.get("b/meta.json")) == b"theirs"


def test_a_conflict_without_a_winner_is_tried_again(bad: Bad, plain: ObjectStore) -> None:
    bad.spoil("PUT", 409, code="ConditionalRequestConflict")
    with pytest.raises(Unreachable, match="busy"):
        bad.store.put("a", [b"1"])
    bad.spoil("PUT", 409, code="ConditionalRequestConflict")
    plain.put("b", [b"theirs"])
    with pytest.raises(KeyTaken):
        bad.store.put("b", [b"ours"])


@pytest.mark.parametrize("what", [500, 503, "lost before", "lost after"])
def test_reads_go_on_after_a_fault(bad: Bad, plain: ObjectStore, what: What) -> None:
    data = random.Random(1).randbytes(300_000)
    plain.put("a/data", [data])
    for read, right in (
        (lambda: bytes(bad.store.get("a/data")), data),
        (lambda: bytes(bad.store.get("a/data", 1000, 100_000)), data[1000:101_000]),
        (lambda: bytes(bad.store.get("a/data", 299_000)), data[299_000:]),
        (lambda: [stat.key for stat in bad.store.list("a/")], ["a/data"]),
        (lambda: bad.store.folders(), ("a",)),
    ):
        bad.spoil("GET", what)
        assert read() == right


def test_a_read_that_stalls_is_begun_again(hasty: Bad, plain: ObjectStore) -> None:
    plain.put("a/data", [b"data"])
    hasty.spoil("GET", "stall")
    assert bytes(hasty.store.get("a/data")) == b"data"
    assert hasty.count("GET") == 2


def test_cut_bodies_are_never_taken_for_whole_ones(bad: Bad, plain: ObjectStore) -> None:
    data = random.Random(1).randbytes(300_000)
    plain.put("a/data", [data])
    bad.spoil("GET", "cut")
    assert bytes(bad.store.get("a/data")) == data
    bad.spoil("GET", "cut")
    assert bytes(bad.store.get("a/data", 1000, 100_000)) == data[1000:101_000]
    for read in (lambda: list(bad.store.list()), lambda: bad.store.folders()):
        bad.spoil("GET", "cut")
        with pytest.raises(Unreachable, match="broke off"):  # the client repeats no lists
            read()
        assert read()


@pytest.mark.parametrize("what", [503, "lost after", "cut"])
def test_reads_that_never_succeed_are_told(bad: Bad, plain: ObjectStore, what: What) -> None:
    plain.put("a/data", [bytes(300_000)])
    bad.spoil("GET", what, times=1000)
    for read in (
        lambda: bad.store.get("a/data"),
        lambda: bad.store.get("a/data", 5, 1000),
        lambda: list(bad.store.list()),
        lambda: bad.store.folders(),
    ):
        with pytest.raises(Unreachable):
            read()


def test_deletes_and_replaces_are_repeated(bad: Bad, plain: ObjectStore) -> None:
    plain.put("a", [b"damaged"])
    bad.spoil("PUT", "lost after")
    bad.store.replace("a", [b"whole"])
    assert bytes(plain.get("a")) == b"whole"
    bad.spoil("DELETE", "lost after")
    bad.store.delete("a")
    assert [stat.key for stat in plain.list()] == ["probed"]


def chunks_of(data: bytes) -> Iterator[bytes]:
    return (data[begin : begin + 5_000_000] for begin in range(0, len(data), 5_000_000))


@pytest.mark.parametrize("what", [500, "lost before", "lost after"])
def test_of_a_large_object_only_the_part_is_sent_again(
    bad: Bad, plain: ObjectStore, uploads: Callable[[], int], what: What
) -> None:
    data = random.Random(2).randbytes(2 * PART_SIZE + 1)
    bad.spoil("PUT", what, of="partNumber=2")
    assert bad.store.put("a/large", chunks_of(data)).size == len(data)
    assert bad.count("PUT", "partNumber=1&") == bad.count("PUT", "partNumber=3&") == 1
    assert bad.count("PUT", "partNumber=2&") == 2
    assert bytes(plain.get("a/large")) == data
    assert uploads() == 0


def test_a_large_object_whose_last_answer_is_lost_is_found(
    bad: Bad, plain: ObjectStore, uploads: Callable[[], int]
) -> None:
    data = random.Random(3).randbytes(PART_SIZE + 1)
    bad.spoil("POST", "lost after", of="uploadId=")
    assert bad.store.put("a/large", chunks_of(data)).size == len(data)
    assert bytes(plain.get("a/large")) == data
    assert uploads() == 0
    with pytest.raises(KeyTaken):
        bad.store.put("a/large", chunks_of(data))


@pytest.mark.parametrize("of", ["uploads=", "partNumber=2", "uploadId="])
def test_a_large_object_that_cannot_be_sent_is_not_there(
    bad: Bad, plain: ObjectStore, uploads: Callable[[], int], of: str
) -> None:
    data = random.Random(4).randbytes(2 * PART_SIZE + 1)
    method = "PUT" if of.startswith("part") else "POST"
    bad.spoil(method, 503, times=1000, code="SlowDown", of=of)
    with pytest.raises(Unreachable, match="SlowDown"):
        bad.store.put("a/large", chunks_of(data))
    assert [stat.key for stat in plain.list()] == ["probed"]
    assert uploads() == 0
    bad.spoil("none", 500)
    assert bad.store.put("a/large", chunks_of(data)).size == len(data)
    assert bytes(plain.get("a/large")) == data


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (403, "AccessDenied", AccessRefused, "AccessDenied"),
        (403, "InvalidAccessKeyId", AccessRefused, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch", AccessRefused, "SignatureDoesNotMatch"),
        (400, "ExpiredToken", AccessRefused, "ExpiredToken"),
        (401, "Unauthorized", AccessRefused, "Unauthorized"),
        (403, "RequestTimeTooSkewed", StoreError, "clock differs"),
        (404, "NoSuchBucket", StoreError, "there is no such bucket"),
        (301, "PermanentRedirect", StoreError, "another region"),
        (400, "AuthorizationHeaderMalformed", StoreError, "another region"),
        (501, "NotImplemented", StoreError, "501 NotImplemented"),
        (400, "EntityTooLarge", StoreError, "400 EntityTooLarge"),
        (429, "TooManyRequests", Unreachable, "429 TooManyRequests"),
    ],
)
def test_what_the_server_refuses_is_named(bad: Bad, status: int, code: str, kind: type[StoreError], says: str) -> None:
    for method, call in (("PUT", lambda: bad.store.put("a", [b"1"])), ("GET", lambda: bad.store.get("probed"))):
        bad.spoil(method, status, code=code, times=1000)
        with pytest.raises(StoreError, match=says) as caught:
            call()
        assert type(caught.value) is kind
        assert "s3://bucket-0/some/prefix" in caught.value.message
        assert caught.value.kept is not None
        assert caught.value.next_command is not None


def test_a_server_that_is_gone_and_comes_back(s3_url: str, s3_options: dict[str, str], s3_server: Server) -> None:
    store = open_objects(s3_url, s3_options)
    store.put("a", [b"1"])
    s3_server.kill()
    for call in (
        lambda: store.put("b", [b"1"]),
        lambda: store.put("c", chunks_of(bytes(PART_SIZE + 1))),
        lambda: store.get("a"),
        lambda: list(store.list()),
        lambda: store.folders(),
        lambda: store.delete("a"),
        lambda: store.replace("a", [b"2"]),
        lambda: store.sweep(),
        lambda: open_objects(s3_url, s3_options).put("d", [b"1"]),
    ):
        with pytest.raises(Unreachable, match="no connection to it"):
            call()
    s3_server.start()
    with pytest.raises(StoreError, match="no such bucket"):  # which held all in memory
        store.put("b", [b"1"])


def test_a_server_that_hangs(
    s3_url: str, s3_options: dict[str, str], s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_client, "RETRIES", 0)
    store = open_objects(s3_url, s3_options | QUICK)
    store.put("a", [b"1"])
    s3_server.freeze()
    with pytest.raises(Unreachable, match="did not answer in time"):
        store.put("b", [b"1"])
    with pytest.raises(Unreachable, match="did not answer in time"):
        store.get("a")
    s3_server.thaw()
    assert bytes(store.get("a")) == b"1"
    assert store.put("b", [b"1"]).size == 1  # whether its first request has come through by now or not


def test_whatever_happens_on_the_wire(bad: Bad, plain: ObjectStore, rng: random.Random) -> None:
    """Many puts and deletes, each tried until it succeeds: then all that was put is there, once, and nothing else."""
    whats: tuple[What, ...] = ("lost before", "lost after", "cut", 500, 503, 409)
    held = {"probed": b"so that its own conditions are known"}

    def choose(_number: int, _line: str) -> Fault | None:
        return Fault(rng.choice(whats)) if rng.random() < 0.3 else None

    bad.wire.choose = choose
    for number in range(60):
        key, body = f"step_{number:03}/meta.json", rng.randbytes(100)
        _until_done(lambda key=key, body=body: bad.store.put(key, [body]))
        held[key] = body
        if rng.random() < 0.3:
            gone = rng.choice(sorted(held))
            _until_done(lambda gone=gone: bad.store.delete(gone))
            del held[gone]
    assert {stat.key: bytes(plain.get(stat.key)) for stat in plain.list()} == held
    assert len(bad.wire.seen) > 100


def _until_done(call: Callable[[], object]) -> None:
    for _ in range(50):
        try:
            call()
        except Unreachable:
            continue
        return
    raise AssertionError("it never succeeds")
