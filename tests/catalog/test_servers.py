"""The urls of catalogs that many share: what stands behind them, and what of them is shown."""

from __future__ import annotations

import sys

import pytest

from mementum.catalog.servers import open_server, shown
from mementum.errors import UsageError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host:6379/0", "redis://host:6379/0"),
        ("rediss://me:secret@host/1?password=secret&ssl_ca_certs=x", "rediss://me@host/1"),
        ("postgresql://me:secret@host:5432/name?password=secret", "postgresql://me@host:5432/name"),
        ("postgresql+psycopg://me:se%40cret@[::1]:5432/name", "postgresql+psycopg://me@[::1]:5432/name"),
        ("redis://secret@host/1", "redis://host/1"),
        ("postgresql://me@host/name", "postgresql://me@host/name"),
        ("redis://:sec@ret@host/0", "redis://host/0"),
        ("redis://:sec/ret@host/0", "redis://…"),
        ("redis://:sec#ret@host/0", "redis://…"),
        ("redis://:sec?ret@host/0", "redis://…"),
        ("redis://host:secret/0", "redis://…"),
        ("redis://[secret/0", "redis://…"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, expected: str) -> None:
    assert shown(url) == expected


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite:///x.db", "host", "", "://", "/a/folder"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no catalog that many can share") as caught:
        open_server(url)
    assert caught.value.next_command == "write postgresql://user@host/name or redis://host:6379/0"


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("redis://h/0", "redis", "redis"), ("postgresql://h/n", "psycopg", "postgres")]
)
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("mementum.catalog.redis", "mementum.catalog.redis_server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        open_server(url)
    assert caught.value.next_command == f"pip install 'mementum[{extra}]'"
