"""Ends that come otherwise than by a signal in the main thread: kill -9, a wall time, a run in another thread."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forks import Ended, play
from mementum.cli import tracing

TRAININGS = Path(__file__).with_name("trainings.py")
KEPT_S = 1.5  # a chunk is written after one second, and the disk takes its time


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All scenes of this file, by the names of what they play."""
    scenes: list[dict[str, Any]] = [
        {"play": "until_killed", "for_s": 3.0},
        {"play": "with_walltime", "handler": None},
        {"play": "in_a_thread", "handler": "flag", "at": "body"},
    ]
    root = tmp_path_factory.mktemp("ends")
    played = play(TRAININGS, [{**scene, "root": str(root / scene["play"])} for scene in scenes])
    return {
        scene["play"]: replace(end, told=end.told | {"root": str(root / scene["play"])})
        for scene, end in zip(scenes, played, strict=True)
    }


def test_vital_signs_outlive_a_kill(ends: dict[str, Ended], capsys: pytest.CaptureFixture[str]) -> None:
    end = ends["until_killed"]
    assert end.code == -9
    assert tracing.trace(end.told["root"], "t", tracing.Words(csv=True), as_json=False) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    steps = [int(row["step"]) for row in rows]
    assert steps == list(range(1, len(steps) + 1))
    a_step_s = 3.0 / end.told["step"]
    assert (end.told["step"] - steps[-1]) * a_step_s < KEPT_S
    assert all(float(row["loss"]) > 0 for row in rows)


def test_a_wall_time_saves_before_it_is_over(ends: dict[str, Ended]) -> None:
    end = ends["with_walltime"]
    assert end.code == -9
    assert end.told["reason"].startswith("wall time"), end
    assert end.told["noticed"] == 1
    assert end.told["saved"] < end.told["step"]


def test_a_run_in_a_thread_says_once_that_it_hears_no_signals(ends: dict[str, Ended]) -> None:
    end = ends["in_a_thread"]
    assert end.code == 0, end
    assert [note for note in end.told["notes"] if "signals are not heard" in note] == [
        "signals are not heard: only the main thread may install handlers; open the run there"
    ]
    assert end.told["called"] == 1
    assert end.told["saved"] == 24
