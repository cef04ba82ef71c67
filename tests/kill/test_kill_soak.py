"""Trainings that are killed 200 times, at least 20 times in every phase, end with the same bits as one never killed.

kill -9 proves process death only, never power loss.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from killer import PHASES, Siege, Tally, hunt, straight_run
from starts import Zygote

KILLS = 200
HITS_MIN = 20
KILLS_MAX = 1000  # that many shots without 20 hits everywhere: the killer aims badly, not the product


@pytest.mark.soak
def test_two_hundred_kills_change_nothing(tmp_path: Path, rng: random.Random, seed: int) -> None:
    tally = Tally()
    print(f"\nseed {seed}")
    with Zygote() as zygote:
        siege = Siege(zygote.start, straight_run(zygote.start, tmp_path / "straight"), tally)
        for number in itertools.count(1):
            kills = KILLS if min(tally.hit[phase] for phase in PHASES) >= HITS_MIN else KILLS_MAX
            siege.train(tmp_path / f"killed-{number}", hunt(tally, rng, kills=kills))
            if tally.kills >= kills:
                break
    print(tally)
    assert tally.kills >= KILLS
    assert all(tally.hit[phase] >= HITS_MIN for phase in PHASES), f"seed {seed}:\n{tally}"
