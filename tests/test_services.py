"""The servers that tests start: they answer, are empty for each test, and come back after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services import NEEDED, Server, s3_options_of, wait_until

LOCAL = Path(__file__).parent


@pytest.mark.parametrize("_again", [1, 2])
def test_a_redis_is_empty_for_each_test(redis_url: str, _again: int) -> None:
    import redis

    client = redis.Redis.from_url(redis_url)
    assert client.dbsize() == 0
    client.set("a", b"1")
    client.close()


@pytest.mark.parametrize("_again", [1, 2])
def test_a_postgres_is_empty_for_each_test(postgres_url: str, _again: int) -> None:
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table a (n int)")
        assert connection.execute("select count(*) from a").fetchone() == (0,)


@pytest.mark.parametrize("_again", [1, 2])
def test_a_bucket_is_empty_for_each_test(s3_url: str, s3_options: dict[str, str], _again: int) -> None:
    import obstore
    from obstore.store import S3Store

    own = {name: value for name, value in s3_options.items() if name != "allow_http"}
    store = S3Store.from_url(s3_url, client_options={"allow_http": True}, **own)
    assert obstore.list(store).collect() == []
    obstore.put(store, "a", b"1")


def test_each_bucket_is_another(make_s3: Callable[[], str]) -> None:
    assert make_s3() != make_s3()


def test_a_redis_comes_back_after_a_kill(redis_url: str, redis_server: Server) -> None:
    import redis

    client = redis.Redis.from_url(redis_url, retry=None)
    client.set("a", b"1")
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        client.get("a")
    redis_server.start()
    assert client.get("a") is None
    client.close()


def test_what_was_committed_outlives_a_kill_of_postgres(postgres_url: str, postgres_server: Server) -> None:
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table a (n int)")
    postgres_server.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url)
    postgres_server.start()

    def answers() -> bool:
        try:
            psycopg.connect(postgres_url).close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers, "it does not come back")
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from a").fetchone() == (0,)


@pytest.mark.parametrize(("needed", "outcome"), [("1", "1 failed"), ("0", "1 skipped")])
def test_a_missing_service_is_told(tmp_path: Path, needed: str, outcome: str) -> None:
    test = tmp_path / "test_it.py"
    test.write_text("import services\ndef test_it(): services.missing('pip install it')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", str(test)],
        env={**os.environ, NEEDED: needed, "PYTHONPATH": str(LOCAL)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in ended.stdout
    assert "pip install it" in ended.stdout


def test_options_name_the_port() -> None:
    assert s3_options_of(1234)["endpoint"] == "http://127.0.0.1:1234"
