"""Which states are marked by a diagnosis, which one is kept, and which pins are given up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mementum.decide.quarantine import (
    PINS_KEPT,
    State,
    changed,
    given_up,
    health_at,
    marks,
    to_keep,
)
from mementum.records import Diagnosis, Health

CLEAN = Diagnosis()
SUSPECT = Diagnosis(health=Health.SUSPECT, onset=293, seen=300, why="the loss jumped", episode=1)
DIVERGED = replace(SUSPECT, health=Health.DIVERGED)
OVER = Diagnosis(calm=100, hold=100, episode=1)


def states(*steps: int, health: Health = Health.CLEAN, durable: bool = True) -> list[State]:
    return [State(id=f"c{step:05d}", step=step, health=health, durable=durable) for step in steps]


def test_it_is_news_when_the_health_the_onset_or_the_trouble_changes() -> None:
    assert not changed(CLEAN, CLEAN)
    assert not changed(OVER, replace(OVER, calm=0))
    assert changed(CLEAN, SUSPECT)
    assert not changed(SUSPECT, replace(SUSPECT, calm=7))
    assert changed(SUSPECT, DIVERGED)
    assert changed(SUSPECT, replace(SUSPECT, onset=280))
    assert changed(SUSPECT, replace(SUSPECT, episode=2))
    assert changed(DIVERGED, OVER)


def test_a_state_is_trusted_before_the_onset_and_not_at_it() -> None:
    assert health_at(SUSPECT, 292) is Health.CLEAN
    assert health_at(SUSPECT, 293) is Health.SUSPECT
    assert health_at(DIVERGED, 1000) is Health.DIVERGED
    assert health_at(CLEAN, 1000) is Health.CLEAN
    assert health_at(replace(SUSPECT, onset=None), 0) is Health.SUSPECT


def test_all_from_the_onset_on_are_marked_with_the_reason() -> None:
    found = marks(CLEAN, SUSPECT, 300, states(250, 292, 293, 299))
    assert [(mark.step, mark.health) for mark in found] == [(293, Health.SUSPECT), (299, Health.SUSPECT)]
    assert {mark.why for mark in found} == {"from step 293 on: the loss jumped"}


def test_what_is_marked_is_not_marked_again_and_becomes_no_better() -> None:
    held = [*states(295, health=Health.SUSPECT), *states(297, health=Health.DIVERGED)]
    assert marks(SUSPECT, SUSPECT, 301, held) == ()
    assert [(mark.step, mark.health) for mark in marks(SUSPECT, DIVERGED, 350, held)] == [(295, Health.DIVERGED)]


def test_an_onset_that_is_found_earlier_marks_what_lies_between() -> None:
    earlier = replace(SUSPECT, onset=240)
    assert [mark.step for mark in marks(SUSPECT, earlier, 310, states(230, 250))] == [250]


def test_when_it_is_over_only_the_calm_stretch_becomes_clean() -> None:
    held = states(295, 336, 337, 430, health=Health.SUSPECT)
    found = marks(SUSPECT, OVER, 436, held)
    assert [(mark.step, mark.health) for mark in found] == [(337, Health.CLEAN), (430, Health.CLEAN)]
    assert found[0].why == "the run was calm again from step 337 on"


def test_what_is_not_finite_never_becomes_clean() -> None:
    held = [replace(state, unsound=True) for state in states(400, health=Health.DIVERGED)]
    assert marks(DIVERGED, OVER, 436, held) == ()


def test_the_newest_clean_state_from_before_the_onset_is_kept() -> None:
    held = [*states(200, 250), *states(280, 290, durable=False), *states(293)]
    found = to_keep(SUSPECT, held, {"c00290"})
    assert found is not None
    assert (found.state.step, found.why) == (290, "the newest state before step 293, where the loss jumped")
    without = to_keep(SUSPECT, held, ())
    assert without is not None
    assert without.state.step == 250


@pytest.mark.parametrize(
    "state",
    [
        State(id="c", step=293, durable=True),
        State(id="c", step=200, durable=True, exact=False),
        State(id="c", step=200, durable=True, health=Health.SUSPECT),
        State(id="c", step=200, durable=True, health=Health.DIVERGED, unsound=True),
        State(id="c", step=200),
    ],
    ids=("at the onset", "not exact", "suspect", "not finite", "out of reach"),
)
def test_what_is_never_kept(state: State) -> None:
    assert to_keep(SUSPECT, [state], ()) is None


def test_nothing_is_kept_without_a_trouble() -> None:
    assert to_keep(CLEAN, states(200), ()) is None
    assert to_keep(OVER, states(200), ()) is None


def test_of_equal_steps_the_one_on_the_disk_is_kept() -> None:
    held = [State(id="c1", step=290, durable=True), State(id="c2", step=290)]
    found = to_keep(SUSPECT, held, {"c2"})
    assert found is not None
    assert found.state.id == "c1"


def test_pins_of_past_troubles_are_given_up_but_for_the_newest() -> None:
    ours = [replace(state, pinned="before it broke") for state in states(100, 200, 300, 400)]
    assert [state.step for state in given_up([*states(50), *ours, *states(500)])] == [200, 100]
    assert given_up(ours[:PINS_KEPT]) == ()


def test_no_state_from_after_an_onset_is_ever_clean_while_the_trouble_lasts(rng: random.Random) -> None:
    """Over random troubles: whatever was saved, when, and however the onset moves."""
    for _ in range(200):
        held = {state.id: state for state in states(*sorted(rng.sample(range(1000), 30)))}
        onset = rng.randrange(1, 1000)
        before = CLEAN
        for _ in range(4):
            health = Health.DIVERGED if before.health is Health.DIVERGED else rng.choice((*Health,)[1:])
            after = Diagnosis(health=health, onset=onset, seen=1000, why="x", episode=1)
            for mark in marks(before, after, 1000, held.values()):
                held[mark.id] = replace(held[mark.id], health=mark.health)
            assert all((state.health is Health.CLEAN) == (state.step < onset) for state in held.values())
            kept = to_keep(after, held.values(), ())
            best = max((state.step for state in held.values() if state.step < onset), default=None)
            assert (None if kept is None else kept.state.step) == best
            before, onset = after, rng.randrange(1, onset + 1)
