"""Memory that runs out: the forecast of when, and a save that is durable before it has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import pytest

from forks import Ended, play
from mementum.format import vitals

LEAKS = Path(__file__).with_name("leaks.py")
GROUPS = Path("/sys/fs/cgroup/memory")
ERROR_MAX = 0.2  # median over all forecasts
NEAREST_STEPS = 3  # from the limit: nearer ones are of no use to anybody, and a relative error of 1 step of 1 is 100 %
GROUP_PAUSE_S = 0.04  # a step: the kernel ends what leaks, however busy the machine is that should save before
LOST_S_MAX = 1.0  # of work. Budgets are of the time that has passed, so that a run of a second saves once or twice


def scene(root: Path, number: int, **more: Any) -> dict[str, Any]:
    limit = ("address space", "data")[number % 2]
    return {
        "play": "leak",
        "root": str(root / str(number)),
        "seed": number,
        "limit": limit,
        "even": number % 3 == 0,
    } | more


def forecasts(root: Path, died: int) -> Iterator[float]:
    """Relative errors of all that was said of steps left."""
    for file in root.rglob("*.vitals"):
        for row in vitals.parse(file.read_bytes()).rows.values():
            left = died - row.step
            if row.memory_steps_left is not None and math.isfinite(row.memory_steps_left) and left >= NEAREST_STEPS:
                yield abs(row.memory_steps_left - left) / left


def check_saved(end: Ended) -> None:
    """An alarm's save was durable before the end, and the newest one, or a snapshot in memory, is not far from it."""
    died = end.told["step"] + 1
    saves = end.told["saves_by_then"] if "saves_by_then" in end.told else end.told["saves"]
    assert saves, end
    step, reason = saves[-1]
    assert "memory" in reason, end
    assert "durable" in end.told, end
    assert (died - step) * end.told["step_s"] <= LOST_S_MAX, (died, step, reason)


def check_all(scenes: list[dict[str, Any]]) -> None:
    errors: list[float] = []
    ends = play(LEAKS, scenes)
    for leak, end in zip(scenes, ends, strict=True):
        assert end.code == 0, end
        assert "refused" in end.told, end
        check_saved(end)
        errors += forecasts(Path(leak["root"]), end.told["step"] + 1)
    print(f"{len(errors)} forecasts of {len(ends)} leaks, median error {100 * median(errors):.1f} %")
    assert len(errors) > 10 * len(ends)
    assert median(errors) <= ERROR_MAX


@pytest.mark.soak
def test_twenty_leaks_are_foreseen_and_a_save_is_durable_before_the_limit(tmp_path: Path) -> None:
    check_all([scene(tmp_path, number) for number in range(20)])


def test_leaks_are_foreseen_and_a_save_is_durable_before_the_limit(tmp_path: Path) -> None:
    check_all([scene(tmp_path, number) for number in range(20, 24)])


def test_a_save_is_durable_before_the_kernel_kills(tmp_path: Path) -> None:
    group = GROUPS / f"mementum-test-{uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        wish = {"play": "leak_in_a_group", "limit": "control group", "group": group.name, "pause_s": GROUP_PAUSE_S}
        (end,) = play(LEAKS, [scene(tmp_path, 3, **wish)])
    finally:
        group.rmdir()
    if end.code == 0 and "limited" in end.told and "refused" not in end.told:
        pytest.skip("limits of control groups are not enforced here")
    assert end.code == -9, end
    check_saved(end)
