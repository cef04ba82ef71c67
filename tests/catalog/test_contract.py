"""The catalogs in SQL do what every catalog must: SQLite in a file and in memory, PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.catalog.catalog import Catalog
from mementum.catalog.sql import open_sql, open_sqlite
from mementum.testing.catalog_contract import CatalogContract, FactsContract
from mementum.testing.recovery_contract import RecoveryContract
from services import Server


class TestSqliteInAFile(CatalogContract, FactsContract, RecoveryContract):
    def make_catalog(self, tmp_path: Path) -> Catalog:
        return open_sqlite(tmp_path / "catalog.db")


class TestSqliteInMemory(CatalogContract, FactsContract, RecoveryContract):
    def make_catalog(self, tmp_path: Path) -> Catalog:
        return open_sqlite(None)


class TestPostgres(CatalogContract, FactsContract, RecoveryContract):
    @pytest.fixture(scope="class")
    @classmethod
    def _database(cls, _postgres: Server) -> Iterator[str]:
        """One for all of these tests: making one takes longer than most of them."""
        import psycopg

        admin = f"postgresql://postgres@127.0.0.1:{_postgres.port}/postgres"
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("create database contract")
            yield f"postgresql://postgres@127.0.0.1:{_postgres.port}/contract"
            connection.execute("drop database contract with (force)")

    @pytest.fixture(autouse=True)
    def _url(self, _database: str) -> None:
        self.url = _database

    def make_catalog(self, tmp_path: Path) -> Catalog:
        made = open_sql(self.url)
        empty = open_sqlite(None)
        made.become(empty)
        empty.close()
        return made
