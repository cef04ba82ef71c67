"""Servers: catalogs that many share, by their urls."""

from __future__ import annotations

from mementum.catalog.catalog import Catalog
from mementum.errors import UsageError
from mementum.masking import shown

REDIS = ("redis", "rediss")
POSTGRES = ("postgresql",)


def open_server(url: str) -> Catalog:
    """The catalog at `redis://…` or `postgresql://…`.

    Unreachable if it does not answer; AccessRefused if it does not let us; UsageError if the url is none, or what is
    needed to talk to it is not installed; StoreError if what it holds is not for us, or of a newer mementum."""
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme in REDIS:
        try:
            from mementum.catalog.redis import open_redis
        except ModuleNotFoundError as error:
            raise _missing(error, "redis") from error
        return open_redis(url)
    if scheme in POSTGRES:
        try:
            from mementum.catalog.sql import open_sql

            return open_sql(url)
        except ModuleNotFoundError as error:
            raise _missing(error, "postgres") from error
    raise UsageError(
        f"{shown(url)} is no catalog that many can share",
        next_command="write postgresql://user@host/name or redis://host:6379/0",
    )


def _missing(error: ModuleNotFoundError, extra: str) -> UsageError:
    return UsageError(
        f"the catalog needs {error.name}, which is not installed", next_command=f"pip install 'mementum[{extra}]'"
    )
