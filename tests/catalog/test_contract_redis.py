"""The catalog in Redis does what every catalog must."""

from __future__ import annotations

from pathlib import Path

import pytest

from mementum.catalog.catalog import Catalog
from mementum.testing.catalog_contract import CatalogContract, FactsContract
from mementum.testing.recovery_contract import RecoveryContract

pytest.importorskip("redis")


class TestRedisCatalog(CatalogContract, FactsContract, RecoveryContract):
    @pytest.fixture(autouse=True)
    def _url(self, redis_url: str) -> None:
        self.url = redis_url

    def make_catalog(self, tmp_path: Path) -> Catalog:
        from mementum.catalog.redis import open_redis

        return open_redis(self.url)
