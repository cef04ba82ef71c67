"""Of which checkpoints a late fact is, where a run has been at its step twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mementum.catalog.branch import Branches
from mementum.records import Fact, Granularity, Health, Manifest


def manifest(id: str, parent: str | None) -> Manifest:
    return Manifest(
        id=id,
        seq=1,
        task="t",
        attempt=1,
        parent=parent,
        step=1,
        epoch=0,
        time="",
        reason="",
        granularity=Granularity.FULL,
        health=Health.CLEAN,
        files=(),
    )


# a - b - c (left by a rollback to b), and b - d - e
TREE = (manifest("a", None), manifest("b", "a"), manifest("c", "b"), manifest("d", "b"), manifest("e", "d"))


def holders(newest: str | None, tree: tuple[Manifest, ...] = TREE) -> str:
    branches = Branches(tree)
    fact = Fact(kind="metrics", time="", checkpoint=newest, step=1)
    return "".join(one.id for one in tree if branches.holds(fact, one.id))


@pytest.mark.parametrize(
    ("newest", "held"),
    [("c", "abc"), ("e", "abde"), ("b", "ab"), (None, "abcde"), ("zz", "abde"), ("0", "")],
)
def test_a_fact_is_of_the_newest_and_of_what_it_comes_from(newest: str | None, held: str) -> None:
    assert holders(newest) == held


def test_where_one_was_removed_the_line_goes_on() -> None:
    assert holders("e", tuple(one for one in TREE if one.id != "b")) == "ade"
    assert holders("c", tuple(one for one in TREE if one.id != "c")) == "ab"


def test_a_manifest_that_names_itself_ends_the_line() -> None:
    assert holders("b", (replace(TREE[0], parent="b"), TREE[1])) == "ab"
