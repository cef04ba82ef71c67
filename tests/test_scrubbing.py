"""Checkpoints are read back within a share of the time, and what is found out becomes facts of that copy alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from copies import content, folder_of, save
from made import entry as made
from mementum.catalog import facts
from mementum.clock import ManualClock, timestamp
from mementum.config.tiers import Scrub, Tier
from mementum.errors import Unreachable
from mementum.events import Event, Failed, Note
from mementum.execute.compress import GaveUp
from mementum.mending import Mending
from mementum.opening import Opened, open_task
from mementum.places import Places, open_sites
from mementum.placing import Copied, place
from mementum.records import Entry, Fact
from mementum.scrubbing import WORK_S_MAX, Share, Sound, Unproved, Unsound, due, scrub
from mementum.storage.around import Around
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.tending import Tending
from mementum.testing.simdisk import SimDisk

WEEK_S = 7 * 86_400.0


def flip(store: Store, key: str, at: int = -5) -> None:
    data = bytearray(store.get(key))
    data[at] ^= 1
    store.replace(key, [bytes(data)])


def share_of(clock: ManualClock, waited: list[float], *, stop_after: int = 10**9) -> Share:
    def wait(duration_s: float) -> str | None:
        waited.append(duration_s)
        clock.sleep(duration_s)
        return "stopped" if len(waited) > stop_after else None

    return Share(0.005, clock=clock, wait=wait)


class Slow(Around):
    """Every read takes 4 ms of a clock."""

    def __init__(self, inner: Store, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock, self.reads = clock, 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self.reads += 1
        self._clock.sleep(0.004)
        return super().get(key, start, size)


def test_it_takes_no_more_than_its_share() -> None:
    clock, waited = ManualClock(), list[float]()
    store = Slow(LocalStore(SimDisk(), "root"), clock)
    entry = save(store, 3, frozen=1)
    began_s = clock.monotonic()
    assert isinstance(scrub(entry, store=store, deep=True, share=share_of(clock, waited)), Sound)
    worked_s = 0.004 * store.reads
    assert store.reads >= 6  # manifest, index, context, three data files
    assert worked_s / (clock.monotonic() - began_s) <= 0.005 * (1 + 1 / (store.reads - 1)) + 1e-9
    clock.advance(1e6)  # the machine slept
    share = share_of(clock, waited)
    clock.advance(1e6)
    share.rest()
    assert waited[-1] == pytest.approx(WORK_S_MAX * 199)


def test_it_ends_between_two_blocks() -> None:
    clock = ManualClock()
    store = LocalStore(SimDisk(), "root")
    entry = save(store, 3)
    with pytest.raises(GaveUp, match="stopped"):
        scrub(entry, store=store, deep=True, share=share_of(clock, [], stop_after=2))


def test_large_files_are_read_past_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.scrubbing.DIRECT_MIN", 1000)
    store = LocalStore(PosixDisk(), str(tmp_path / "root"))
    entry = save(store, 3)
    asked: list[tuple[str, int | None]] = []

    class Told(Around):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            asked.append((key.rpartition("/")[2], size))
            return super().get(key, start, size)

    clock = ManualClock()
    assert isinstance(scrub(entry, store=Told(store), deep=True, share=share_of(clock, [])), Sound)
    assert "optimizer.blocks" not in {name for name, _ in asked}
    flip(store, f"{entry.folder}/optimizer.blocks")
    found = scrub(entry, store=Told(store), deep=True, share=share_of(clock, []))
    assert isinstance(found, Unsound)
    assert "optimizer.blocks" in {name for name, _ in asked}  # the store has the last word


def test_what_is_damaged_and_what_is_not() -> None:
    clock, disk = ManualClock(), SimDisk()
    store = LocalStore(disk, "root")
    entry = save(store, 3)
    flip(store, f"{entry.folder}/optimizer.blocks")
    found = scrub(entry, store=store, deep=True, share=share_of(clock, []))
    assert isinstance(found, Unsound)
    assert [damage.key for damage in found.damage] == [f"{entry.folder}/optimizer.blocks"]
    assert isinstance(scrub(entry, store=store, deep=False, share=share_of(clock, [])), Sound)
    other = replace(entry, manifest=replace(entry.manifest, id="cother"))
    assert isinstance(scrub(other, store=store, deep=True, share=share_of(clock, [])), Unproved)

    class Silent(Around):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            raise Unreachable(key, f"{key}: nobody answers")

    silent = scrub(entry, store=Silent(store), deep=True, share=share_of(clock, []))
    assert silent == Unproved(reason=f"{entry.folder}/meta.json: nobody answers")


def test_a_read_that_failed_once_is_no_damage() -> None:
    clock = ManualClock()
    store = LocalStore(SimDisk(), "root")
    entry = save(store, 3)
    wrong = iter((True,))

    class Once(Around):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            data = super().get(key, start, size)
            return memoryview(bytes(len(data))) if key.endswith(".blocks") and next(wrong, False) else data

    assert isinstance(scrub(entry, store=Once(store), deep=True, share=share_of(clock, [])), Sound)
    assert next(wrong, None) is None


def test_the_order() -> None:
    entries = [made(1, verified="2026-01-03"), made(2, verified="2026-01-02"), made(3), made(4), made(5, damaged="x")]
    asked: list[int] = []
    looked: dict[str, float] = {}
    while (found := due(entries, before="2026-02-01", looked=looked, since_s=10.0)) is not None:
        asked.append(found.manifest.seq)
        looked[found.manifest.id] = 11.0
    assert asked == [4, 3, 2, 1]
    newest = [*entries, made(6, verified="2026-01-04")]
    assert due(newest, before="2026-02-01", looked={}, since_s=10.0) is newest[-1]
    assert due(newest, before="2026-01-01", looked={"c3": 11.0, "c4": 11.0}, since_s=10.0) is None


def fact(kind: str, day: int, **values: Any) -> Fact:
    return Fact(kind=kind, time=f"2026-11-{day:02d}", checkpoint="c1", values=values)


def test_facts_of_a_copy_say_nothing_of_the_others() -> None:
    placed = [fact("placed", 1, tier="a", url="u"), fact("placed", 1, tier="b", url="v")]
    known = facts.known([*placed, fact("verified", 2), fact("damaged", 3, tier="a", what="x")])
    assert (known.damaged, known.verified) == (None, "2026-11-02")
    assert [(one.tier, one.damaged, one.verified) for one in known.places] == [("a", "x", None), ("b", None, None)]
    known = facts.known([*placed, fact("damaged", 3, what="y"), fact("verified", 4, tier="b")])
    assert (known.damaged, known.verified) == ("y", None)
    assert [(one.tier, one.damaged, one.verified) for one in known.places] == [
        ("a", None, None),
        ("b", None, "2026-11-04"),
    ]
    known = facts.known([*placed, fact("damaged", 3, tier="a", what="x"), fact("verified", 5, tier="a")])
    assert (known.places[0].damaged, known.places[0].verified) == (None, "2026-11-05")
    known = facts.known([fact("damaged", 3, tier="c", what="x")])
    assert (known.damaged, known.places) == (None, ())


class Task:
    """A task with checkpoints 3 and 4, in its root and on two tiers, held by an attempt."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.events, self.told = ManualClock(), list[Event](), list[tuple[str, str, dict[str, Any]]]()
        wishes = [Tier(url=str(folder / name), name=name) for name in ("a", "b")]
        root = folder / "root"
        sites = open_sites(wishes, root, clock=self.clock)
        places = Places(sites, emit=self.events.append)
        self.opened: Opened = open_task(root, "t", about={}, clock=self.clock, emit=self.events.append, places=places)
        self.sites = sites
        self.entries = {step: save(self.opened.store, step, frozen=1) for step in (3, 4)}
        for entry in self.entries.values():
            self.opened.catalog.add(self.opened.home, entry.manifest, entry.folder)
            for site in sites:
                done = place(
                    entry, source=self.opened.store, target=site.store, require_newest=nobody, pause=lambda: None
                )
                assert isinstance(done, Copied)
                site.catalog.add(site.home, done.manifest, done.folder)
                self.tell("placed", entry.manifest.id, 0, {"tier": site.name, "url": site.url})
        self.told.clear()
        self.waits: list[float] = []

    def tell(self, kind: str, id: str, step: int, values: Any) -> None:
        self.told.append((kind, id, dict(values)))
        one = Fact(kind=kind, time=timestamp(self.clock.now()), checkpoint=id, step=step, values=values)
        self.opened.store.append(self.opened.journal, facts.render(one))
        from mementum.catalog.rebuild import learn

        learn(self.opened.catalog, self.opened.home, self.opened.store)

    def tending(self, **wishes: Any) -> Tending:
        mending = Mending(self.opened, tell=self.tell, require_newest=nobody, emit=self.events.append)
        tending = Tending(
            self.opened,
            Scrub(**wishes),
            mending,
            tell=self.tell,
            over=lambda: False,
            clock=self.clock,
            emit=self.events.append,
        )
        tending._share = share_of(self.clock, self.waits)
        return tending

    def known(self) -> dict[int, Entry]:
        return {entry.manifest.step: entry for entry in self.opened.catalog.entries(self.opened.home)}


