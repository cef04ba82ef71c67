"""Saves, removals, pins, releases, ageing, frozen weights that are used again and files that others name, in any order:
what must stay is there after every step, and whatever is listed is whole."""

from __future__ import annotations

from crash_saves import HOME, NOW_S, Process, id_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mementum.catalog import facts, noted
from mementum.catalog.rebuild import learn
from mementum.catalog.sql import open_sqlite
from mementum.clock import timestamp
from mementum.decide.ageing import Ageing, aged
from mementum.decide.evict import evict
from mementum.decide.protection import protected
from mementum.decide.retain import Retention, retain
from mementum.execute.holdings import holdings
from mementum.pruning import prune, sweep
from mementum.records import Entry, Fact, Granularity, Manifest, Verdict
from mementum.recover.verify import read_manifest, verify
from mementum.testing.simdisk import SimDisk
from mementum.withering import wither
from references import refer

EXAMPLES, STEPS = 60, 20
DAY_S = 86_400.0
OWNERS = ("somebody@host", "flight recorder", "release:t:1", "release:t:2")


class Kept(RuleBasedStateMachine):
    """One task on one disk, that nothing ever goes wrong with but for what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.catalog = open_sqlite(None)
        self.process = Process(self.disk, set(), catalog=self.catalog)
        self.number = self.facts = 0
        self.days = 0.0

    def teardown(self) -> None:
        for entry in self.entries():
            assert verify(self.process.store, entry.folder, entry.manifest, deep=True) == ()
        sweep(self.process.store, emit=lambda event: None)
        for entry in self.entries():
            assert verify(self.process.store, entry.folder, entry.manifest, deep=True) == ()
        self.catalog.close()

    def entries(self) -> list[Entry]:
        return list(self.catalog.entries(HOME))

    def chosen(self, which: int, *, full: bool = False) -> Entry | None:
        found = [one for one in self.entries() if not full or one.manifest.granularity is Granularity.FULL]
        return found[which % len(found)] if found else None

    @rule(codec=st.sampled_from([None, "settled"]))
    def save(self, codec: str | None) -> None:
        self.number += 2 if codec is None else 1
        self.process.save(self.number, step=self.number * 10)
        if codec is not None and self.number % 2:
            self.process.settle(self.number)

    @rule(which=st.integers(0, 9), linked=st.booleans())
    def save_with_files_of_another(self, which: int, linked: bool) -> None:
        owner = self.chosen(which, full=True)
        if owner is not None:
            self.number += 1
            given = {"store": self.process.store, "catalog": self.catalog, "home": HOME, "linked": linked}
            refer(owner, id=id_of(self.number), seq=self.number, step=self.number * 10, **given)  # type: ignore[arg-type]

    @rule(which=st.integers(0, 9), owner=st.sampled_from(OWNERS), kind=st.sampled_from(["pin", "unpin"]))
    def pin(self, which: int, owner: str, kind: str) -> None:
        entry = self.chosen(which)
        if entry is not None:
            self.tell(kind, entry, why="it is looked at", by=owner)

    @rule(which=st.integers(0, 9), kind=st.sampled_from(["verified", "damaged", "health"]))
    def find_out(self, which: int, kind: str) -> None:
        entry = self.chosen(which)
        if entry is not None:
            self.tell(kind, entry, **({"health": "suspect", "why": "late"} if kind == "health" else {"what": "x"}))

    @rule(last=st.integers(1, 3), every=st.sampled_from([None, 50]), spread=st.integers(0, 2), best=st.integers(0, 2))
    def forget(self, last: int, every: int | None, spread: int, best: int) -> None:
        entries = self.entries()
        wanted = Retention(last=last, every_steps=every, spread=spread, best=best)
        self.remove(retain(entries, wanted), entries)

    @precondition(lambda self: self.number > 3)
    @rule(part=st.floats(0, 1.5))
    def make_room(self, part: float) -> None:
        entries = self.entries()
        need = int(part * sum(one.manifest.size for one in entries))
        found = evict(entries, need=need, holdings=holdings(entries, self.process.store))
        self.remove(found.verdicts, entries)

    @rule(days=st.sampled_from([1.0, 5.0]), levels=st.tuples(*[st.sampled_from([None, 3.0, 9.0])] * 3))
    def get_older(self, days: float, levels: tuple[float | None, float | None, float | None]) -> None:
        self.days += days
        entries = self.entries()
        ageing = Ageing(level_0=levels[0], level_1=levels[1], level_2=levels[2])
        before = protected(entries)
        found = aged(entries, ageing, now_s=NOW_S + self.days * DAY_S)
        assert not {one.id for one in found} & before.keys()
        gone = [one for one in found if not one.levels]
        self.remove([Verdict(id=one.id, keep=False, reason=one.reason) for one in gone], entries)
        for one in found:
            if one.levels:
                (entry,) = (each for each in entries if each.folder == one.folder)
                done = wither(
                    entry,
                    one.levels,
                    reason=one.reason,
                    home=HOME,
                    store=self.process.store,
                    catalog=self.catalog,
                    emit=lambda event: None,
                    require_newest=lambda: None,
                )
                assert isinstance(done, Manifest)
                assert done.granularity is not Granularity.FULL

    def remove(self, verdicts: tuple[Verdict, ...] | list[Verdict], entries: list[Entry]) -> None:
        """And see that what must stay did, with all of its levels."""
        safe = protected(entries)
        prune(
            verdicts,
            entries,
            home=HOME,
            store=self.process.store,
            catalog=self.catalog,
            emit=lambda event: None,
        )
        left = {one.manifest.id: one.manifest for one in self.entries()}
        for entry in entries:
            if entry.manifest.id in safe:
                assert left[entry.manifest.id] == entry.manifest
        kept = {verdict.id for verdict in verdicts if verdict.keep}
        assert left.keys() >= kept

    def tell(self, kind: str, entry: Entry, **values: str) -> None:
        self.facts += 1
        fact = Fact(kind=kind, time=timestamp(NOW_S + self.facts), checkpoint=entry.manifest.id, values=values)
        noted.from_outside(self.process.store, f"c{self.facts:016d}", [fact])
        learn(self.catalog, HOME, self.process.store)
        assert facts.parse(self.process.store.get(f"facts/c{self.facts:016d}.json")) == (fact,)

    @invariant()
    def what_is_listed_is_whole(self) -> None:
        for entry in self.entries():
            assert read_manifest(self.process.store, entry.folder) == entry.manifest
            assert verify(self.process.store, entry.folder, entry.manifest, deep=False) == ()


Kept.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
TestKept = Kept.TestCase
