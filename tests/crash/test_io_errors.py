"""A disk that says no: whatever operation of a save or removal fails, older checkpoints stay and work goes on."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator

import pytest
from crash_promises import broken, leftovers
from crash_saves import Process
from plain_catalog import PlainCatalog

from mementum.errors import StoreError
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import SimDisk

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EACCES)
OPERATIONS_OF_A_SAVE = 29  # of the second one of a task; a change of the protocol changes it
OPERATIONS_OF_A_REMOVAL = 12


def failing_disks(number: int, *, then_heal: bool = True) -> Iterator[tuple[SimDisk, FailingDisk]]:
    """One for each operation that may fail, until nothing failed. A whole checkpoint, number 1, is on each."""
    for fail_at in itertools.count():
        disk = SimDisk()
        Process(disk, set(), catalog=PlainCatalog()).save(1, step=10)
        failing = FailingDisk(disk, fail_at, OSError(number, "planted"), then_heal=then_heal)
        yield disk, failing
        if not failing.failed:
            return


def error_of(act: Callable[..., object], *arguments: int, **named: int) -> StoreError | None:
    try:
        act(*arguments, **named)
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_save_that_fails_leaves_nothing_and_the_next_one_works(number: int) -> None:
    tried = 0
    for disk, failing in failing_disks(number):
        told = {"saved 1"}
        process = Process(failing, told, catalog=PlainCatalog())
        error = error_of(process.save, 2, step=20)
        if not failing.failed:
            break
        tried += 1
        if tried == 1 and number == errno.EACCES:  # of the folder above the store, which need not be ours to sync
            assert error is None
            continue
        assert error is not None
        assert isinstance(error.__cause__, OSError)
        assert error.__cause__.errno == number
        assert error.kept == "older checkpoints"
        assert [entry.manifest.step for entry in process.catalog.entries(process.home)] == [10]
        assert leftovers(disk) == []
        assert broken(disk, frozenset(told), catalog=process.catalog) is None
        process.save(3, step=20)
        assert broken(disk, frozenset(told), catalog=process.catalog) is None
        assert told == {"saved 1", "saved 3"}
    assert tried == OPERATIONS_OF_A_SAVE


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_disk_that_stays_broken_loses_nothing(number: int) -> None:
    tried = 0
    for disk, failing in failing_disks(number, then_heal=False):
        told = {"saved 1"}
        process = Process(failing, told, catalog=PlainCatalog())
        for attempt in (2, 3):
            if failing.failed or attempt == 2:
                error = error_of(process.save, attempt, step=20)
                assert failing.failed == (error is not None)
        assert broken(disk, frozenset(told), catalog=PlainCatalog()) is None
        failing.heal()
        process.sweep()
        assert leftovers(disk) == []
        process.save(4, step=20)
        assert broken(disk, frozenset(told), catalog=process.catalog) is None
        tried += 1
    assert tried == OPERATIONS_OF_A_SAVE + 1


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_a_removal_that_fails_is_done_by_the_next_start(number: int) -> None:
    tried = 0
    for disk, failing in failing_disks(number):
        told = {"saved 1"}
        Process(disk, told, catalog=PlainCatalog()).save(2, step=20)
        process = Process(failing, told, catalog=PlainCatalog())
        process.keep(1)  # what cannot go is told, and keeps no other one from going
        if not failing.failed:
            break
        assert broken(disk, frozenset(told), catalog=PlainCatalog()) is None
        later = Process(disk, told, catalog=process.catalog)
        later.sweep()
        later.keep(1)
        assert broken(disk, frozenset(told), catalog=PlainCatalog()) is None
        assert leftovers(disk) == []
        assert [entry.manifest.step for entry in later.catalog.entries(later.home)] == [20]
        tried += 1
    assert tried == OPERATIONS_OF_A_REMOVAL
