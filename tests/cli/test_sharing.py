"""`mementum ls --catalog`: what a catalog that many share knows, and that no password is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mementum.catalog.servers import open_server
from mementum.records import Fact
from mementum.testing.catalog_contract import manifest
from services import free_port

HOMES = ("20261130/a_1@01", "20261130/a_1@02", "20261130/b_2@03")
SECRET = "hunter2"


@pytest.fixture(params=["redis_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """A catalog of three tasks in as many roots, of which two have one name."""
    made: str = request.getfixturevalue(request.param)
    catalog = open_server(made)
    for number, home in enumerate(HOMES):
        for seq in (1, 2):
            one = replace(manifest(seq), id=f"c{number}{seq}", task="ab"[number // 2])
            catalog.add(home, one, f"step_{seq:010d}")
    pinned = Fact(kind="pin", time="2026-11-30T06:10:09.000000Z", checkpoint="c21", values={"why": "best"})
    catalog.learn(HOMES[2], "journal/0001.jsonl", [pinned], size=10)
    catalog.close()
    return made


def test_all_roots_are_listed(ask: Callable[..., Any], url: str) -> None:
    answer = ask("ls", "--catalog", url)
    assert (answer.code, answer.err) == (0, "")
    rows = [line.split("  ")[0] for line in answer.lines[1:-1]]
    assert sorted(set(rows)) == sorted({f"a {HOMES[0]}", f"a {HOMES[1]}", "b"})
    assert answer.lines[-1].startswith("6 checkpoints of 3 tasks")
    listed = json.loads(ask("ls", "--catalog", url, "--json").out)
    assert {(one["id"], one["home"], one["path"]) for one in listed} == {
        (f"c{number}{seq}", home, None) for number, home in enumerate(HOMES) for seq in (1, 2)
    }


def test_filters_and_tasks(ask: Callable[..., Any], url: str) -> None:
    only = json.loads(ask("ls", "--catalog", url, "--task", "b", "--filter", "pinned", "--json").out)
    assert [(one["task"], one["id"], one["pinned"]) for one in only] == [("b", "c21", "best")]
    none = ask("ls", "--catalog", url, "--filter", "step>100")
    assert (none.code, none.err) == (4, "none of 6 checkpoints is what the filter asks for\n")
    other = ask("ls", "--catalog", url, "--task", "c")
    assert other.code == 4
    assert "knows of no task 'c'; there are: 'a', 'b'" in other.err


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_a_server_that_is_not_there_is_named_without_its_password(ask: Callable[..., Any], kind: str) -> None:
    answer = ask("ls", "--catalog", f"{kind}://me:{SECRET}@127.0.0.1:{free_port()}/0", "--json")
    assert answer.code == 1
    assert "does not answer" in answer.err
    assert SECRET not in answer.out + answer.err


def test_an_empty_one_is_told(ask: Callable[..., Any], redis_url: str) -> None:
    answer = ask("ls", "--catalog", redis_url)
    assert answer.code == 4
    assert f"the catalog {redis_url} knows of no checkpoint" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is neither a root nor a catalog"),
        (("root", "--catalog", "redis://host/0"), "there is a root and a catalog"),
        (("--catalog", f"mysql://me:{SECRET}@host/x"), "mysql://me@host/x is no catalog that many can share"),
    ],
)
def test_words_that_make_no_sense(ask: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    answer = ask("ls", *words)
    assert (answer.code, message in answer.err, SECRET in answer.err) == (2, True, False)
