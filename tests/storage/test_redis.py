"""The store in a Redis: the contract of stores, one winner, lost answers, and what a server's refusal becomes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable, UsageError
from mementum.storage import redis as stores
from mementum.storage.redis import RedisStore
from mementum.storage.store import Stat, Store
from mementum.testing.store_contract import StoreContract
from services import Server, start_redis
from wire import RawWire


class TestRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_url: str) -> None:
        self.url = redis_url

    def make_store(self, tmp_path: Path) -> Store:
        return RedisStore(f"{self.url}/a/prefix")


def test_prefixes_are_stores_of_their_own(redis_url: str) -> None:
    one, other, none = RedisStore(f"{redis_url}/one"), RedisStore(f"{redis_url}/one/more"), RedisStore(redis_url)
    for store in (one, other, none):
        assert list(store.list()) == []
        store.put("more/a", [repr(store).encode()])
    for store in (one, other, none):
        assert bytes(store.get("more/a")) == repr(store).encode()


def test_large_objects_are_refused(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "OBJECT_SIZE_MAX", 2 << 20)
    store = RedisStore(redis_url)
    assert store.put("a", [bytes(1 << 20)] * 2).size == 2 << 20
    for put in (store.put, store.replace):
        with pytest.raises(StoreError, match="b has more than 2 MiB") as caught:
            put("b", [bytes(1 << 20)] * 3)
        assert caught.value.next_command is not None
        assert "levels: [2]" in caught.value.next_command
    assert [stat.key for stat in store.list()] == ["a"]


def test_a_long_list_comes_in_pages(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PAGE", 7)
    store = RedisStore(redis_url)
    keys = [f"{number % 5}/step_{number:04}/meta.json" for number in range(60)] + ["0", "0/z", "9"]
    for key in random.Random(1).sample(keys, len(keys)):
        store.put(key, [key.encode()])
    assert [(stat.key, stat.size) for stat in store.list()] == [(key, len(key)) for key in sorted(keys)]
    assert [stat.key for stat in store.list("3/")] == sorted(key for key in keys if key.startswith("3/"))
    assert store.folders() == ("0", "1", "2", "3", "4")
    assert store.folders("3/") == tuple(sorted(key.split("/")[1] for key in keys if key.startswith("3/")))
    assert list(store.list("\ud800")) == []


def test_of_many_writers_of_one_key_one_wins(redis_url: str) -> None:
    together = threading.Barrier(4, timeout=30)
    won: list[tuple[int, int]] = []

    def put(writer: int) -> None:
        store = RedisStore(redis_url)
        for turn in range(20):
            together.wait()
            try:
                store.put(f"attempts/{turn}", [f"{writer}".encode()])
            except KeyTaken:
                continue
            won.append((turn, writer))

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turn for turn, _ in won) == list(range(20))
    store = RedisStore(redis_url)
    for turn, writer in won:
        assert bytes(store.get(f"attempts/{turn}")) == f"{writer}".encode()


def test_objects_are_whole_while_others_delete_and_put_them(redis_url: str) -> None:
    """What is listed has its size and its bytes, or is gone."""
    ended = threading.Event()

    def churn() -> None:
        store = RedisStore(redis_url)
        for turn in range(300):
            store.put("a/b", [bytes([turn % 256]) * (turn + 1)])
            store.delete("a/b")
        ended.set()

    thread = threading.Thread(target=churn)
    thread.start()
    store, seen = RedisStore(redis_url), 0
    while not ended.is_set():
        try:
            data = bytes(store.get("a/b"))
        except KeyMissing:
            continue
        assert data == bytes([(len(data) - 1) % 256]) * len(data)
        seen += 1
    thread.join()
    assert seen > 0
    assert list(store.list()) == []


@pytest.fixture
def wire(redis_server: Server) -> RawWire:
    return RawWire(redis_server.port)


def once(what: str, command: bytes = b"EVAL") -> Callable[[bytes], str | None]:
    left = iter([what])
    return lambda request: next(left, None) if command in request else None


def test_a_put_whose_answer_is_lost_is_found(redis_url: str, wire: RawWire) -> None:
    plain = RedisStore(redis_url)
    with wire.running() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}/0")
        wire.choose = once("lost after")
        assert store.put("a", [b"1"]) == Stat(key="a", size=1)
        assert bytes(plain.get("a")) == b"1"
        wire.choose = once("lost before")
        with pytest.raises(Unreachable):
            store.put("b", [b"1"])
        with pytest.raises(KeyMissing):
            plain.get("b")
        assert store.put("b", [b"1"]).size == 1
        with pytest.raises(KeyTaken):
            store.put("b", [b"1"])


def test_a_put_that_nobody_can_look_after_knows_itself_later(redis_url: str, wire: RawWire) -> None:
    plain = RedisStore(redis_url)
    with wire.running() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}/0")
        store.put("before", [b"1"])
        wire.choose = lambda _request: "lost after"
        with pytest.raises(Unreachable):
            store.put("a", [b"ours"])
        wire.choose = lambda _request: None
        for puts in (lambda: plain.put("a", [b"ours"]), lambda: store.put("a", [b"another"])):
            with pytest.raises(KeyTaken):
                puts()
        assert store.put("a", [b"ours"]).size == 4
        with pytest.raises(KeyTaken):
            store.put("a", [b"ours"])


def test_a_lost_put_and_another_writer(redis_url: str, wire: RawWire) -> None:
    with wire.running() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}/0")
        RedisStore(redis_url).put("a", [b"ours"])
        wire.choose = once("lost before")
        with pytest.raises(KeyTaken):
            store.put("a", [b"ours"])


def test_a_server_that_is_gone_and_comes_back(redis_url: str, redis_server: Server) -> None:
    store = RedisStore(redis_url)
    store.put("a", [b"1"])
    redis_server.kill()
    for call in (
        lambda: store.put("b", [b"1"]),
        lambda: store.replace("b", [b"1"]),
        lambda: store.get("a"),
        lambda: list(store.list()),
        lambda: store.folders(),
        lambda: store.delete("a"),
    ):
        with pytest.raises(Unreachable, match="no connection"):
            call()
    redis_server.start()
    assert store.put("b", [b"1"]).size == 1
    assert [stat.key for stat in store.list()] == ["b"]  # the tests' Redis keeps nothing over a kill


def test_a_server_that_hangs(redis_url: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "ANSWER_S", 0.1)
    store = RedisStore(redis_url)
    store.put("a", [b"1"])
    redis_server.freeze()
    for call in (lambda: store.put("b", [b"1"]), lambda: store.get("a")):
        with pytest.raises(Unreachable, match="did not answer in time"):
            call()
    redis_server.thaw()
    assert bytes(store.get("a")) == b"1"
    assert store.put("b", [b"1"]).size == 1  # whether its first request has come through by now or not


def test_a_full_server_is_told(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    store = RedisStore(redis_url)
    store.put("a", [b"1"])
    client.config_set("maxmemory", "100kb")
    try:
        with pytest.raises(StoreError, match="memory is used up") as caught:
            store.put("b", [b"1"])
        assert not isinstance(caught.value, Unreachable)
    finally:
        client.config_set("maxmemory", "0")
        client.close()
    assert bytes(store.get("a")) == b"1"


def test_replicas_that_are_not_there_are_told(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "WAIT_MS", 10)
    store = RedisStore(redis_url, {"replicas": "1"})
    for _ in range(2):  # the second time it finds its own
        with pytest.raises(Unreachable, match="a has reached 0 of 1 replicas"):
            store.put("a", [b"1"])
    with pytest.raises(Unreachable, match="0 of 1 replicas"):
        store.replace("a", [b"1"])


def test_a_wrong_password_is_told_and_never_shown() -> None:
    server = start_redis(password="the right one")
    try:
        address = f"127.0.0.1:{server.port}/0"
        right = [
            RedisStore(f"redis://:the%20right%20one@{address}"),
            RedisStore(f"redis://{address}/b", {"password": "the right one"}),
        ]
        for store in right:
            assert store.put("a", [b"1"]).size == 1
            assert "right" not in repr(store)
        for wrong in (RedisStore(f"redis://{address}"), RedisStore(f"redis://user:hunter2@{address}")):
            for call in (lambda store=wrong: store.put("b", [b"1"]), lambda store=wrong: list(store.list())):
                with pytest.raises(AccessRefused, match=r"refuses our user or password") as caught:
                    call()
                assert "hunter2" not in str(caught.value)
                assert f"redis://{address}" in caught.value.message
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("redis://", {}, "is not like"),
        ("redis://host:6379/zero", {}, "is not like"),
        ("redis://host:6379/-1", {}, "is not like"),
        ("redis://host:99999/0", {}, "is not like"),
        ("redis://host/0?db=3", {}, "is not like"),
        ("redis://host", {"replicas": "many"}, "is not like"),
        ("redis://user:hunter2@host", {"region": "x"}, "there is no option 'region'"),
    ],
)
def test_what_is_no_redis_is_refused(url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        RedisStore(url, options)
    assert "hunter2" not in str(caught.value)
