"""Five hundred saves take no more of the machine than twenty, and a clean end leaves nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forks import Ended, play
from mementum.execute.room import WANTED
from steady_scenes import WARM

SAVES = 500
BLOCKING_SAVES = 2 * WARM  # they take their time, and nothing of them is kept
LATE_MAX = 4  # snapshots of the last steps, with which no thread is through, or of which no step has heard
RSS_SLACK = 6 << 20  # bytes: arenas of the threads, and SQLite's cache

WAYS = {"overlapped": SAVES, "blocking": BLOCKING_SAVES}
SCENES = [(kind, way) for kind in ("saves", "snapshots", "behind") for way in WAYS] + [("errors", "overlapped")]
Ends = dict[tuple[str, str], Ended]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    scenes = [
        {"play": kind, "root": str(tmp_path_factory.mktemp(kind)), "way": way, "saves": WAYS[way]}
        for kind, way in SCENES
    ]
    played = play(Path(__file__).with_name("steady_scenes.py"), scenes)
    return dict(zip(SCENES, played, strict=True))


def assert_steady(end: Ended) -> None:
    assert end.code == 0
    print(f"grown by {end.told['grown_bytes'] / 1e6:.1f} MB")
    assert end.told["grown_bytes"] < RSS_SLACK
    assert end.told["others"] == []
    assert len(end.told["warm"]["slots"]) == WANTED
    assert end.told["failed"] == end.told["skipped"] == []
    assert end.told["left"] is None


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays_the_same_over_500_saves(ends: Ends, way: str) -> None:
    end = ends["saves", way]
    assert_steady(end)
    assert end.told["committed"] == list(range(1, WAYS[way] + 1))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays_the_same_over_500_snapshots_in_memory(ends: Ends, way: str) -> None:
    end = ends["snapshots", way]
    assert_steady(end)
    assert end.told["active"] <= LATE_MAX
    assert end.told["saving"] <= LATE_MAX
    assert end.told["kept"] == list(range(1, WAYS[way] + 1))
    assert end.told["committed"] == [WAYS[way]]  # the end


@pytest.mark.parametrize("way", WAYS)
def test_runs_that_fall_behind_leave_nothing_either(ends: Ends, way: str) -> None:
    end = ends["behind", way]
    assert end.code == 0
    assert end.told["failed"] == []
    assert end.told["committed"][-1] == 3 * WARM
    assert sorted(end.told["committed"] + end.told["skipped"]) == list(range(1, 3 * WARM + 1))
    assert end.told["left"] is None


def test_an_end_by_an_error_leaves_nothing(ends: Ends) -> None:
    end = ends["errors", "overlapped"]
    assert end.code == 0
    assert end.told["caught"] == [
        f"{name}('of the training')" for name in ("RuntimeError", "KeyboardInterrupt", "SystemExit")
    ]
    assert end.told["left"] is None
