"""PostgreSQL as a catalog: what is told where it is not there, does not let us, or breaks off, and never a password."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from mementum.catalog import sql_engine
from mementum.catalog.sql import open_sql
from mementum.errors import AccessRefused, MementumError, Unreachable, UsageError
from mementum.testing.catalog_contract import HOME, fact, folder, ids, manifest

SECRET = "hunter2"


def shown(error: BaseException) -> str:
    """All that anybody may come to see of an error of ours."""
    return f"{error} {error!r} {getattr(error, 'kept', '')} {getattr(error, 'key', '')}"


def with_user(url: str, user: str) -> str:
    return url.replace("postgres@", f"{user}:{SECRET}@")


def test_a_user_that_is_unknown_is_refused(postgres_url: str) -> None:
    with pytest.raises(AccessRefused, match=r"127\.0\.0\.1 does not let the user 'stranger' use the catalog") as caught:
        open_sql(with_user(postgres_url, "stranger"))
    assert caught.value.next_command == "correct user and password of `catalog`"
    assert SECRET not in shown(caught.value)


def test_a_user_without_rights_is_refused(postgres_url: str) -> None:
    import psycopg

    open_sql(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN")
        try:
            with pytest.raises(AccessRefused, match="does not let the user 'reader' use"):
                open_sql(with_user(postgres_url, "reader"))
        finally:
            connection.execute("DROP ROLE reader")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (f'FATAL:  password authentication failed for user "me" ({SECRET})', AccessRefused),
        ("fe_sendauth: no password supplied", AccessRefused),
        ('FATAL:  no pg_hba.conf entry for host "h", user "me"', AccessRefused),
        ('connection to server at "h", port 5432 failed: Connection refused', Unreachable),
        ('FATAL:  database "b" does not exist', Unreachable),
    ],
)
def test_what_a_server_says_has_a_kind(said: str, kind: type[MementumError]) -> None:
    engine = sql_engine.postgres_engine(f"postgresql://me:{SECRET}@h/b")
    found = sql_engine.explained(OperationalError("SELECT", {}, Exception(said)), engine)
    assert type(found) is kind
    assert "postgresql://me@h/b" in found.message
    assert SECRET not in shown(found)
    assert found.kept == "all checkpoints: the catalog is only a cache of them"


@pytest.mark.parametrize("url", [f"postgresql://me:{SECRET}@h:port/b", f"me:{SECRET}@h", "", f"mysql://me:{SECRET}@h"])
def test_what_is_no_address_is_told_without_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_sql(url)
    assert SECRET not in shown(caught.value)


def test_without_its_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> Any:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr("sqlalchemy.create_engine", absent)
    with pytest.raises(UsageError) as caught:
        open_sql("postgresql://me@h/b")
    assert caught.value.next_command == "pip install 'mementum[postgres]'"


def test_a_server_that_is_gone_is_told_and_one_that_is_back_is_used(postgres_url: str, postgres_server: Any) -> None:
    catalog = open_sql(postgres_url)
    catalog.add(HOME, manifest(1), folder(1))
    postgres_server.kill()
    with pytest.raises(Unreachable, match="does not answer"):
        catalog.add(HOME, manifest(2), folder(2))
    with pytest.raises(Unreachable):
        open_sql(postgres_url)
    postgres_server.start()
    _until_it_answers(postgres_url)
    catalog.add(HOME, manifest(3), folder(3))
    assert ids(catalog) == ["c001", "c003"]
    catalog.close()


def test_a_connection_that_the_server_ends_is_replaced(postgres_url: str) -> None:
    import psycopg

    catalog = open_sql(postgres_url)
    catalog.add(HOME, manifest(1), folder(1))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
        connection.execute(others.encode() + b"current_database()")
    catalog.add(HOME, manifest(2), folder(2))
    assert ids(catalog) == ["c001", "c002"]
    catalog.close()


def test_what_two_learn_of_one_checkpoint_at_once_counts_both(postgres_url: str) -> None:
    """Each state is made of all facts that there are: a writer that did not see the other's would lose one."""
    catalogs = [open_sql(postgres_url) for _ in range(4)]
    catalogs[0].add(HOME, manifest(1), folder(1))
    together = threading.Barrier(len(catalogs))

    def work(number: int) -> None:
        together.wait()
        for turn in range(8):
            told = [fact("pin", turn, checkpoint="c001", by=f"{number}.{turn}")]
            catalogs[number].learn(HOME, f"facts/{number}.{turn}.json", told, size=9)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(catalogs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (entry,) = catalogs[0].entries(HOME)
    assert entry.pinned_by == {f"{number}.{turn}" for number in range(4) for turn in range(8)}
    for catalog in catalogs:
        catalog.close()


def test_signs_that_no_database_takes_become_marks(postgres_url: str) -> None:
    catalog = open_sql(postgres_url)
    catalog.add(HOME, manifest(1, reason="a\0b", user={"note": "\0"}), folder(1))
    catalog.learn(HOME, "a", [fact("damaged", 1, checkpoint="c001", what="x\0\ud800")], size=1)
    (entry,) = catalog.entries(HOME)
    assert (entry.manifest.reason, entry.manifest.user, entry.damaged) == ("a\0b", {"note": "\0"}, "x\ufffd?")
    catalog.close()


def _until_it_answers(url: str) -> None:
    from services import wait_until

    def answers() -> bool:
        try:
            open_sql(url).close()
        except Unreachable:
            return False
        return True

    wait_until(answers, "PostgreSQL answers nothing after a start")
