"""A training that goes back and is killed at any instant ends with the same bits as one that was not killed.

kill -9 proves process death only, never power loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forks

SCENES = Path(__file__).with_name("rollback_scenes.py")
BEFORE = 8  # steps until the run diverges, whose last one makes it go back
IN_ALL = 8 + 6  # steps that a process does that nobody kills: to step 12, six of them twice
AROUND = ("before write", "after write", "before restore", "after restore", "before went_back", "after went_back")
PLANNED = AROUND[1:]  # by then the plan is durable
BACK_TO = 6


def played(root: Path, scenes: Sequence[dict[str, Any]], roots: Sequence[str]) -> list[forks.Ended]:
    return forks.play(
        SCENES,
        [{"play": "train", **scene, "root": str(root / name)} for scene, name in zip(scenes, roots, strict=True)],
    )


def test_killed_at_any_instant_it_ends_the_same(tmp_path: Path) -> None:
    deaths: list[dict[str, Any]] = [{"around": around} for around in AROUND]
    deaths += [{"after": done, "wait": done % 2 == 0} for done in range(BEFORE - 1, IN_ALL)]
    roots = [str(number) for number in range(len(deaths))]
    whole, *killed = played(tmp_path, [{}, *deaths], ["whole", *roots])
    assert whole.code == 0
    assert (whole.told["went_back"], whole.told["lr_scale"]) == ([BACK_TO], 0.5)
    assert {one.code for one in killed} == {-9}
    for death, end in zip(deaths, played(tmp_path, [{}] * len(deaths), roots), strict=True):
        assert end.code == 0, death
        assert (end.told["state"], end.told["lr_scale"]) == (whole.told["state"], 0.5), death
        if death.get("around") in PLANNED:
            assert (end.told["began_at"], end.told["went_back"]) == (BACK_TO, []), death
