"""A training that is killed while it copies to a tier: what is listed there is whole, and later starts finish it.

kill -9 proves process death only, never power loss; tests/crash/ has that."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import forks
from copies import whole
from mementum.catalog import tasks
from mementum.format import generations
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

SCENES = Path(__file__).with_name("placing_scenes.py")
TOTAL = 3  # steps
DEATHS = (0, 1, 2, 4, 6, 7, 8, 9, 12)  # operations there before it; a copy takes eight


def scenes(root: Path, names: list[str], **wishes: Any) -> list[dict[str, Any]]:
    return [{"play": "train", "root": str(root / name), "far": str(root / f"{name}-far"), **wishes} for name in names]


def listed(root: Path) -> dict[int, str]:
    """The checkpoints of a root, or of a tier, by step; every byte of them is proved."""
    store = LocalStore(PosixDisk(), str(root))
    home = tasks.find(store, "t")
    if home is None:
        return {}
    part = store.below(home)
    folders = generations.newest(stat.key for stat in part.list("step_"))
    manifests = [whole(part, folder) for folder in folders]
    assert not any("placing-" in stat.key for stat in part.list("step_")) or len(manifests) < TOTAL
    return {manifest.step: manifest.id for manifest in manifests}


def test_killed_at_any_operation_there_the_next_starts_finish(tmp_path: Path) -> None:
    names = [str(number) for number in DEATHS]
    killed = forks.play(
        SCENES, [{**scene, "at": at} for scene, at in zip(scenes(tmp_path, names), DEATHS, strict=True)]
    )
    assert {one.code for one in killed} == {-9}
    for name in names:
        near, far = listed(tmp_path / name), listed(tmp_path / f"{name}-far")
        assert far.items() <= near.items()
    for name in names[::2]:  # every second machine is lost with its disk
        shutil.rmtree(tmp_path / name)
    there = [listed(tmp_path / f"{name}-far") for name in names]
    ends = forks.play(SCENES, scenes(tmp_path, names))
    assert {one.code for one in ends} == {0}
    assert len({one.told["state"] for one in ends}) == 1
    for number, (name, end) in enumerate(zip(names, ends, strict=True)):
        if number % 2 == 0:
            assert end.told["resumed"] == ([max(there[number]), "far"] if there[number] else None)
        near, far = listed(tmp_path / name), listed(tmp_path / f"{name}-far")
        assert far[TOTAL] == near[TOTAL]
