"""Saves of different worth beside each other: none takes from one that holds more, or that somebody waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deaths import die, left
from mementum.decide.policy import both
from mementum.events import Committed, SnapshotKept
from mementum.records import Decision, Granularity, Reach, Save, Situation
from snapshots import TASK, Made

FULL, WEIGHTS = Granularity.FULL, Granularity.WEIGHTS


class Told:
    """Decides what the test says for each step."""

    def __init__(self, **saves: Save) -> None:
        self.saves = saves

    def decide(self, situation: Situation) -> Decision | None:
        return self.saves.get(f"s{situation.step}")


KEPT = Save(reason="in memory", reach=Reach.PROCESS)
LIGHT = Save(reason="weights", granularity=WEIGHTS)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for one in left(path, TASK):
        one.remove()


def test_weights_on_the_disk_do_not_outdo_an_exact_state_in_memory(root: Path) -> None:
    made = Made()
    run = made.open(root, policy=Told(s1=Save(reason="whole"), s2=KEPT, s3=LIGHT))
    for step in (1, 2, 3):
        made.step(run)
        run.wait()
        if step == 2:
            expected = made.state()
    assert (made.steps(Committed), made.steps(SnapshotKept)) == ([1, 3], [2])
    die(run)
    fresh = Made()
    with fresh.open(root, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (2, "ram")
        assert fresh.state() == expected


def test_weights_of_the_last_step_are_not_its_last_save(root: Path) -> None:
    made = Made()
    with made.open(root, policy=Told(s2=LIGHT)) as run:
        made.step(run)
        made.step(run)
        run.wait()
    with Made().open(root, resume="must") as run:
        assert (run.resumed.step, run.resumed.tier) == (2, "ssd")


def test_an_asked_save_is_made_whatever_the_policy_wants_at_its_step(root: Path) -> None:
    made = Made()
    with made.open(root, policy=Told(s1=KEPT, s2=LIGHT)) as run:
        for step, _ in run.steps([0, 0, 0], total=3):
            run.save(f"milestone {step}") if step < 3 else None
            made.step(run)
    told = {event.step: event.reason for event in made.told.of(Committed)}
    assert told[1] == "milestone 1; in memory"
    assert told[2] == "milestone 2; weights"
    entries = {path.parent.name[5:15]: path for path in root.rglob("optimizer.blocks")}
    assert {"0000000001", "0000000002"} <= set(entries)


def test_one_save_serves_two() -> None:
    asked = Save(reason="asked", cause="asked", numbers={"a": 1.0})
    assert both(None, None) is None
    assert both(KEPT, None) is KEPT
    assert both(None, LIGHT) is LIGHT
    made = both(replace_numbers(KEPT, b=2.0), asked)
    assert made == Save(
        reason="asked; in memory", granularity=FULL, reach=Reach.REBOOT, numbers={"a": 1.0, "b": 2.0}, cause="asked"
    )
    assert both(KEPT, LIGHT) == Save(reason="in memory; weights", granularity=FULL, reach=Reach.REBOOT)
    assert both(asked, asked).reason == "asked"  # type: ignore[union-attr]


def replace_numbers(save: Save, **numbers: float) -> Save:
    return Save(reason=save.reason, granularity=save.granularity, reach=save.reach, numbers=numbers, cause=save.cause)


def test_a_save_waits_for_its_copy_in_memory(root: Path) -> None:
    made = Made()
    with made.open(root, policy=Told(s1=KEPT)) as run:
        made.step(run)
        assert run.wait()
        assert made.steps(SnapshotKept) == [1]