def nobody() -> None:
    """No later attempt comes."""


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    made = Task(tmp_path)
    yield made
    made.opened.close()


def rounds(tending: Tending) -> int:
    count = 0
    while tending.once():
        count += 1
        assert count < 100
    return count


def test_every_copy_is_read_the_newest_first(task: Task) -> None:
    tending = task.tending()
    assert rounds(tending) == 6
    assert task.told == [
        *(("verified", "c4", values) for values in ({}, {"tier": "a"}, {"tier": "b"})),
        *(("verified", "c3", values) for values in ({}, {"tier": "a"}, {"tier": "b"})),
    ]
    known = task.known()
    assert all(entry.verified is not None for entry in known.values())
    assert all(place.verified is not None for entry in known.values() for place in entry.places)
    task.clock.advance(WEEK_S / 2)
    assert rounds(tending) == 0
    task.clock.advance(WEEK_S / 2 + 1)
    assert rounds(tending) == 6


@pytest.mark.parametrize("where", ["root", "a"])
def test_what_is_damaged_is_told_and_mended(task: Task, where: str) -> None:
    store = task.opened.store if where == "root" else task.sites[0].store
    before = content(store)
    flip(store, f"{folder_of(4)}/optimizer.blocks")
    assert rounds(task.tending()) == 6
    values = {} if where == "root" else {"tier": "a"}
    said = [one for one in task.told if one[1] == "c4" and one[2].get("tier") == values.get("tier")]
    assert [kind for kind, _, _ in said] == ["damaged", "repaired", "verified"]
    assert "optimizer.blocks" in said[0][2]["what"]
    assert said[1][2] == {**values, "from": "a" if where == "root" else "the root", "files": "optimizer.blocks"}
    assert content(store) == before
    entry = task.known()[4]
    assert (entry.damaged, [place.damaged for place in entry.places]) == (None, [None, None])
    assert any(isinstance(event, Note) and "put right" in event.text for event in task.events)


