"""Removal and ageing, cut at every operation: nothing that is kept is damaged, and the next sweep finishes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest
from crash_promises import content_of
from crash_saves import FOLDER, Process
from plain_catalog import PlainCatalog
from prunings import age, entry_of, listed, refer_to, swept, take

from mementum.catalog.rebuild import refresh
from mementum.records import Granularity, Manifest
from mementum.testing.choices import EveryChoice
from mementum.testing.simdisk import PowerCut, SimDisk

SURVIVORS_MAX = 64
Act = Callable[[Process], object]


def referred(process: Process) -> None:
    """The first has the files of the second and the third; the fourth stands alone."""
    process.save(1, step=10)
    refer_to(process, 1, 2, step=20)
    refer_to(process, 1, 3, step=30, linked=True)
    process.save(4, step=40)


def plain(process: Process) -> None:
    for number in (1, 2, 3):
        process.save(number, step=number * 10)


def coded(process: Process) -> None:
    plain(process)
    process.settle(1)


def disks(before: Act, act: Act) -> Iterator[tuple[int, SimDisk]]:
    """Every disk that a kill, or a cut of the power, at any operation of `act` could leave; each with the operation."""
    start, seen = SimDisk(), set[object]()
    before(Process(start, set(), catalog=PlainCatalog()))
    for cut in itertools.count():
        disk, finished = start.after_process_death(), False
        process = Process(disk, set(), catalog=PlainCatalog())
        disk.cut_at = disk.operations + cut
        with contextlib.suppress(PowerCut):
            act(process)
            finished = True
        disk.cut_at = None
        for found in (disk.after_process_death(), *_survivors(disk)):
            if content_of(found) not in seen:
                seen.add(content_of(found))
                yield cut, found
        if finished:
            return


def _survivors(disk: SimDisk) -> Iterator[SimDisk]:
    choose = EveryChoice()
    for number in itertools.count(1):
        assert number <= SURVIVORS_MAX
        yield disk.after_power_cut(choose, journaled=False)
        if not choose.advance():
            return


@pytest.mark.parametrize("gone", [(1,), (1, 2), (3,), (1, 2, 3)])
def test_removal_takes_no_file_that_another_names(gone: tuple[int, ...]) -> None:
    """Verdicts that no retention of ours would give: the teller looks for itself."""
    tried = 0
    for cut, disk in disks(referred, lambda process: take(process, *gone)):
        tried += 1
        found = listed(disk)
        assert found.keys() >= {1, 2, 3, 4} - set(gone), f"cut before operation {cut}"
        assert swept(disk).keys() == found.keys()
        process = Process(disk, set(), catalog=PlainCatalog())
        take(process, *gone)
        assert listed(disk).keys() == {1, 2, 3, 4} - set(gone)
    assert tried > 3


def test_when_the_last_one_that_names_it_goes_the_sweep_takes_the_rest() -> None:
    disk = SimDisk()
    process = Process(disk, set(), catalog=PlainCatalog())
    referred(process)
    take(process, 1)
    assert swept(disk).keys() == {2, 3, 4}
    assert disk.listdir(f"{FOLDER}/step_0000000010") == ["model.safetensors", "optimizer.blocks"]
    take(Process(disk, set(), catalog=PlainCatalog()), 2)
    assert swept(disk).keys() == {3, 4}
    assert "step_0000000010/" not in disk.listdir(FOLDER)


@pytest.mark.parametrize(
    ("before", "left", "granularity"),
    [
        (plain, (0, 2), Granularity.WEIGHTS),
        (plain, (0, 1), Granularity.WEIGHTS_AND_OPTIMIZER),
        (plain, (2,), Granularity.ESSENTIALS),
        (coded, (0,), Granularity.WEIGHTS),
        (coded, (1, 2), Granularity.ESSENTIALS),
    ],
)
def test_ageing_leaves_it_whole_in_one_generation(before: Act, left: tuple[int, ...], granularity: Granularity) -> None:
    seen = set()
    for cut, disk in disks(before, lambda process: age(process, 1, *left)):
        found = listed(disk)
        assert found.keys() == {1, 2, 3}, f"cut before operation {cut}"
        seen.add(found[1].levels)
        assert (found[1].granularity is Granularity.FULL) == (found[1].levels == (0, 1, 2))
        again = swept(disk)
        assert again[1].levels == found[1].levels, f"cut before operation {cut}"
        process = Process(disk, set(), catalog=PlainCatalog())
        if again[1].levels != left:
            assert isinstance(age(process, 1, *left), Manifest)
        done = swept(disk)[1]
        assert (done.levels, done.granularity) == (left, granularity)
        refresh(process.catalog, process.home, process.store)
        assert entry_of(process, 1).manifest == done
    assert seen == {(0, 1, 2), left}


def test_ageing_of_what_has_linked_files_leaves_the_others_theirs() -> None:
    for _, disk in disks(referred, lambda process: age(process, 3, 2)):
        assert listed(disk).keys() == {1, 2, 3, 4}
        assert swept(disk).keys() == {1, 2, 3, 4}


def test_ageing_of_what_names_files_of_another_lets_go_of_them() -> None:
    for _, disk in disks(referred, lambda process: age(process, 2, 2)):
        assert listed(disk).keys() == {1, 2, 3, 4}
    process = Process(disk, set(), catalog=PlainCatalog())
    assert [file.folder for file in entry_of(process, 2).manifest.files] == [None, None]
    take(process, 1)
    assert swept(disk).keys() == {2, 3, 4}
