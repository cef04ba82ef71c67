"""The catalog in Redis beyond the contract: its server, its schema, and what is lost with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog.rebuild import refresh
from mementum.errors import AccessRefused, StoreError, Unreachable, UsageError
from mementum.format import manifest as manifests
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, JOURNAL, OTHER, fact, folder, ids, manifest, only
from services import Server, free_port, start_redis

redis = pytest.importorskip("redis")
from mementum.catalog.redis import RedisCatalog, open_redis  # noqa: E402
from mementum.catalog.redis_server import SCHEMA  # noqa: E402

SECRET = "s3cret-w0rd"


@pytest.fixture
def catalog(redis_url: str) -> Iterator[RedisCatalog]:
    made = open_redis(redis_url)
    yield made
    made.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_url)) as made:
        yield made


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a password."""
    server = start_redis(password=SECRET)
    yield server
    server.stop()


def test_two_prefixes_of_one_database_are_two_catalogs(redis_url: str, catalog: RedisCatalog) -> None:
    catalog.add(HOME, manifest(1), folder(1))
    other = open_redis(redis_url, "another")
    assert (ids(other), other.homes()) == ([], ())
    other.add(HOME, manifest(2), folder(2))
    assert (ids(catalog), ids(other)) == (["c001"], ["c002"])
    other.close()


def test_two_handles_see_the_same(redis_url: str, catalog: RedisCatalog) -> None:
    other = open_redis(redis_url)
    other.add(HOME, manifest(1), folder(1))
    catalog.learn(HOME, JOURNAL, [fact("pin", 1, checkpoint="c001", why="x")], size=9)
    assert only(catalog) == only(other) == other.recovery_point(HOME)
    assert only(other).pinned == "x"
    other.close()
    assert ids(catalog) == ["c001"]


def test_nothing_is_left_of_what_was_forgotten(catalog: RedisCatalog, client: Any) -> None:
    told = [fact("pin", 1, checkpoint="c001", why="x"), fact("metrics", 2, step=10, acc=1.0)]
    catalog.add(HOME, manifest(1), folder(1))
    catalog.learn(HOME, JOURNAL, told, size=9)
    catalog.forget(HOME, folder(1))
    catalog.learn(HOME, JOURNAL, [], size=0)
    below = f"mementum:home:{HOME}"
    assert sorted(client.scan_iter("*")) == sorted(
        key.encode() for key in ("mementum:homes", "mementum:schema", f"{below}:sizes")
    )


def test_a_server_that_has_lost_all_is_filled_again(catalog: RedisCatalog, client: Any, tmp_path: Path) -> None:
    store = LocalStore(PosixDisk(), str(tmp_path))
    store.put(f"{folder(1)}/meta.json", [manifests.render(manifest(1))])
    store.append(JOURNAL, b'{"kind":"pin","time":"2026-11-30T06:10:01.000000Z","checkpoint":"c001"}\n')
    refresh(catalog, HOME, store)
    before = (only(catalog), catalog.read_sizes(HOME), catalog.homes())
    assert before[0].pinned == "no reason was given"
    client.flushall()
    assert (catalog.entries(HOME), catalog.read_sizes(HOME), catalog.homes()) == ([], {}, ())
    refresh(catalog, HOME, store)
    assert (only(catalog), catalog.read_sizes(HOME), catalog.homes()) == before
    assert client.get("mementum:schema") == str(SCHEMA).encode()


def test_a_manifest_that_was_changed_in_the_cache_is_as_if_it_were_not_there(
    catalog: RedisCatalog, client: Any
) -> None:
    catalog.add_all(HOME, [(manifest(seq), folder(seq)) for seq in (1, 2)])
    row = f"mementum:home:{HOME}:row:{folder(2)}"
    client.hset(row, "manifest", client.hget(row, "manifest").replace(b"asked", b"bsked"))
    assert ids(catalog) == ["c001"]
    point = catalog.recovery_point(HOME)
    assert point is not None
    assert point.manifest.id == "c001"
    catalog.learn(HOME, JOURNAL, [fact("pin", 1, checkpoint="c002")], size=9)
    catalog.add(HOME, manifest(2), folder(2))
    assert ids(catalog) == ["c001", "c002"]


def test_a_catalog_of_a_newer_version_is_left_as_it_is(catalog: RedisCatalog, client: Any, redis_url: str) -> None:
    catalog.add(HOME, manifest(1), folder(1))
    client.set("mementum:schema", SCHEMA + 1)
    with pytest.raises(
        StoreError, match=f"newer mementum: it has version {SCHEMA + 1}, here {SCHEMA} is known"
    ) as caught:
        open_redis(redis_url)
    assert caught.value.next_command == "pip install --upgrade mementum"
    client.set("mementum:schema", SCHEMA)
    assert ids(catalog) == ["c001"]


@pytest.mark.parametrize("found", [b"", b"0", b"-1", b"one", b"\xff"])
def test_a_database_of_somebody_else_is_left_alone(client: Any, redis_url: str, found: bytes) -> None:
    client.set("mementum:schema", found)
    with pytest.raises(StoreError, match="no number of a catalog"):
        open_redis(redis_url)
    assert client.get("mementum:schema") == found


