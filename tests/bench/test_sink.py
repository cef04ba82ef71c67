"""Tests of the server to which the benchmark of uploads sends: an S3 to our client, of which data is thrown away."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mementum.errors import KeyMissing, KeyTaken, StoreError
from mementum.storage.tiers import open_store
from services import missing

BENCH = Path(__file__).resolve().parents[2] / "bench"
LARGE = 3 << 20


@pytest.fixture(scope="module")
def sinks() -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(BENCH))
    with importlib.import_module("_sink").started() as sink:
        yield sink
    patch.undo()


@pytest.fixture
def store(sinks: Any, request: pytest.FixtureRequest) -> Any:
    options = {"endpoint": sinks.endpoint, "allow_http": "true", "region": "us-east-1"}
    options |= {"access_key_id": "tests", "secret_access_key": "tests", "unsigned_payload": "true"}
    if importlib.util.find_spec("obstore") is None:
        missing("pip install 'mementum[s3]'")
    return open_store(f"s3://bucket/{request.node.name}", options)


def test_small_objects_are_kept_and_created_once(store: Any) -> None:
    store.put("a/one.json", [b"fir", b"st"])
    assert bytes(store.get("a/one.json")) == b"first"
    assert bytes(store.get("a/one.json", 1, 3)) == b"irs"
    assert bytes(store.get("a/one.json", 9, 3)) == b""
    with pytest.raises(KeyTaken):
        store.put("a/one.json", [b"second"])
    with pytest.raises(KeyMissing):
        store.get("a/two.json")
    store.delete("a/one.json")
    with pytest.raises(KeyMissing):
        store.get("a/one.json")


def test_large_objects_are_counted_in_one_request_and_in_parts(sinks: Any, store: Any) -> None:
    store.put("warm", [b"1"])  # the store has been looked at by then
    before = sinks.told()
    store.put("b/one", [b"x" * LARGE])
    store.put("b/parts", [b"x" * LARGE] * 6)
    assert [(stat.key, stat.size) for stat in store.list("b/")] == [("b/one", LARGE), ("b/parts", 6 * LARGE)]
    after = sinks.told()
    assert 7 * LARGE <= after.received - before.received < 7 * LARGE + 10_000
    assert 7 <= after.requests - before.requests <= 10  # one object, then three parts between a beginning and an end
    assert after.cpu_s > before.cpu_s
    with pytest.raises(StoreError):
        store.get("b/one")  # it says that it has it no more, and makes nothing up


def test_folders_and_pages_of_a_list(store: Any) -> None:
    for name in ("c/1/x", "c/1/y", "c/2/x", "d/&<x>"):
        store.put(name, [b"1"])
    assert store.folders() == ("c", "d")
    assert store.folders("c/") == ("1", "2")
    assert [stat.key for stat in store.list()] == ["c/1/x", "c/1/y", "c/2/x", "d/&<x>"]
    assert store.sweep() == ()


def test_a_list_longer_than_one_page_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sink = importlib.import_module("_sink")
    monkeypatch.setattr(sink, "LISTED_MAX", 2)
    held = sink.Objects()
    for number in range(5):
        held.held[f"bucket/{number}"] = sink.Held(size=number, etag='"1"', body=None, metadata={}, time="")
    found, after = [], ""
    for _ in range(3):
        keys, folders, after = held.page("bucket/", "", after)
        assert folders == []
        found += keys
    assert found == [f"bucket/{number}" for number in range(5)]
    assert after == ""
