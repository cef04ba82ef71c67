"""Object stores, against an S3: the contract of stores, large objects, keys, classes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable, UsageError
from mementum.storage import objects
from mementum.storage.objects import PART_SIZE, open_objects
from mementum.storage.store import Buffer, Stat, Store
from mementum.testing.store_contract import StoreContract
from services import Server, s3_options_of
from wire import Wire


class TestS3(StoreContract):
    @pytest.fixture(autouse=True)
    def buckets(self, make_s3: Callable[[], str], s3_options: dict[str, str]) -> None:
        self.make_s3, self.options = make_s3, s3_options

    def make_store(self, tmp_path: Path) -> Store:
        return open_objects(self.make_s3(), self.options)


@pytest.fixture
def bucket(s3_url: str, s3_options: dict[str, str]) -> S3Store:
    """The bucket, seen past our store."""
    own = {name: value for name, value in s3_options.items() if name != "allow_http"}
    return S3Store.from_url(s3_url, config=own, client_options={"allow_http": True})


def large(seed: int) -> tuple[bytes, list[bytes]]:
    """Two parts and a bit, in uneven chunks."""
    data = random.Random(seed).randbytes(2 * PART_SIZE + 1000)
    return data, [data[begin : begin + 3_000_001] for begin in range(0, len(data), 3_000_001)]


def test_a_large_object_goes_up_in_parts(s3_url: str, s3_options: dict[str, str], bucket: S3Store) -> None:
    store = open_objects(s3_url, s3_options)
    data, chunks = large(1)
    assert store.put("a/large", iter(chunks)) == Stat(key="a/large", size=len(data))
    assert bytes(store.get("a/large")) == data
    assert bytes(store.get("a/large", PART_SIZE - 5, 10)) == data[PART_SIZE - 5 : PART_SIZE + 5]
    etag = obstore.head(bucket, "a/large")["e_tag"]
    assert etag is not None
    assert etag.strip('"').endswith("-3")  # how S3 marks an object of three parts
    with pytest.raises(KeyTaken):
        store.put("a/large", iter(chunks))
    other, other_chunks = large(2)
    assert store.replace("a/large", iter(other_chunks)) == Stat(key="a/large", size=len(other))
    assert bytes(store.get("a/large")) == other


def test_the_owner_of_chunks_may_use_them_again_in_large_objects(s3_url: str, s3_options: dict[str, str]) -> None:
    store = open_objects(s3_url, s3_options)

    def chunks() -> Iterator[Buffer]:
        buffer = bytearray(1 << 20)
        for number in range(20):
            buffer[:] = bytes([number]) * len(buffer)
            yield buffer

    store.put("a", chunks())
    assert bytes(store.get("a")) == b"".join(bytes([number]) * (1 << 20) for number in range(20))


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_large_put_that_fails_leaves_nothing(
    s3_url: str, s3_options: dict[str, str], error: type[BaseException], uploads: Callable[[], int]
) -> None:
    store = open_objects(s3_url, s3_options)

    def chunks() -> Iterator[Buffer]:
        yield from large(1)[1]
        raise error("no more")

    with pytest.raises(error, match="no more"):
        store.put("a/b", chunks())
    assert list(store.list()) == []
    assert uploads() == 0
    store.put("a/b", [b"whole"])


def test_another_writer_during_a_large_upload_keeps_the_key(
    s3_url: str, s3_options: dict[str, str], uploads: Callable[[], int]
) -> None:
    store, other = open_objects(s3_url, s3_options), open_objects(s3_url, s3_options)

    def chunks() -> Iterator[Buffer]:
        yield from large(1)[1]
        assert uploads() == 1
        other.put("a/b", [b"theirs"])

    with pytest.raises(KeyTaken):
        store.put("a/b", chunks())
    assert bytes(store.get("a/b")) == b"theirs"
    assert uploads() == 0


def test_of_many_writers_of_one_key_one_wins(s3_url: str, s3_options: dict[str, str]) -> None:
    stores = [open_objects(s3_url, s3_options) for _ in range(6)]
    together = threading.Barrier(len(stores), timeout=30)
    won: list[int] = []

    def put(writer: int) -> None:
        store = stores[writer]
        store.put(f"own/{writer}", [b"so that its probe is over"])
        for turn in range(5):
            together.wait()
            try:
                store.put(f"attempts/{turn}", [f"{writer}".encode()])
            except KeyTaken:
                continue
            won.append(turn * 10 + writer)

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one // 10 for one in won) == list(range(5))
    for one in won:
        assert bytes(stores[0].get(f"attempts/{one // 10}")) == f"{one % 10}".encode()


def test_a_long_list_is_in_order(s3_url: str, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LIST_SIZE", 7)
    store = open_objects(s3_url, s3_options)
    keys = [f"{number % 5}/step_{number:04}/meta.json" for number in range(40)]
    for key in keys:
        store.put(key, [b"1"])
    assert [stat.key for stat in store.list()] == sorted(keys)
    assert store.folders("3/") == tuple(sorted(key.split("/")[1] for key in keys if key.startswith("3/")))


def test_a_store_that_ignores_the_condition_is_refused(s3_url: str, s3_server: Server, bucket: S3Store) -> None:
    def without_condition(request: bytes) -> bytes:
        return request.replace(b"if-none-match: *\r\n", b"")

    with Wire(s3_server.port, rewrite=without_condition).running() as port:
        store = open_objects(s3_url, s3_options_of(port))
        for _ in range(2):
            with pytest.raises(StoreError, match="overwrites an object although it was asked not to") as caught:
                store.put("a", [b"1"])
    assert caught.value.next_command is not None
    assert "If-None-Match" in caught.value.next_command
    assert obstore.list(bucket).collect() == []


def test_chunks_may_come_out_of_another_bucket(make_s3: Callable[[], str], s3_options: dict[str, str]) -> None:
    one, other = open_objects(make_s3(), s3_options), open_objects(make_s3(), s3_options)
    data, chunks = large(3)
    one.put("a", iter(chunks))
    other.put("a", (one.get("a", begin, 3_000_000) for begin in range(0, len(data), 3_000_000)))
    assert bytes(other.get("a")) == data


def test_probes_of_killed_processes_are_swept(s3_url: str, s3_options: dict[str, str], bucket: S3Store) -> None:
    store = open_objects(s3_url, s3_options)
    store.put("a", [b"1"])
    obstore.put(bucket, "probe-0123456789abcdef.tmp", b"first")
    assert [stat.key for stat in store.list()] == ["a"]
    assert store.sweep() == ("probe-0123456789abcdef.tmp",)
    assert [one["path"] for one in obstore.list(bucket).collect()] == ["a"]


def test_foreign_names_are_not_listed(s3_url: str, s3_options: dict[str, str], bucket: S3Store) -> None:
    store = open_objects(s3_url, s3_options)
    obstore.put(bucket, "step_1/left.tmp", b"1")
    obstore.put(bucket, "step_1/meta.json", b"1")
    assert [stat.key for stat in store.list()] == ["step_1/meta.json"]
    assert list(store.list("/etc")) == []


def test_prefix_and_key_together_are_limited(s3_options: dict[str, str]) -> None:
    store = open_objects("s3://bucket/" + "p" * 100, s3_options)
    with pytest.raises(UsageError, match="1024 bytes"):
        store.get("/".join(["k" * 190] * 5))


def test_a_cheaper_class_is_for_what_is_large_enough(
    s3_url: str, s3_options: dict[str, str], listing: Callable[[], str]
) -> None:
    store = open_objects(s3_url, s3_options | {"storage_class": "STANDARD_IA"})
    store.put("step_1/meta.json", [bytes(1000)])
    store.put("step_1/model.safetensors", [bytes(objects.CLASS_FROM)])
    store.put("step_1/optimizer.blocks", [bytes(PART_SIZE + 1)])
    classes = [one.split("</StorageClass>")[0] for one in listing().split("<StorageClass>")[1:]]
    assert classes == ["STANDARD", "STANDARD_IA", "STANDARD_IA"]


@pytest.mark.parametrize("name", ["GLACIER", "deep_archive", "Archive"])
def test_classes_that_have_to_be_thawed_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="thawed"):
        open_objects("s3://bucket/prefix", {"storage_class": name, "region": "eu-west-1"})


def test_a_missing_bucket_is_told(s3_options: dict[str, str]) -> None:
    store = open_objects("s3://never-made/prefix", s3_options)
    for call in (lambda: store.put("a", [b"1"]), lambda: list(store.list()), lambda: store.get("a")):
        with pytest.raises(StoreError, match="there is no such bucket") as caught:
            call()
        assert not isinstance(caught.value, KeyMissing | Unreachable | AccessRefused)
        assert "never-made" in caught.value.message


def test_secrets_are_never_shown(s3_options: dict[str, str]) -> None:
    secret = s3_options["secret_access_key"]
    assert secret not in repr(open_objects("s3://bucket/prefix", s3_options))
    for wrong in ({"no_such_option": secret}, {"unsigned_payload": secret}, {"timeout": secret}):
        with pytest.raises(UsageError) as caught:
            open_objects("s3://bucket/prefix", s3_options | wrong)
        assert secret not in str(caught.value)
        assert caught.value.__suppress_context__
    with pytest.raises(UsageError, match="keys do not belong in a url") as caught:
        open_objects(f"s3://key:{secret}@bucket/prefix", {})
    assert secret not in str(caught.value)


@pytest.mark.parametrize("url", ["s3:///prefix", "s3://bucket/prefix?x=1", "s3://bucket/prefix#1", "s3://"])
def test_urls_that_name_no_bucket_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="bucket/prefix"):
        open_objects(url, {})


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/prefix", {"skip_signature": "true"}),
        ("az://container/prefix", {"account_name": "name", "skip_signature": "true"}),
    ],
)
def test_other_clouds_have_clients_too(url: str, options: dict[str, str]) -> None:
    assert repr(open_objects(url, options)) == f"ObjectStore('{url}')"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://b b/p", {}, "a bucket's name has"),
        ("s3://bucket/../x", {}, "not what the client takes"),
        ("s3://bucket/p", {"endpoint": "not a url"}, "endpoint is not like"),
        ("s3://bucket/p", {"aws_endpoint_url": "http://a b"}, "aws_endpoint_url is not like"),
        ("s3://bucket/p", {"endpoint": "https://user:pass@host"}, "endpoint is not like"),
        ("s3://bucket/p", {"endpoint": "http://host:9000"}, "endpoint is without TLS"),
        ("s3://bucket/p", {"region": "eu west"}, "region has letters"),
        ("s3://bucket/p", {"AWS_REGION": "eu\nwest"}, "AWS_REGION has letters"),
        ("az://bucket/p", {"account_name": "a/b"}, "account_name has letters"),
    ],
)
def test_addresses_at_which_the_client_would_panic_are_refused(url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_objects(url, options)


def test_an_address_out_of_the_environment_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere at all")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL is not like"):
        open_objects("s3://bucket/p", {"region": "eu-west-1"})


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_way_without_tls_out_of_the_environment_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(UsageError, match=f"^s3://bucket: {name} is without TLS") as caught:
        open_objects("s3://bucket/p", {"region": "eu-west-1"})
    assert "AWS_ALLOW_HTTP=true" in str(caught.value.next_command)
    open_objects("s3://bucket/p", {"region": "eu-west-1", "endpoint": "https://host"})  # which is asked instead
    open_objects("gs://bucket/p", {})
    open_objects("s3://bucket/p", {"region": "eu-west-1", "allow_http": "true"})
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    open_objects("s3://bucket/p", {"region": "eu-west-1"})
    with pytest.raises(UsageError, match="is without TLS"):  # what the options say wins
        open_objects("s3://bucket/p", {"region": "eu-west-1", "allow_http": "false"})


def test_a_list_begins_and_ends_at_its_prefix(
    s3_url: str, s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much the folder holds besides."""
    store = open_objects(s3_url, s3_options)
    names = ["journal", *(f"step_00000000{step}{again}" for step in (9, 10, 11, 12, 13, 20) for again in ("", "-2"))]
    for name in names:
        store.put(f"home/{name}/meta.json", [b"1"])
    told: list[str] = []
    listed = obstore.list

    def watched(*given: object, **wishes: object) -> Iterator[list[dict[str, str]]]:
        for batch in listed(*given, **{**wishes, "chunk_size": 1}):  # type: ignore[arg-type,call-overload]
            told.extend(found["path"] for found in batch)
            yield batch

    monkeypatch.setattr(obstore, "list", watched)
    for step in (10, 12, 13):
        told.clear()
        found = [stat.key for stat in store.list(f"home/step_00000000{step}")]
        assert found == [f"home/step_00000000{step}{again}/meta.json" for again in ("-2", "")]
        assert len(told) <= 3  # with the one behind it
    assert [stat.key for stat in store.list("home/step_00000000")] == sorted(
        f"home/{name}/meta.json" for name in names[1:]
    )
    assert [stat.key for stat in store.list("home/j")] == ["home/journal/meta.json"]
    assert [stat.key for stat in store.list("home/step_00000000%")] == []