def test_keys_of_another_kind_are_a_store_error(catalog: RedisCatalog, client: Any) -> None:
    client.set(f"mementum:home:{HOME}:folders", "text")
    with pytest.raises(StoreError, match=r"cannot be used: .*wrong kind") as caught:
        catalog.entries(HOME)
    assert caught.value.kept == "all checkpoints: the catalog is only a cache of them"


def test_a_server_that_throws_keys_away_is_refused(client: Any, redis_url: str) -> None:
    client.config_set("maxmemory", "100mb")
    try:
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreError, match="throws keys away") as caught:
            open_redis(redis_url)
        assert caught.value.next_command == "redis-cli CONFIG SET maxmemory-policy noeviction"
        client.config_set("maxmemory-policy", "noeviction")
        open_redis(redis_url).close()
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


def test_a_full_server_refuses_and_keeps_what_it_has(catalog: RedisCatalog, client: Any) -> None:
    catalog.add(HOME, manifest(1), folder(1))
    client.config_set("maxmemory", "100kb")
    try:
        with pytest.raises(Unreachable, match="is full"):
            catalog.add(HOME, manifest(2), folder(2))
        assert ids(catalog) == ["c001"]
    finally:
        client.config_set("maxmemory", "0")
    catalog.add(HOME, manifest(2), folder(2))
    assert ids(catalog) == ["c001", "c002"]


@pytest.mark.parametrize("user", ["", ":wrong", "nobody:wrong"])
def test_a_wrong_password_is_told_without_it(guarded: Server, user: str) -> None:
    with pytest.raises(AccessRefused) as caught:
        open_redis(f"redis://{f'{user}@' if user else ''}127.0.0.1:{guarded.port}/0")
    text = str(caught.value)
    assert f"127.0.0.1:{guarded.port}/0 refuses us" in text
    assert "wrong" not in text.replace("WRONGPASS", "")


def test_the_right_password_opens_it(guarded: Server) -> None:
    catalog = open_redis(f"redis://:{SECRET}@127.0.0.1:{guarded.port}/0")
    catalog.add(HOME, manifest(1), folder(1))
    assert ids(catalog) == ["c001"]
    catalog.close()


def test_who_may_not_do_it_is_told(redis_server: Server, redis_url: str, client: Any) -> None:
    client.acl_setuser("reader", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], categories=["+@read"])
    try:
        with pytest.raises(AccessRefused) as caught:
            open_redis(f"redis://reader:{SECRET}@127.0.0.1:{redis_server.port}/0")
        assert "redis://reader@127.0.0.1" in caught.value.message
        assert SECRET not in str(caught.value)
    finally:
        client.acl_deluser("reader")


def test_nobody_who_listens_is_told_at_once() -> None:
    port = free_port()
    with pytest.raises(Unreachable, match=rf"the catalog redis://127.0.0.1:{port}/0 does not answer"):
        open_redis(f"redis://:{SECRET}@127.0.0.1:{port}/0")


@pytest.mark.parametrize("url", ["redis://host:port/0", f"redis://:{SECRET}#x@host/0", "nothing", f"ftp://{SECRET}@h"])
def test_what_is_no_address_is_told_without_its_secrets(url: str) -> None:
    with pytest.raises((UsageError, Unreachable)) as caught:
        open_redis(url)
    assert SECRET not in str(caught.value)


def test_a_server_that_was_gone_is_used_again(redis_server: Server, catalog: RedisCatalog) -> None:
    catalog.add(HOME, manifest(1), folder(1))
    redis_server.kill()
    calls = {
        "add": lambda: catalog.add(HOME, manifest(2), folder(2)),
        "forget": lambda: catalog.forget(HOME, folder(2)),
        "learn": lambda: catalog.learn(HOME, JOURNAL, [fact("pin", 1, checkpoint="c001")], size=9),
        "sizes": lambda: catalog.read_sizes(HOME),
        "entries": lambda: catalog.entries(HOME),
        "recovery": lambda: catalog.recovery_point(HOME),
        "starts": lambda: catalog.starts(HOME),
        "homes": catalog.homes,
    }
    for call in calls.values():
        with pytest.raises(Unreachable):
            call()
    redis_server.start()
    for call in calls.values():
        call()
    assert (ids(catalog), ids(catalog, OTHER), catalog.read_sizes(HOME)) == ([], [], {JOURNAL: 9})


def test_a_server_that_does_not_answer_is_given_up(
    redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mementum.catalog.redis_server.ANSWER_S", 0.2)
    catalog = open_redis(redis_url)
    redis_server.freeze()
    with pytest.raises(Unreachable, match="does not answer"):
        catalog.add(HOME, manifest(1), folder(1))
    redis_server.thaw()
    catalog.add(HOME, manifest(2), folder(2))
    assert "c002" in ids(catalog)
    catalog.close()
