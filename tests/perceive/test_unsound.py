"""What is found in a saved state counts at the next look, whatever the vital signs show."""

from __future__ import annotations

import random

from mementum.perceive.health import Judge
from mementum.records import Diagnosis, Health, Vitals

WHY = "model.weight is not finite"


def watched(judge: Judge, steps: range) -> Diagnosis:
    dice = random.Random(4)
    told = Diagnosis()
    for step in steps:
        loss = 2.0 + dice.gauss(0.0, 0.05)
        told = judge.look(Vitals(step=step, at_s=float(step), loss=loss, loss_z=0.0, grad_norm=1.0), ())
    return told


def test_all_since_the_newest_finite_state_is_in_doubt() -> None:
    judge = Judge(hold=20)
    assert watched(judge, range(1, 301)).health is Health.CLEAN
    judge.found(300, 250, WHY)
    told = watched(judge, range(301, 302))
    assert (told.health, told.seen, told.why, told.episode) == (Health.DIVERGED, 301, WHY, 1)
    assert told.onset is not None
    assert told.onset <= 251
    held = watched(judge, range(302, 321))
    assert (held.health, held.onset) == (Health.DIVERGED, told.onset)


def test_where_little_was_seen_what_is_known_to_be_finite_is_trusted() -> None:
    judge = Judge()
    watched(judge, range(1, 9))
    judge.found(8, 6, WHY)
    assert watched(judge, range(9, 10)).onset == 7


def test_in_a_trouble_it_makes_worse_and_moves_no_onset_that_was_before_it() -> None:
    judge = Judge()
    watched(judge, range(1, 301))
    judge.found(300, 250, WHY)
    first = watched(judge, range(301, 302))
    judge.found(310, 100, WHY)  # the states between were never looked at, and the onset is known already
    again = watched(judge, range(302, 312))
    assert (again.health, again.onset, again.episode) == (Health.DIVERGED, first.onset, 1)


def test_what_a_rollback_left_behind_is_forgotten() -> None:
    judge = Judge()
    watched(judge, range(1, 101))
    state = judge.state()
    watched(judge, range(101, 151))
    judge.found(150, 149, WHY)
    judge.apply(state)
    assert watched(judge, range(101, 103)).health is Health.CLEAN
