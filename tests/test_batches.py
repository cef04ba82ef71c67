"""What the steps of a loop take: groups that are left out are thrown away once, whatever ends between them."""

from __future__ import annotations

from dataclasses import replace

from mementum.batches import Batches
from mementum.decide.rollback import Course
from mementum.live.feeds import feed_for
from mementum.records import Detour
from mementum.restoring import Beginning

COURSE = Course(detours=(Detour(at_step=3, groups=3),))
BEGINNING = Beginning(values={}, course=COURSE)
ALL = 10**6


def test_a_detour_is_cut_by_the_end_and_goes_on_where_it_was() -> None:
    batches = Batches(feed_for([1, 2, 3, 4]), BEGINNING)
    assert [batches.take(step, accumulate=1, epochs=1) for step in (1, 2, 3)] == [[1], [2], None]
    assert batches.thrown == 2
    place = batches.place()
    assert batches.take(3, accumulate=1, epochs=ALL) == [2]  # 3 and 4 were thrown away before, 1 now
    assert (batches.thrown, batches.take(4, accumulate=1, epochs=ALL)) == (0, [3])
    again = Batches(None, replace(BEGINNING, step=2, feed=place, course=replace(COURSE, thrown=2)))
    again.attach([1, 2, 3, 4])
    assert again.take(3, accumulate=1, epochs=ALL) == [2]


def test_nothing_is_left_out_of_data_that_cannot_tell_its_place() -> None:
    batches = Batches(None, BEGINNING)
    assert not batches.cannot_skip
    batches.attach({1: "a", 2: "b", 3: "c", 4: "d"})
    assert batches.cannot_skip
    assert [batches.take(step, accumulate=1, epochs=1) for step in (1, 2, 3)] == [[1], [2], [3]]
    done = Batches(None, replace(BEGINNING, step=3))
    done.attach({1: "a"})
    assert not done.cannot_skip
