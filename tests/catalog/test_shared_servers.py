"""Servers that a run tells of its checkpoints go away before, during and after each call, and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mementum.catalog.catalog import Catalog
from mementum.catalog.servers import open_server
from mementum.events import Failed, Note
from mementum.testing.catalog_contract import HOME, folder, ids, manifest
from services import Server
from shared_roots import START, WAIT_S, Rooted

CALLS: dict[str, Callable[[Rooted], object]] = {
    "add": lambda rooted: rooted.add(9),
    "add again": lambda rooted: rooted.catalog.add(HOME, manifest(2), folder(2)),
    "forget": lambda rooted: rooted.forget(2),
    "learn": lambda rooted: rooted.pin(3, "asked"),
    "begin": lambda rooted: rooted.catalog.begin(HOME, START),
}


@pytest.fixture
def redis_rooted(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rooted]:
    monkeypatch.setattr("mementum.catalog.redis_server.ANSWER_S", 0.5)
    made = Rooted(tmp_path, lambda: open_server(redis_url))
    made.live(1)
    yield made
    made.catalog.close()


def require_told(rooted: Rooted, url: str) -> None:
    assert rooted.catalog.drain(WAIT_S)  # then it answers
    other: Catalog = open_server(url)
    rooted.require_same(other)
    other.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_redis_that_loses_all_knows_all_again(
    redis_rooted: Rooted, redis_server: Server, redis_url: str, call: str, when: str
) -> None:
    require_told(redis_rooted, redis_url)
    if when == "before":
        redis_server.kill()
        CALLS[call](redis_rooted)
    elif when == "during":
        redis_server.freeze()
        CALLS[call](redis_rooted)
        threading.Event().wait(0.02)  # the message is on its way, or the answer is waited for
        redis_server.kill()
    else:
        CALLS[call](redis_rooted)
        require_told(redis_rooted, redis_url)
        redis_server.kill()
    local = ids(redis_rooted.catalog)
    redis_server.start()
    redis_rooted.add(20)
    require_told(redis_rooted, redis_url)
    assert ids(redis_rooted.catalog) == [*local, "c020"]


def test_a_redis_that_is_gone_all_the_time_stops_nothing(
    redis_rooted: Rooted, redis_server: Server, redis_url: str
) -> None:
    require_told(redis_rooted, redis_url)
    redis_server.kill()
    for first in range(10, 60, 10):
        redis_rooted.live(first)
    assert len(ids(redis_rooted.catalog)) == 12
    assert not redis_rooted.catalog.drain(0.05)
    redis_server.start()
    require_told(redis_rooted, redis_url)
    lost, found = redis_rooted.events
    assert isinstance(lost, Failed)
    assert isinstance(found, Note)


def test_a_postgres_that_dies_and_comes_back_has_missed_nothing(
    tmp_path: Path, postgres_server: Server, postgres_url: str
) -> None:
    rooted = Rooted(tmp_path, lambda: open_server(postgres_url))
    rooted.live(1)
    require_told(rooted, postgres_url)
    postgres_server.kill()
    for number, call in enumerate(CALLS.values()):
        call(rooted)
        rooted.live(100 + 10 * number)
    postgres_server.start()
    require_told(rooted, postgres_url)
    postgres_server.kill()  # nobody is talking to it
    postgres_server.start()
    rooted.add(300)
    require_told(rooted, postgres_url)
    rooted.catalog.close()
    assert [type(event) for event in rooted.events] == [Failed, Note]


def test_two_runs_tell_one_server(tmp_path: Path, redis_url: str) -> None:
    both = [Rooted(tmp_path / name, lambda: open_server(redis_url)) for name in ("a", "b")]
    for first in (1, 11, 21):
        for rooted in both:
            rooted.live(first)
    for rooted in both:
        require_told(rooted, redis_url)
        rooted.catalog.close()
    other = open_server(redis_url)
    assert other.homes() == tuple(sorted(rooted.name for rooted in both))
    other.close()
    assert all(rooted.events == [] for rooted in both)
