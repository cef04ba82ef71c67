"""Cuts the power at every point of what a task does to its folder, and looks at every disk that could be found.

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
from pathlib import Path

from crash_promises import broken, leftovers, unrecovered
from crash_saves import FOLDER, HOME, Process
from rot_check import rot

import mementum
from mementum.catalog.catalog import Catalog
from mementum.catalog.sql import open_sqlite
from mementum.errors import KeyTaken, MementumError, StoreError
from mementum.storage.local import LocalStore
from mementum.storage.store import Buffer
from mementum.testing.choices import EveryChoice, power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

SURVIVORS_MAX = 32  # of one cut: our protocol leaves at most a dozen, and a shortcut should be named, not searched
Work = Callable[[Process], None]
Start = Callable[[], tuple[SimDisk, frozenset[str]]]
Found = tuple[str, frozenset[str], SimDisk]

_homes = itertools.count()


class BrokenPromise(Exception):
    """A disk on which something does not hold that we said would."""


def two_saves(process: Process) -> None:
    process.save(1, step=10)
    process.save(2, step=20)


def one_step_twice(process: Process) -> None:
    process.save(1, step=10)
    process.save(2, step=10)


def two_saves_keep_one(process: Process) -> None:
    two_saves(process)
    process.keep(1)


def a_step_saved_again_after_its_removal(process: Process) -> None:
    two_saves_keep_one(process)
    process.save(3, step=10)


def a_sweep_of_leftovers(process: Process) -> None:
    process.save(1, step=10)
    process.leave_parts(2, step=20)
    process.sweep()


def a_journal(process: Process) -> None:
    process.save(1, step=10)
    for number in (1, 2, 3):
        process.note(number)


def claims(process: Process) -> None:
    process.claim()
    process.save(1, step=10)


WORKLOADS: tuple[Work, ...] = (
    two_saves,
    one_step_twice,
    two_saves_keep_one,
    a_step_saved_again_after_its_removal,
    a_sweep_of_leftovers,
    a_journal,
    claims,
)


def examine(found: Iterator[Found], catalog: Catalog, home: Callable[[], str]) -> int:
    """How many disks were found; BrokenPromise at the first that is not as it should be."""
    tried = 0
    for when, told, disk in found:
        tried += 1
        what = broken(disk, told, catalog=catalog, home=home()) or unrecovered(disk, told, catalog=catalog, home=home())
        if what is not None:
            raise BrokenPromise(f"{when}: {what}")
    return tried


def cut_everywhere(work: Work, *, journaled: bool) -> int:
    """Cut the power before every operation of a first process start."""
    catalog = open_sqlite(None)
    home = ""

    def workload(disk: SimDisk, told: set[str]) -> None:
        nonlocal home
        home = f"{HOME} {next(_homes)}"
        work(Process(disk, told, catalog=catalog, home=home))

    cuts = power_cuts(workload, journaled=journaled, at_most=SURVIVORS_MAX)
    return examine(((f"cut before operation {cut}", told, disk) for cut, told, disk in cuts), catalog, lambda: home)


def cut_after(start: Start, work: Work, *, journaled: bool, fail_at: int | None = None) -> int:
    """Cut the power before every operation that `work` does on the disk of `start`. With `fail_at`, that operation
    fails, the power stays on up to there, and BrokenPromise tells an error that was not raised."""
    catalog = open_sqlite(None)
    home = ""

    def found() -> Iterator[Found]:
        nonlocal home
        for cut in itertools.count(fail_at or 0):
            disk, before = start()
            disk.cut_at = disk.operations + cut
            told, home = set(before), f"{HOME} {next(_homes)}"
            failing = None if fail_at is None else FailingDisk(disk, fail_at, OSError(errno.EIO, "planted"))
            finished = False
            with contextlib.suppress(PowerCut, *(() if failing is None else (StoreError,))):
                try:
                    work(Process(failing or disk, told, catalog=catalog, home=home))
                except PowerCut:
                    raise
                except StoreError:
                    finished = True
                    raise
                finished = True
            choose = EveryChoice()
            for number in itertools.count(1):
                assert number <= SURVIVORS_MAX, f"over {SURVIVORS_MAX} survivors of the cut before operation {cut}"
                yield f"cut before operation {cut}", frozenset(told), disk.after_power_cut(choose, journaled=journaled)
                if not choose.advance():
                    break
            if finished:
                return

    return examine(found(), catalog, lambda: home)
