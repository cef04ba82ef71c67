"""All detectors together: one alarm an episode, quiet on real healthy runs, awake on real spikes."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from mementum.perceive.alarms import Detectors
from mementum.perceive.calibration import Seen
from mementum.perceive.signs import Limits
from mementum.perceive.vitals import VitalSigns
from mementum.records import Alarm, Trouble, Vitals

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
HEALTHY = DATA / "modded-nanogpt-logs/llmc_gpt2-124M_2024-10-13_main.log"
SPIKES = DATA / "bigscience-chronicles/logged_iterations.csv"
LINE = re.compile(r"s:(\d+) trl:([\d.]+) lr:([\d.]+) norm:([\d.]+)")


def vitals(step: int = 0, **signs: object) -> Vitals:
    return Vitals(step=step, at_s=float(step), **signs)  # type: ignore[arg-type]


def troubles(alarms: Iterable[Alarm]) -> list[tuple[int, Trouble]]:
    return [(alarm.step, alarm.trouble) for alarm in alarms]


@pytest.mark.skipif(not HEALTHY.exists(), reason="the logs are not beside the repository")
def test_a_healthy_run_of_19560_steps_has_few_alarms() -> None:
    signs, detectors = VitalSigns(), Detectors()
    alarms: list[Alarm] = []
    rows = LINE.findall(HEALTHY.read_text())
    for step, loss, lr, norm in rows:
        seen = signs.observe(int(step), at_s=0.0, loss=float(loss), grad_norm=float(norm), lr=float(lr))
        alarms += detectors.look(seen)
    assert len(rows) == 19_560
    assert len(alarms) <= len(rows) / 1000
    assert troubles(alarms) == [(7435, Trouble.GRAD_SPIKE), (9025, Trouble.GRAD_SPIKE)]  # 5.3 and 7.5 times the usual


def spike(run: str, first: int, last: int) -> list[tuple[int, Trouble]]:
    """The alarms of the logged iterations, after 400 steps of noise about the loss and the norm of the first."""
    with SPIKES.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["run"] == run and first <= int(row["iteration"]) <= last]
    dice, signs, detectors = random.Random(1), VitalSigns(), Detectors()
    loss, norm = float(rows[0]["lm_loss"]), float(rows[0]["grad_norm"])
    for step in range(first - 400, first):
        noisy_loss, noisy_norm = loss + dice.gauss(0.0, 0.03), norm * dice.lognormvariate(0.0, 0.15)
        assert detectors.look(signs.observe(step, at_s=0.0, loss=noisy_loss, grad_norm=noisy_norm)) == ()
    alarms: list[Alarm] = []
    for row in rows:
        loss, norm = float(row["lm_loss"]), float(row["grad_norm"])
        alarms += detectors.look(signs.observe(int(row["iteration"]), at_s=0.0, loss=loss, grad_norm=norm))
    return troubles(alarms)


@pytest.mark.skipif(not SPIKES.exists(), reason="the chronicles are not beside the repository")
@pytest.mark.parametrize(
    ("run", "first", "last", "seen"),
    [
        ("tr11-176B-ml", 31214, 31222, [(31215, Trouble.GRAD_SPIKE), (31219, Trouble.LOSS_SPIKE)]),  # 4 steps ahead
        ("tr8-104B-wide", 11446, 11448, [(11447, Trouble.GRAD_SPIKE), (11448, Trouble.LOSS_SPIKE)]),
        ("tr8-104B-wide", 8738, 8743, [(8740, Trouble.GRAD_SPIKE), (8741, Trouble.LOSS_SPIKE)]),
        ("tr8b-104B", 17060, 17065, [(17062, Trouble.LOSS_SPIKE)]),
    ],
)
def test_real_spikes_are_seen(run: str, first: int, last: int, seen: list[tuple[int, Trouble]]) -> None:
    assert spike(run, first, last) == seen


def test_an_episode_is_told_once_and_ends_after_calm_steps() -> None:
    detectors = Detectors(Limits(calm_steps=5))
    bad, good = {"finite": False}, {"loss": 1.0}
    course = [bad] * 3 + [good] * 4 + [bad] + [good] * 5 + [bad]
    alarms = [alarm for step, signs in enumerate(course) for alarm in detectors.look(vitals(step, **signs))]
    assert troubles(alarms) == [(0, Trouble.NON_FINITE), (13, Trouble.NON_FINITE)]


def test_memory_is_told_again_as_its_chance_rises() -> None:
    detectors = Detectors()
    alarms: list[Alarm] = []
    for step in range(450):
        seen = vitals(step, step_s=1.0, memory_used=0.5 + step / 1000, memory_steps_left=float(500 - step))
        alarms += detectors.look(seen, save_s=50.0)
    assert {alarm.trouble for alarm in alarms} == {Trouble.MEMORY}
    chances = [alarm.chance for alarm in alarms]
    assert len(chances) == 4
    assert all(least <= chance < least + 0.05 for least, chance in zip((0.01, 0.1, 0.5, 0.9), chances, strict=True))
    assert alarms[2].step == 400
    assert [alarm.horizon_s for alarm in alarms] == [100.0] * 4


def test_two_troubles_of_one_step_are_two_alarms() -> None:
    alarms = Detectors().look(vitals(9, finite=False, memory_used=0.99, memory_steps_left=inf))
    assert [(alarm.trouble, alarm.chance) for alarm in alarms] == [(Trouble.NON_FINITE, 0.0), (Trouble.MEMORY, 0.5)]


def test_only_the_troubles_that_are_asked_for_are_told() -> None:
    """The others are learnt all the same: an episode that nobody wanted to hear of does not hide another trouble."""
    full, broken = vitals(2, memory_used=0.98), vitals(1, finite=False)
    every, some = Detectors(), Detectors(which=[Trouble.MEMORY])
    assert troubles([*every.look(broken), *every.look(full)]) == [(1, Trouble.NON_FINITE), (2, Trouble.MEMORY)]
    assert troubles([*some.look(broken), *some.look(full)]) == [(2, Trouble.MEMORY)]


def test_alarms_that_were_wrong_lose_their_weight_within_an_attempt() -> None:
    detectors = Detectors(Limits(calm_steps=5))
    chances = []
    for cycle in range(8):
        for step in range(cycle * 1000, cycle * 1000 + 1000, 20):
            used = 0.98 if step % 1000 == 500 else 0.5
            chances += [alarm.chance for alarm in detectors.look(vitals(step, step_s=1.0, memory_used=used), rate=1e-4)]
    assert chances == pytest.approx([0.5 * 4 / (4 + wrong) - 10e-4 for wrong in range(8)])


def test_chances_follow_how_alarms_of_earlier_attempts_turned_out() -> None:
    full = vitals(2, memory_used=0.98)
    right = {Trouble.MEMORY: Seen(raised=20, right=16)}
    assert Detectors(seen=right).look(full)[0].chance == pytest.approx((2 + 16) / 24)
    wrong = Detectors(seen={Trouble.MEMORY: Seen(raised=96, right=0)}).look(full)[0]
    assert (wrong.chance, wrong.claimed) == (pytest.approx(0.02), 0.5)


def test_trouble_that_ends_no_process_has_no_chance_to() -> None:
    alarms = course_of(Detectors(), range(1500))
    spoils = [alarm for alarm in alarms if not alarm.trouble.is_crash]
    assert {alarm.trouble for alarm in spoils} == {
        Trouble.LOSS_SPIKE,
        Trouble.GRAD_SPIKE,
        Trouble.DRIFT,
        Trouble.NON_FINITE,
        Trouble.OVERFITTING,
    }
    assert {alarm.chance for alarm in spoils} == {0.0}


def course_of(detectors: Detectors, steps: Iterable[int]) -> list[Alarm]:
    """The alarms of a run with every trouble there is, which only depends on the step."""
    alarms: list[Alarm] = []
    for step in steps:
        dice = random.Random(step)
        loss = dice.gauss(3.0 - 1e-4 * step, 0.05) + 0.002 * max(0, step - 900)
        seen = vitals(
            step,
            finite=step != 700,
            loss=None if step == 700 else loss,
            loss_z=50.0 if step == 400 else dice.gauss(0.0, 1.0),
            grad_norm=dice.lognormvariate(0.0, 0.1) * (5.0 if 500 < step < 510 else 1.0),
            grad_z=16.0 if 500 < step < 510 else 0.0,
            layer_ratio=1.5,
            update_ratio=1e-8 if 1300 < step < 1320 else 1e-3,
            lr=1e-3,
            memory_used=0.6 + 0.4 * (step % 800) / 800,
            memory_steps_left=float(800 - step % 800),
            step_s=dice.lognormvariate(0.0, 0.05) * (1.5 if step > 1000 else 1.0),
        )
        eval_loss = 2.0 + 0.001 * step if step % 100 == 0 else None
        alarms += detectors.look(seen, eval_loss=eval_loss, save_s=20.0)
    return alarms


@pytest.mark.parametrize("cut", [1, 401, 507, 933, 1005, 1308])
def test_detectors_that_go_on_from_their_state_tell_the_same(cut: int) -> None:
    whole = course_of(Detectors(), range(1500))
    before, after = Detectors(), Detectors()
    alarms = course_of(before, range(cut))
    after.apply(json.loads(json.dumps(before.state())))
    # How earlier alarms have turned out is no part of the state: the next attempt reads it in the journals.
    both = alarms + course_of(after, range(cut, 1500))
    assert [replace(one, chance=0.0) for one in both] == [replace(one, chance=0.0) for one in whole]
    assert {alarm.trouble for alarm in whole} == set(Trouble) - {Trouble.HANG, Trouble.HARDWARE}


def test_a_state_of_another_version_is_passed_by() -> None:
    fresh = Detectors()
    fresh.apply({"version": 99, "sums": [1.0]})
    assert fresh.state() == Detectors().state()


def test_nothing_given_is_nothing_said() -> None:
    detectors = Detectors()
    assert [detectors.look(vitals(step)) for step in range(0, 3000, 7)] == [()] * len(range(0, 3000, 7))
