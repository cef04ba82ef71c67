"""Tests of where a list begins."""

from __future__ import annotations

import pytest

from mementum.storage.objects_lists import before


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("home/step_0000000012", "home/step_0000000011~"),
        ("home/step_0000000010", "home/step_000000001"),
        ("home/step_", "home/step"),
        ("home/j", "home"),
        ("j", None),
        ("home/..", None),
        ("home/a%20", None),
        ("home//a", None),
    ],
)
def test_where_it_begins(path: str, name: str | None) -> None:
    assert before(path) == name
    assert name is None or name < path


def test_nothing_with_the_prefix_is_left_out() -> None:
    names = sorted(
        f"step_{step:010d}{again}/{file}" for step in range(40) for again in ("", "-2") for file in ("m", "z")
    )
    for step in range(40):
        path = f"step_{step:010d}"
        name = before(path)
        assert name is not None
        found = [one for one in names if one > name]
        assert {one for one in names if one.startswith(path)} <= set(found)
        if step % 10:
            assert found[0].startswith(path)
