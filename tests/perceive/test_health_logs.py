"""Diagnoses of logged runs: no quarantine of healthy ones, and those of real jumps are dated to before them."""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest

from mementum.perceive.alarms import Detectors
from mementum.perceive.health import Judge
from mementum.perceive.vitals import VitalSigns
from mementum.records import Diagnosis, Health

DATA = Path(__file__).resolve().parents[2].parent / "shared/data"
HEALTHY = DATA / "modded-nanogpt-logs/llmc_gpt2-124M_2024-10-13_main.log"
LOSSES = DATA / "modded-nanogpt-logs/train_loss_per_step.csv.gz"
JUMPS = DATA / "bigscience-chronicles/logged_iterations.csv"
LINE = re.compile(r"s:(\d+) trl:([\d.]+) lr:([\d.]+) norm:([\d.]+)")
EVERY = 12  # of the loss-only runs: all of them take a minute, and were looked at once (docs/health.md)


class Eyes:
    def __init__(self) -> None:
        self.signs, self.detectors, self.judge = VitalSigns(), Detectors(), Judge()

    def look(self, step: int, loss: float, norm: float | None = None) -> Diagnosis:
        vitals = self.signs.observe(step, at_s=0.0, loss=loss, grad_norm=norm)
        self.detectors.look(vitals)
        return self.judge.look(vitals, self.detectors.signs)


@pytest.mark.skipif(not HEALTHY.exists(), reason="the logs are not beside the repository")
def test_a_healthy_run_of_19560_steps_is_never_suspect() -> None:
    eyes = Eyes()
    rows = LINE.findall(HEALTHY.read_text())
    told = [eyes.look(int(step), float(loss), float(norm)) for step, loss, _, norm in rows]
    assert len(told) == 19_560
    assert {diagnosis.health for diagnosis in told} == {Health.CLEAN}


@pytest.mark.skipif(not LOSSES.exists(), reason="the logs are not beside the repository")
def test_healthy_runs_with_only_a_loss_are_never_suspect() -> None:
    runs: dict[str, list[float]] = defaultdict(list)
    with gzip.open(LOSSES, "rt") as lines:
        for row in csv.DictReader(lines):
            runs[row["path"]].append(float(row["train_loss"]))
    some = [runs[name] for name in sorted(runs)[::EVERY]]
    assert sum(map(len, some)) > 15_000
    for losses in some:
        eyes = Eyes()
        assert {eyes.look(step, loss).health for step, loss in enumerate(losses)} == {Health.CLEAN}


def diagnosed(rows: list[dict[str, str]], seed: int) -> Diagnosis:
    """After the logged rows and 400 steps of noise about the first: those before it were not published."""
    dice, eyes = random.Random(seed), Eyes()
    first, loss, norm = int(rows[0]["iteration"]), float(rows[0]["lm_loss"]), float(rows[0]["grad_norm"])
    for step in range(first - 400, first):
        seen = eyes.look(step, loss + dice.gauss(0.0, 0.03), norm * dice.lognormvariate(0.0, 0.15))
        assert seen.health is Health.CLEAN
    for row in rows:
        seen = eyes.look(int(row["iteration"]), float(row["lm_loss"]), float(row["grad_norm"]))
    return seen


@pytest.mark.skipif(not JUMPS.exists(), reason="the chronicles are not beside the repository")
@pytest.mark.parametrize(
    ("run", "first", "last", "abnormal", "seen_by"),
    [
        ("tr11-176B-ml", 31214, 31222, 31215, 31219),  # the norm is 3.9 times as large four rows before the loss jumps
        ("tr8-104B-wide", 11446, 11448, 11447, 11448),
        ("tr8-104B-wide", 8738, 8743, 8740, 8741),
        ("tr8b-104B", 17060, 17065, 17062, 17062),
    ],
)
def test_real_jumps_are_dated_to_before_their_first_abnormal_row(
    run: str, first: int, last: int, abnormal: int, seen_by: int
) -> None:
    with JUMPS.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["run"] == run and first <= int(row["iteration"]) <= last]
    told = [diagnosed(rows, seed) for seed in range(10)]
    assert {one.health for one in told} == {Health.SUSPECT}
    assert max(one.seen or 0 for one in told) <= seen_by
    early = sorted(abnormal - (one.onset or 0) for one in told)
    assert early[0] >= 1
    assert early[8] <= 26  # a spell of noise before the jump may be taken for its beginning
    assert early[9] <= 80