def test_what_nobody_can_mend_is_told_once(task: Task) -> None:
    for store in (task.opened.store, *(site.store for site in task.sites)):
        flip(store, f"{folder_of(4)}/optimizer.blocks")
    tending = task.tending()
    rounds(tending)
    task.clock.advance(WEEK_S)
    rounds(tending)
    failed = [event for event in task.events if isinstance(event, Failed)]
    assert len([event for event in failed if event.what.startswith("repairing c4")]) == 3
    assert len([event for event in failed if event.what.startswith("reading back c4")]) == 3
    assert "no place has a good copy" in failed[1].error
    entry = task.known()[4]
    assert entry.damaged is not None
    assert all(place.damaged is not None for place in entry.places)
    assert task.known()[3].damaged is None


def test_what_was_removed_meanwhile_is_no_damage(task: Task) -> None:
    tending = task.tending()
    entry = task.entries[4]

    def gone() -> None:
        task.opened.catalog.forget(task.opened.home, entry.folder)
        for key in content(task.opened.store, entry.folder):
            task.opened.store.delete(key)

    before = iter((gone,))
    rest: Callable[[], None] = tending._share.rest

    def resting() -> None:
        rest()
        next(before, nobody)()

    tending._share.rest = resting  # type: ignore[method-assign]
    tending.once()
    assert task.told == []
    assert not [event for event in task.events if isinstance(event, Failed)]


def test_the_thread_ends_with_the_run(task: Task) -> None:
    tending = task.tending()
    tending.start()
    thread = tending._thread
    assert thread is not None
    tending.stop()
    assert not thread.is_alive()
    assert task.told == []
