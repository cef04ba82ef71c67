"""Five hundred saves take no more of the machine than twenty, and a clean end leaves nothing of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forks import Ended, play
from mementum.events import Committed, Failed, SaveSkipped
from mementum.execute.room import WANTED
from steady_scenes import WARM, Held, Made

SAVES = 500
BLOCKING_SAVES = 2 * WARM  # they take their time, and nothing of them is kept
RSS_SLACK = 6 << 20  # bytes: arenas of the threads, and SQLite's cache

WAYS = {"overlapped": SAVES, "blocking": BLOCKING_SAVES}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Ended]:
    scenes = [
        {"play": kind, "root": str(tmp_path_factory.mktemp(kind)), "way": way, "saves": saves}
        for kind in ("saves", "snapshots")
        for way, saves in WAYS.items()
    ]
    played = play(Path(__file__).with_name("steady_scenes.py"), scenes)
    return {(scene["play"], scene["way"]): end for scene, end in zip(scenes, played, strict=True)}


def assert_steady(end: Ended) -> None:
    assert end.code == 0
    print(f"grown by {end.told['grown_bytes'] / 1e6:.1f} MB")
    assert end.told["grown_bytes"] < RSS_SLACK
    assert end.told["others"] == []
    assert len(end.told["warm"]["slots"]) == WANTED
    assert end.told["troubles"] == []
    assert end.told["left"] is None


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays_the_same_over_500_saves(ends: dict[tuple[str, str], Ended], way: str) -> None:
    end = ends["saves", way]
    assert_steady(end)
    assert end.told["committed"] == end.told["steps"] == list(range(1, WAYS[way] + 1))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays_the_same_over_500_snapshots_in_memory(ends: dict[tuple[str, str], Ended], way: str) -> None:
    end = ends["snapshots", way]
    assert_steady(end)
    assert end.told["active"] <= 1
    assert end.told["saving"] <= 2
    assert end.told["steps"] == list(range(1, WAYS[way] + 1))
    assert end.told["committed"] == [WAYS[way]]  # the end


@pytest.fixture(params=["overlapped", "blocking"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is counted here is not what a disk does
    return request.param


def test_runs_that_fall_behind_leave_nothing_either(tmp_path: Path, way: Any) -> None:
    """Nobody waits for the disk, so that saves take the place of others, and others are skipped."""
    before = Held.now(tmp_path)
    made = Made()
    for _ in range(3):
        with made.open(tmp_path, capture=way) as run:
            for _ in range(40):
                made.step()
                run.record()
    assert made.told.of(Failed) == []
    assert made.told.of(Committed)[-1].step == 120
    assert len(made.told.of(Committed)) + len(made.told.of(SaveSkipped)) == 120
    assert Held.now(tmp_path) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_end_by_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    before = Held.now(tmp_path)

    def fail() -> None:
        made = Made()
        with made.open(tmp_path) as run:
            made.step()
            run.record()
            raise error("of the training")

    with pytest.raises(error, match="of the training"):
        fail()
    assert Held.now(tmp_path) == before
