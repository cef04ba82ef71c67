"""No power cut of a tier's disk while checkpoints are copied there damages what is listed; the next start finishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from copies import content, folder_of, save, whole
from mementum.execute.halves import clear_halves
from mementum.execute.transfer import Owners
from mementum.format import generations
from mementum.mirroring import mirror
from mementum.placing import Copied, Form, place
from mementum.pruning import sweep
from mementum.records import Entry
from mementum.storage.local import LocalStore
from mementum.testing.choices import power_cuts
from mementum.testing.simdisk import SimDisk

SURVIVORS_MAX = 64  # of one cut
Work = Callable[[LocalStore, set[str]], None]


def near() -> tuple[LocalStore, list[Entry]]:
    store = LocalStore(SimDisk(), "near")
    store.put("attempts/0001.json", [b'{"task": "t"}'])
    store.append("journal/0001.jsonl", b'{"kind":"metrics","time":"2026-11-30T00:00:00Z"}\n')
    return store, [save(store, step, frozen=1) for step in (3, 4)]


SOURCE, ENTRIES = near()
OTHER = LocalStore(SimDisk(), "other")
THEIRS = save(OTHER, 3, id="cother", seed=9)


def bring(target: LocalStore, entry: Entry, told: set[str], *, source: LocalStore = SOURCE, **wishes: object) -> None:
    done = place(entry, source=source, target=target, require_newest=_newest, pause=_goes_on, **wishes)  # type: ignore[arg-type]
    assert isinstance(done, Copied), done
    told.add(f"{done.folder} {done.manifest.id}")


def _newest() -> None:
    """Nobody comes."""


def _goes_on() -> None:
    """Nothing stops it."""


def two(target: LocalStore, told: set[str]) -> None:
    """The second has a file of the first."""
    mirror(SOURCE, target)
    owners = Owners()
    for entry in ENTRIES:
        bring(target, entry, told, owners=owners)


def coded(target: LocalStore, told: set[str]) -> None:
    bring(target, ENTRIES[0], told, form=Form(codec="zstd:1"))


def fewer(target: LocalStore, told: set[str]) -> None:
    bring(target, ENTRIES[0], told, form=Form(levels=(0, 2)))


def after_anothers_half(target: LocalStore, told: set[str]) -> None:
    """Another checkpoint's copy ended in the middle, in the folder that is wanted."""
    left = iter((None, None))
    place(THEIRS, source=OTHER, target=target, require_newest=_newest, pause=lambda: next(left, "stopped"))
    bring(target, ENTRIES[0], told)


def first(target: LocalStore, told: set[str]) -> None:
    bring(target, ENTRIES[0], told)


def require_whole(target: LocalStore, told: set[str]) -> None:
    keys = [stat.key for stat in target.list("step_")]
    listed = {folder: whole(target, folder).id for folder in generations.newest(keys)}
    assert told <= {f"{folder} {id}" for folder, id in listed.items()}


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(("work", "again"), [(two, two), (coded, coded), (fewer, fewer), (after_anothers_half, first)])
def test_what_is_listed_is_whole_after_every_cut(work: Work, again: Work, journaled: bool) -> None:
    def run(disk: SimDisk, told: set[str]) -> None:
        work(LocalStore(disk, "far"), told)

    finished = LocalStore(SimDisk(), "far")
    work(finished, set())
    tried, seen = 0, set[object]()
    for _, told, disk in power_cuts(run, journaled=journaled, at_most=SURVIVORS_MAX):
        target = LocalStore(disk, "far")
        tried += 1
        mark = (frozenset(told), tuple(content(target, "").items()))
        if mark in seen:
            continue
        seen.add(mark)
        require_whole(target, set(told))
        target.sweep()  # what a start does
        clear_halves(target, lambda id: id in {entry.manifest.id for entry in ENTRIES})
        again(target, set())
        assert content(target, "") == content(finished, "")
    assert tried > 50
    assert len(seen) > 5


def test_a_fetch_that_was_cut_is_gone_on_with() -> None:
    """The same from a tier to the root: its sweep leaves the half copy to who knows whether it is wanted."""

    def run(disk: SimDisk, told: set[str]) -> None:
        bring(LocalStore(disk, "home"), ENTRIES[0], told)

    for _, told, disk in power_cuts(run, journaled=True, at_most=SURVIVORS_MAX):
        home = LocalStore(disk, "home")
        require_whole(home, set(told))
        marked = any("placing-" in stat.key for stat in home.list("step_"))
        parts = {key for key in content(home) if "placing-" not in key}
        sweep(home, emit=lambda event: None)
        if marked:
            assert parts <= set(content(home))
        bring(home, ENTRIES[0], set())
        assert whole(home, folder_of(3)) == ENTRIES[0].manifest
        assert {key.partition("/")[2] for key in content(home)} == {
            key.partition("/")[2] for key in content(SOURCE, folder_of(3))
        }
