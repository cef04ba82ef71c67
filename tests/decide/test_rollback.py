"""The ladder of rollbacks: which checkpoint, which batches are left out, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mementum.decide.rollback import (
    Course,
    Halt,
    Retreat,
    course_of,
    detours_after,
    groups_before,
    in_force,
    plain,
    roll_back,
)
from mementum.errors import UnknownFormat
from mementum.records import Detour, Diagnosis, Entry, Granularity, Health, Manifest


def entry(step: int, *, health: Health = Health.CLEAN, granularity: Granularity = Granularity.FULL) -> Entry:
    manifest = Manifest(
        id=f"c{step:04d}",
        seq=step,
        task="t",
        attempt=1,
        parent=None,
        step=step,
        epoch=0,
        time="",
        reason="",
        granularity=granularity,
        health=health,
        files=(),
    )
    return Entry(manifest=manifest, folder=f"step_{step:010d}")


def lost(onset: int, seen: int | None = None, *, hold: int = 20) -> Diagnosis:
    return Diagnosis(health=Health.DIVERGED, onset=onset, seen=seen, why="the loss rose", hold=hold, episode=1)


BRANCH = tuple(entry(step) for step in (50, 40, 30, 20, 10))


def went(found: Retreat | Halt) -> Retreat:
    assert isinstance(found, Retreat)
    return found


def detour(at_step: int, groups: int) -> Detour:
    return Detour(at_step=at_step, groups=groups)


def test_the_newest_clean_exact_whole_one_before_the_onset_is_taken() -> None:
    branch = (
        entry(50),
        entry(40),
        entry(35, health=Health.SUSPECT),
        replace(entry(33), damaged="torn"),
        entry(32, granularity=Granularity.WEIGHTS),
        replace(entry(31), judged=Health.DIVERGED),
        entry(30),
    )
    found = went(roll_back(lost(40, 44), branch, Course(), step=60, limit=3, skip=True))
    assert found.entry.manifest.step == 30
    assert found.course == Course(number=1, seen=44, back_to=30, detours=(detour(40, 5),))
    assert found.reason == "the loss rose: back to step 30, without the batches of steps 40 to 44 (rollback 1 of 3)"


def test_one_of_the_very_onset_is_not_from_before_it() -> None:
    assert went(roll_back(lost(40), BRANCH, Course(), step=60, limit=3, skip=True)).entry.manifest.step == 30
    assert went(roll_back(lost(41), BRANCH, Course(), step=60, limit=3, skip=True)).entry.manifest.step == 40


def test_every_further_rollback_of_a_trouble_goes_further_back_until_the_limit() -> None:
    course, steps = Course(lr_scale=0.5), []
    for _ in range(3):
        found = went(roll_back(lost(45, 47), BRANCH, course, step=60, limit=3, skip=True))
        course = found.course
        steps.append(found.entry.manifest.step)
    assert steps == [40, 30, 20]
    assert (course.number, course.lr_scale) == (3, 0.5)
    end = roll_back(lost(45, 47), BRANCH, course, step=60, limit=3, skip=True)
    assert end == Halt(reason="3 rollbacks have not ended the trouble, and 3 is the limit", kept=BRANCH[1])


def test_where_there_is_nothing_older_the_oldest_has_to_do() -> None:
    first = went(roll_back(lost(25), BRANCH[3:4], Course(), step=30, limit=3, skip=True))
    again = went(roll_back(lost(25), BRANCH[3:4], first.course, step=30, limit=3, skip=True))
    assert (first.entry, again.entry, again.course.number) == (BRANCH[3], BRANCH[3], 2)


def test_the_second_time_all_is_left_out_up_to_the_present_step() -> None:
    first = went(roll_back(lost(45, 47), BRANCH, Course(), step=60, limit=3, skip=True))
    assert first.course.detours == (detour(45, 3),)
    again = went(roll_back(lost(45, 47), BRANCH, first.course, step=60, limit=3, skip=True))
    assert again.course.detours == (detour(45, 3 + 16),)


def test_a_trouble_is_another_one_once_the_run_has_got_well_past_the_last() -> None:
    course = Course(number=3, seen=24, back_to=20, detours=(detour(23, 2),))
    assert isinstance(roll_back(lost(44, hold=20), BRANCH, course, step=60, limit=3, skip=True), Halt)
    found = went(roll_back(lost(45, hold=20), BRANCH, course, step=60, limit=3, skip=True))
    assert (found.entry.manifest.step, found.course.number) == (40, 1)
    assert found.course.detours == (detour(23, 2), detour(45, 1))


def test_without_a_clean_one_there_is_nowhere_to_go() -> None:
    found = roll_back(lost(10), BRANCH, Course(), step=60, limit=3, skip=True)
    assert found == Halt(reason="no clean checkpoint is from before step 10", kept=None)


def test_batches_are_left_in_where_that_is_wished() -> None:
    found = went(roll_back(lost(45, 47), BRANCH, Course(detours=(detour(5, 2),)), step=60, limit=3, skip=False))
    assert found.course.detours == (detour(5, 2),)
    assert "without" not in found.reason


def taken(detours: tuple[Detour, ...], upto: int) -> list[int]:
    """The number of the group that each step takes, from step 1."""
    groups, position = [], 0
    for step in range(1, upto + 1):
        position += groups_before(detours, step) + 1
        groups.append(position)
    return groups


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=4),
    st.integers(1, 40),
    st.integers(0, 10),
)
def test_what_is_left_out_is_what_those_steps_took_and_the_rest_stays_in_order(
    pairs: list[tuple[int, int]], first: int, length: int
) -> None:
    before = tuple(detour(at_step, groups) for at_step, groups in sorted(pairs))
    last = first + length
    after = detours_after(before, first=first, last=last)
    was, now = taken(before, 90), taken(after, 90 - length - 1)
    assert now == was[: first - 1] + was[last:]


def test_a_plan_replaces_what_was_ahead_of_its_checkpoint() -> None:
    assert in_force((detour(3, 1), detour(9, 2)), (detour(2, 7), detour(5, 4)), step=4) == (detour(3, 1), detour(5, 4))


def test_a_course_comes_back_from_a_context() -> None:
    course = Course(number=2, seen=7, back_to=3, detours=(detour(5, 4),), lr_scale=0.25)
    assert course_of(plain(course)) == course
    assert course_of(None) == Course()


@pytest.mark.parametrize("stored", [{}, {"detours": 3}, {**plain(Course()), "detours": [[1]]}])
def test_what_is_no_course_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(UnknownFormat, match="rollbacks"):
        course_of(stored)
