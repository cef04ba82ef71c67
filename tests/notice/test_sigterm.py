"""SIGTERM at any instant of a training: an exact checkpoint within two seconds, and the program has its say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from forks import Ended, play

TRAININGS = Path(__file__).with_name("trainings.py")
TOTAL = 24
AFTER_S = 2.0  # from the signal to the end of the process, for most of many
AFTER_S_MAX = 10.0  # and for each, on a machine where much else fights over two cores
HANDLERS = ("default", "leave", "flag")
CODES = {"default": -15, "leave": 7, "flag": 0}
PLACES = ("begin", "loader", "gradient", "body", "epoch", "capture", "write", "commit", "end")
INSTANTS, INSTANTS_OF_A_SOAK = 12, 40  # every place, and some instants that are drawn
DELAY_S_MAX = 0.1  # the steps take longer


def scenes(root: Path, seed: int, instants: int) -> list[dict[str, Any]]:
    """Every place, then seeded instants; every handler at some place, and every third training accumulates."""
    draw = random.Random(seed)
    found = []
    for number in range(instants):
        at = PLACES[number] if number < len(PLACES) else draw.uniform(0.0, DELAY_S_MAX)
        scene = {"at": at, "handler": HANDLERS[number % 3], "accumulate": 4 if number % 3 == 2 else 1, "pause_s": 0.005}
        found.append({"play": "train", "root": str(root / str(number)), "from_step": 3, "every": 2} | scene)
    return found


def check_end(scene: dict[str, Any], end: Ended) -> None:
    told, handler = end.told, scene["handler"]
    assert end.code == CODES[handler], (scene, end)
    assert end.at_s - told["sent_s"] < AFTER_S_MAX, (scene, end)
    assert told.get("called") == (None if handler == "default" else 1), (scene, end)
    assert told["saved"] == told["step"], (scene, end)
    assert "failed" not in told, (scene, end)


@pytest.mark.parametrize("instants", [INSTANTS, pytest.param(INSTANTS_OF_A_SOAK, marks=pytest.mark.soak)])
def test_sigterm_at_any_instant(tmp_path: Path, seed: int, instants: int) -> None:
    sent = scenes(tmp_path, seed, instants)
    group = {"play": "train", "root": str(tmp_path / "group"), "handler": "leave", "at": "loader", "workers": 2}
    wish = {"play": "train", "root": str(tmp_path / "wish"), "handler": "default", "at": "body", "signal": "SIGUSR1"}
    twice = {"play": "train", "root": str(tmp_path / "twice"), "handler": "default", "at": "body", "times": 2}
    exits = {"play": "train", "root": str(tmp_path / "exits"), "handler": "flag", "exits": True, "at": "body"}
    others = [group | {"to_group": True}, wish | {"every": 100}, twice, exits | {"every": 100}]
    undisturbed = [{"play": "straight", "root": str(tmp_path / f"by {n}"), "accumulate": n} for n in (1, 4)]
    *ends, by_group, wished, at_once, left, straight, by_four = play(TRAININGS, [*sent, *others, *undisturbed])

    for scene, end in zip(sent, ends, strict=True):
        check_end(scene, end)
    assert median(end.at_s - end.told["sent_s"] for end in ends) < AFTER_S
    check_end(group, by_group)
    assert wished.code == 0
    assert wished.told["noticed"] == 1
    assert wished.told["digest"] == straight.told["digest"]
    assert at_once.code == -15
    assert "digest" not in at_once.told
    assert left.code == 7  # from within the body, so that the step's boundary was never reached
    assert left.told["saved"] == left.told["step"] == 7

    again = [{**scene, "at": None, "handler": "ignored"} for scene in (*sent, group, twice)]
    for scene, before, after in zip(again, (*ends, by_group, at_once), play(TRAININGS, again), strict=True):
        assert after.told["finished"] == TOTAL // scene.get("accumulate", 1)
        assert after.told["digest"] == (by_four if scene.get("accumulate") == 4 else straight).told["digest"]
        if before is not at_once:
            assert after.told["began"] == before.told["saved"]


def test_two_runs_in_one_process_both_save_and_the_signal_ends_it(tmp_path: Path) -> None:
    scenes = [
        {"play": "two_runs", "root": str(tmp_path / f"{handler} {answered}"), "handler": handler, "answered": answered}
        for handler in HANDLERS
        for answered in (False, True)  # by the first, before the other sees it
    ]
    for scene, end in zip(scenes, play(TRAININGS, [{**scene, "at": "body"} for scene in scenes]), strict=True):
        assert end.code == CODES[scene["handler"]], (scene, end)
        assert end.at_s - end.told["sent_s"] < AFTER_S_MAX, (scene, end)
        assert min(steps_of(Path(scene["root"]) / "a")) in (8, 9), (scene, end)
        assert len(steps_of(Path(scene["root"]) / "b")) == 1, (scene, end)


def steps_of(root: Path) -> set[int]:
    """Of all checkpoints under a root."""
    return {json.loads(path.read_bytes())["step"] for path in root.rglob("meta.json")}
