"""Cuts the power at every point of what a task does to its folder, then looks at every disk that could be found.

    python tests/crash/crash_check.py [--source FOLDER] [NAME ...]

runs all checks or the named ones, prints how many disks each has looked at, and ends with 1 at a broken promise.

`kill -9` cannot see any of this: the page cache outlives the process, so that a missing fsync, a name that was never
made durable and an order that only the disk has changed all look right after it. It proves the death of processes only.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import crash_workloads as workloads
import side_checks
from crash_promises import BrokenPromise, broken, content_of, unrecovered
from crash_saves import HOME, Process
from crash_workloads import Work
from plain_catalog import PlainCatalog

import mementum
from mementum.catalog.catalog import Catalog
from mementum.catalog.sql import open_sqlite
from mementum.errors import StoreError
from mementum.storage.disk import Disk
from mementum.testing.choices import EveryChoice, power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

SURVIVORS_MAX = 32  # of one cut: a right protocol leaves a handful
PATIENCE = 4096  # the same for a wrong one, whose fault should be told and not only its number of survivors
BROKEN_EXIT, WRONG_SOURCE_EXIT = 1, 2
Found = tuple[int, frozenset[str], SimDisk]
Wrap = Callable[[SimDisk], Disk]

_homes = itertools.count(1)


class Round:
    """One run of a workload after the other: all in one catalog, each under a name of its own in it."""

    def __init__(self, work: Work, *, catalog: Catalog | None = None) -> None:
        self.wrap: Wrap = lambda disk: disk
        self._work = work
        self._catalog = catalog or PlainCatalog()
        self._home = ""
        self.seen: set[object] = set()

    def __call__(self, disk: SimDisk, told: set[str]) -> None:
        self._home = f"{HOME} {next(_homes)}"
        self._work(Process(self.wrap(disk), told, catalog=self._catalog, home=self._home))

    def examine(self, found: Iterator[Found]) -> int:
        """How many disks were found; BrokenPromise at the first that is not as it should be. The catalog is the one
        that the run has left: for the disks of one cut, one after the other, it knows too much or too little.

        Many cuts leave the same disk, which is looked at once."""
        tried = 0
        for cut, told, disk in found:
            tried += 1
            if (told, content_of(disk)) in self.seen:
                continue
            self.seen.add((told, content_of(disk)))
            what = broken(disk, told, catalog=self._catalog, home=self._home)
            if what is None:  # and once more for a process that finds no catalog
                what = unrecovered(disk, told, catalog=self._catalog, home=f"{HOME} {next(_homes)}")
            if what is not None:
                raise BrokenPromise(f"cut before operation {cut}: {what}")
        return tried


def from_nothing(work: Work, *, journaled: bool, at_most: int) -> int:
    """Cut the power of a first process start. Where disks are fewer, the catalog is a real one."""
    run = Round(work, catalog=open_sqlite(None) if journaled else None)
    return run.examine(power_cuts(run, journaled=journaled, at_most=at_most))


def from_a_disk(
    run: Round, start: SimDisk, told: frozenset[str], *, journaled: bool, at_most: int, first_cut: int = 0
) -> int:
    """The same on a disk that is not empty. `start` stays as it is."""

    def found() -> Iterator[Found]:
        for cut in itertools.count(first_cut):
            disk, known, finished = start.after_process_death(), set(told), False
            disk.cut_at = cut
            with contextlib.suppress(PowerCut):
                run(disk, known)
                finished = True
            choose = EveryChoice()
            for number in itertools.count(1):
                assert number <= at_most, f"over {at_most} survivors of the cut before operation {cut}"
                yield cut, frozenset(known), disk.after_power_cut(choose, journaled=journaled)
                if not choose.advance():
                    break
            if finished:
                return

    return run.examine(found())


def at_rest(work: Work, *, journaled: bool, at_most: int) -> int:
    """Cut the power when everything has been acknowledged."""
    start, told = prepared(work)
    return from_a_disk(Round(workloads.nothing), start, told, journaled=journaled, at_most=at_most)


def prepared(before: Work) -> tuple[SimDisk, frozenset[str]]:
    disk, told = SimDisk(), set[str]()
    Round(before)(disk, told)
    return disk, frozenset(told)


def after_a_death(before: Work, dies: Work, then: Work, *, journaled: bool, at_most: int) -> int:
    """Kill a process before every operation of `dies`; cut the power before every one of the start that follows."""
    start, told = prepared(before)
    tried, run = 0, Round(then)
    for death in itertools.count():
        disk, known, finished = start.after_process_death(), set(told), False
        disk.cut_at = death
        with contextlib.suppress(PowerCut):  # here: kill -9
            Round(dies)(disk, known)
            finished = True
        try:
            dead = disk.after_process_death()
            tried += from_a_disk(run, dead, frozenset(known), journaled=journaled, at_most=at_most)
        except BrokenPromise as error:
            raise BrokenPromise(f"killed before operation {death}, then {error}") from error
        if finished:
            return tried
    raise AssertionError("unreachable")


def after_an_error(before: Work, fails: Work, *, journaled: bool, at_most: int) -> int:
    """Let every operation of `fails` fail once; cut the power before every one from there on."""
    start, told = prepared(before)
    tried, disks = 0, list[FailingDisk]()
    run = Round(partial(_told_of_errors, fails))
    for fail_at in itertools.count():

        def failing(disk: SimDisk, fail_at: int = fail_at) -> Disk:
            disks.append(FailingDisk(disk, fail_at, OSError(errno.EIO, "planted")))
            return disks[-1]

        run.wrap = failing
        try:
            tried += from_a_disk(run, start, told, journaled=journaled, at_most=at_most, first_cut=fail_at)
        except BrokenPromise as error:
            raise BrokenPromise(f"operation {fail_at} failed, then {error}") from error
        if not disks[-1].failed:
            return tried
    raise AssertionError("unreachable")


def _told_of_errors(work: Work, process: Process) -> None:
    with contextlib.suppress(StoreError):
        work(process)


def checks(*, at_most: int = SURVIVORS_MAX) -> dict[str, Callable[[], int]]:
    """All checks by name, each with at most so many survivors of one cut. Names in `posix` may lose any change of
    names, those in `journaled` only the last ones."""
    found: dict[str, Callable[[], int]] = {}
    for model in ("posix", "journaled"):
        how: dict[str, Any] = {"journaled": model == "journaled", "at_most": at_most}
        for work in workloads.FROM_NOTHING:
            found[f"{work.__name__}:{model}"] = partial(from_nothing, work, **how)
        for work in workloads.AT_REST:
            found[f"{work.__name__}:at_rest:{model}"] = partial(at_rest, work, **how)
        for before, dies, then in workloads.DEATHS:
            found[f"{dies.__name__}:killed:{then.__name__}:{model}"] = partial(after_a_death, before, dies, then, **how)
        for before, fails in workloads.ERRORS:
            found[f"{fails.__name__}:failing:{model}"] = partial(after_an_error, before, fails, **how)
    return found | side_checks.CHECKS


def main() -> int:
    parser = argparse.ArgumentParser(description="cut the power everywhere")
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run; without one, all")
    parser.add_argument("--source", type=Path, help="where mementum must come from")
    arguments = parser.parse_args()
    source = Path(mementum.__file__)
    if arguments.source is not None and not source.is_relative_to(arguments.source.resolve()):
        print(f"mementum is {source}, not in {arguments.source}", file=sys.stderr)
        return WRONG_SOURCE_EXIT
    known = checks(at_most=PATIENCE)
    total = 0
    for name in arguments.names or known:
        began_s = time.perf_counter()
        try:
            tried = known[name]()
        except BrokenPromise as error:
            print(f"{name}: BROKEN: {error}")
            return BROKEN_EXIT
        total += tried
        print(f"{name}: {tried} tried in {time.perf_counter() - began_s:.2f} s", flush=True)
    print(f"{total} in all, every promise holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
