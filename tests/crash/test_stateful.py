"""Saves, settlings, removals, deaths and power cuts in any order, found and shortened by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash_promises import broken, leftovers
from crash_saves import HOME, Process, number_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mementum.catalog.sql import open_sqlite
from mementum.errors import StoreError
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

EXAMPLES, STEPS = 40, 15
SOAK = 50  # times as many
SAVE, REMOVAL, APPEND, SETTLING = (
    30,
    14,
    6,
    24,
)  # operations of each and a few more: faults come in time, and sometimes too late
STEPS_OF_SAVES = st.sampled_from((10, 20, 30))  # few, so that one step is often saved again
End = tuple[int, str] | None


def ends(operations: int) -> st.SearchStrategy[End]:
    """A good end, or an operation and what happens at it."""
    return st.none() | st.tuples(st.integers(0, operations), st.sampled_from(("killed", "power cut", "fails")))


class Task(RuleBasedStateMachine):
    """One task on one disk. `told` is what was acknowledged, in the words of `crash_saves`."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.told: set[str] = set()
        self.number = 0
        self.rebuilds = 0
        self.catalog = open_sqlite(None)
        self.process = Process(self.disk, self.told, catalog=self.catalog)

    def teardown(self) -> None:
        self.catalog.close()

    @initialize(journaled=st.booleans())
    def choose_a_model(self, journaled: bool) -> None:
        self.journaled = journaled

    @rule(step=STEPS_OF_SAVES, end=ends(SAVE), data=st.data())
    def save(self, step: int, end: End, data: st.DataObject) -> None:
        self.number += 1
        number = self.number
        self.attempt(lambda process: process.save(number, step=step), end, data)

    @rule(last=st.integers(1, 3), end=ends(REMOVAL), data=st.data())
    def remove(self, last: int, end: End, data: st.DataObject) -> None:
        self.attempt(lambda process: process.keep(last), end, data)

    @rule(number=st.integers(0, 50), end=ends(SETTLING), data=st.data())
    def settle(self, number: int, end: End, data: st.DataObject) -> None:
        present = [number_of(entry.manifest.id) for entry in self.catalog.entries(self.home)]
        if present:
            chosen = present[number % len(present)]
            self.attempt(lambda process: process.settle(chosen), end, data)

    @rule(end=ends(REMOVAL), data=st.data())
    def sweep(self, end: End, data: st.DataObject) -> None:
        self.attempt(lambda process: process.sweep(), end, data)
        if end is None:
            assert leftovers(self.disk) == []

    @rule(end=ends(APPEND), data=st.data())
    def note(self, end: End, data: st.DataObject) -> None:
        self.number += 1
        number = self.number
        self.attempt(lambda process: process.note(number), end, data)

    @rule(data=st.data())
    def cut_the_power_at_rest(self, data: st.DataObject) -> None:
        self.cut_the_power(data)

    @rule()
    def kill_at_rest(self) -> None:
        self.start(self.disk.after_process_death())

    @rule()
    def delete_the_catalog(self) -> None:
        self.rebuilds += 1
        self.start(self.disk)

    def attempt(self, act: Callable[[Process], object], end: End, data: st.DataObject) -> None:
        """Let the process do something, to its end or up to a fault."""
        if end is None:
            act(self.process)
            return
        after, what = end
        if what == "fails":
            inner = self.disk
            try:
                act(Process(FailingDisk(inner, after), self.told, catalog=self.catalog, home=self.home))
            except StoreError:
                self.start(inner)  # what the failed call left in the catalog does not matter
            return
        self.disk.cut_at = self.disk.operations + after
        try:
            act(self.process)
        except PowerCut:
            if what == "killed":
                self.start(self.disk.after_process_death())
            else:
                self.cut_the_power(data)
        self.disk.cut_at = None

    def cut_the_power(self, data: st.DataObject) -> None:
        def choose(options):  # type: ignore[no-untyped-def]
            return data.draw(st.sampled_from(options))

        self.start(self.disk.after_power_cut(choose, journaled=self.journaled))

    @property
    def home(self) -> str:
        return f"{HOME} {self.rebuilds}"

    def start(self, disk: SimDisk) -> None:
        """The next process start on this disk. Only some of them sweep."""
        self.disk = disk
        self.process = Process(disk, self.told, catalog=self.catalog, home=self.home)

    @invariant()
    def every_promise_holds(self) -> None:
        assert (
            broken(self.disk, frozenset(self.told), catalog=self.catalog, home=f"{self.home} as seen by others") is None
        )


class LongTask(Task):
    """The same for hours."""


FEW = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck))
Task.TestCase.settings = FEW
LongTask.TestCase.settings = settings(FEW, max_examples=EXAMPLES * SOAK)
TestTask = Task.TestCase
TestLongTask = pytest.mark.soak(LongTask.TestCase)
