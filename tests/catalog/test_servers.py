"""The urls of catalogs that many share: what stands behind them."""

from __future__ import annotations

import sys

import pytest

from mementum.catalog.servers import open_server
from mementum.errors import UsageError


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
