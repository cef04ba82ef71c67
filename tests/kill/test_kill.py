"""A training that is killed five times ends with the same bits as one that was never killed; each start is fresh.

kill -9 proves process death only, never power loss.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from killer import PHASES, Aim, Phase, Siege, Tally, aim_at, straight_run
from starts import Fresh

KILLS = 5


def test_a19_five_kills_change_nothing(tmp_path: Path, rng: random.Random) -> None:
    tally = Tally()
    targets: list[Phase] = [phase for phase in PHASES if phase != "resume"]
    rng.shuffle(targets)
    # Each phase once; the resume later, when there is something to resume from.
    aims = [aim_at(target, tally, rng) for target in (*targets, "resume")]
    with Fresh(starts_max=KILLS + 2) as fresh:  # a run without a kill, and the start that reaches the end
        siege = Siege(fresh.start, straight_run(fresh.start, tmp_path / "straight"), tally)
        siege.train(tmp_path / "killed", aims)
    print(f"\n{' '.join(map(str, aims))}\n{tally}")
    assert tally.kills >= KILLS


@pytest.mark.parametrize("text", ["capture:2:0.00310:group", "step:8:0.00000:trainer"])
def test_an_aim_is_written_as_it_is_read(text: str) -> None:
    assert str(Aim.parse(text)) == text
