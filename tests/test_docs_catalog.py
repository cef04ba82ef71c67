"""The page of the catalog is true: its examples run, and what it says of limits is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import shared
from mementum.catalog.catalog import Catalog
from mementum.catalog.servers import open_server
from mementum.testing.catalog_contract import manifest

PAGE = (Path(__file__).resolve().parent.parent / "docs/catalog.md").read_text()
LISTING, CONTRACT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_listing_runs(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = open_server(redis_url)
    catalog.add("20261130/t_000001@5d41402abc4b", manifest(3), "f")
    catalog.begin("b", shared.Start(number=1, time="2026-11-30T06:10:09.000000Z"))
    catalog.close()
    exec(LISTING.replace("redis://127.0.0.1:6379/0", redis_url), {})
    assert capsys.readouterr().out.splitlines() == [
        "20261130/t_000001@5d41402abc4b (30, 'clean', {'loss': 0.5})",
        "b None",
    ]


def test_the_contract_can_be_subclassed_as_shown(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(CONTRACT, names)
    catalog = names["TestMyCatalog"]().make_catalog(tmp_path)
    assert catalog.homes() == ()
    catalog.close()


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"({shared.WAITING_MAX} messages wait)" in PAGE
    assert f"for at most {shared.CLOSE_S:g} seconds" in PAGE
    assert (shared.RETRY_S, shared.RETRY_S_MAX) == (1.0, 60.0)
    methods = [name for name in vars(Catalog) if not name.startswith("_")]
    assert len(methods) == 11
    assert "with the eleven methods" in PAGE
