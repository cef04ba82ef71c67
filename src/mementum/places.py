"""Places: the tiers of a task, from their settings to stores, and what a start finds out and brings home from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mementum.catalog import tasks
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import enter, learn
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock
from mementum.config.tiers import Tier
from mementum.errors import KeyMissing, KeyTaken, MementumError, Superseded, Unreachable, UsageError
from mementum.events import Emit, Failed
from mementum.execute import priority
from mementum.execute.attempts import numbers
from mementum.execute.holdings import holdings
from mementum.execute.transfer import Owners
from mementum.lodging import know_frozen
from mementum.masking import shown
from mementum.mirroring import bring_attempts, bring_facts, hold_there
from mementum.placing import Form
from mementum.records import Damage, Entry, Usage
from mementum.storage.local import LocalStore
from mementum.storage.noted import Noted
from mementum.storage.pace import Pace
from mementum.storage.retry import Retrying
from mementum.storage.stirred import Motion, Stirred
from mementum.storage.store import Home, Store
from mementum.storage.throttle import Throttled
from mementum.storage.tiers import absolute, is_same, kind_of, open_store
from mementum.storage.within import Within

START_ATTEMPTS = 3  # at a start somebody waits: a tier that does not answer by then is left for later
START_PATIENCE_S = 10.0
ATTEMPTS = 60  # in the background nobody waits: with waits of up to 20 s, an outage of ten minutes is sat out
PATIENCE_S = 600.0
STALL_S = 15.0  # a client gives a call up after 30 s without a byte, and the end of a run does not wait for that
HICCUP_S = 5.0  # a call that is tried again for longer has met more than a hiccup, and nobody waits for it
WAIT_SLICE_S = 0.5  # between two looks whether a wait is still wanted
REMOTE = ("objects", "redis")  # kinds of places that may not answer


class Impatient:
    """A clock whose sleeps end as soon as `hurried` is set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.hurried = False

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, duration_s: float) -> None:
        left_s = duration_s
        while left_s > 0 and not self.hurried:
            self._clock.sleep(min(left_s, WAIT_SLICE_S))
            left_s -= WAIT_SLICE_S


class Site:
    """One tier of a task. `root`: all of the place; `store`: the task's part of it, once it is joined.

    It belongs to one thread at a time: the start's, then its placer's."""

    def __init__(self, wishes: Tier, inner: Store, *, clock: Clock) -> None:
        self.wishes, self.name, self.url, self.reach = wishes, wishes.called, shown(wishes.url), wishes.outlives
        self.form = Form(levels=wishes.levels, codec=wishes.codec)
        self.clock = Impatient(clock)
        self.owners = Owners()
        self.catalog: Catalog = open_sqlite(None)  # of what lies there
        self.home = ""  # the task's folder there
        self.knows_it = False  # whether it had one before this start
        self.missed = False  # at this start: it did not answer then
        self.lost: Superseded | None = None  # a later attempt has it
        self.joined = False
        self.compared = False  # whether what facts say of it was compared with what lies there
        self.damage: tuple[Damage, ...] = ()  # manifests that are not what was written
        self.unreadable: frozenset[str] = frozenset()  # their folders
        self._inner, self._motion = inner, Motion(clock)
        self._pace = None if wishes.rate is None else Pace(wishes.rate, self.clock)  # one for all that goes there
        self._given_up = False  # the last call has failed
        self._since_s: float | None = None  # since when calls are tried again

    @property
    def store(self) -> Store:
        """The task's part of it, asked patiently; what goes there is sent no faster than it is wanted."""
        return self._around(self._part(), ATTEMPTS, PATIENCE_S)

    @property
    def prompt(self) -> Store:
        """The same, for a start: somebody waits."""
        return self._around(self._part(), START_ATTEMPTS, START_PATIENCE_S)

    @property
    def silent(self) -> bool:
        """Whether it does not answer: the last call has failed, or is tried again for longer than a hiccup takes, or
        nothing moves in the one that is under way."""
        since_s = self._since_s
        tried_s = 0.0 if since_s is None else self.clock.monotonic() - since_s
        return self._given_up or tried_s > HICCUP_S or self._motion.stalled_s > STALL_S

    def failed(self) -> None:
        """A call has failed, after all tries that it had."""
        self._given_up = True

    def answered(self) -> None:
        """A call was answered, or somebody begins anew to ask: what was before says nothing of it."""
        self._given_up, self._since_s = False, None

    def find_home(self, task: str) -> str | None:
        """The task's folder there, if it has one. A StoreError where the place cannot say."""
        self.home = tasks.find(self._around(self._inner, START_ATTEMPTS, START_PATIENCE_S), task) or ""
        self.knows_it = bool(self.home)
        return self.home or None

    def newest(self) -> int:
        """The highest number of an attempt that it knows; 0: none."""
        return max(numbers(self.prompt), default=0) if self.home else 0

    def bring_attempts(self, near: Home, own: int) -> None:
        """Those before ours that it knows and the home does not."""
        if self.home:
            bring_attempts(self.prompt, near, own)

    def join(self, near: Home, home: str, *, task: str, own: int, hurry: bool = False) -> None:
        """Take the place for the attempt `own`, learn what is known there, and what lies there. Twice is once.

        Superseded if another attempt has it; StoreError. `hurry`: somebody waits."""
        if self.joined:
            return
        attempts, patience_s = (START_ATTEMPTS, START_PATIENCE_S) if hurry else (ATTEMPTS, PATIENCE_S)
        self.home = self.home or tasks.find(self._around(self._inner, attempts, patience_s), task) or home
        store = self._around(self._part(), attempts, patience_s)
        hold_there(near, store, own, task=task)
        bring_facts(store, near, own)
        # Its facts are at home by now.
        self.damage = enter(self.catalog, self.home, store, few=1, strict=True)
        self.unreadable = frozenset(one.key.partition("/")[0] for one in self.damage)
        held = self.entries(near)
        if held:
            know_frozen(store, held[-1].folder, held[-1].manifest, self.owners)
        self.joined = True

    def join_again(self, near: Home, home: str, *, task: str, own: int) -> None:
        """The same, of a place that somebody has emptied."""
        self.joined, self.owners = False, Owners()
        self.join(near, home, task=task, own=own)

    def entries(self, near: Home) -> tuple[Entry, ...]:
        """What lies there, oldest first, with what the home's facts say of it by now. What is known of the home's own
        copy says nothing of this one."""
        learn(self.catalog, self.home, near)
        return tuple(self._as_here(entry) for entry in self.catalog.entries(self.home))

    def _as_here(self, entry: Entry) -> Entry:
        place = next((place for place in entry.places if place.tier == self.name), None)
        damaged, verified = (None, None) if place is None else (place.damaged, place.verified)
        elsewhere = tuple(place for place in entry.places if place.tier != self.name)
        return replace(entry, damaged=damaged, verified=verified, places=elsewhere)

    def close(self) -> None:
        """Nobody uses it any more."""
        self.catalog.close()

    def usage(self, near: Home) -> Usage | None:
        """How full it is: of its budget, else of the file system of a folder. None where nothing can be said."""
        budget = self.wishes.budget
        if budget is not None:
            held = holdings(self.entries(near), self._part())
            once = {blob.key: blob.size for some in held.values() for blob in some}
            return Usage(used=sum(once.values()), size=budget)
        return self._inner.usage() if isinstance(self._inner, LocalStore) else None

    def _around(self, store: Store, attempts: int, patience_s: float) -> Store:
        if kind_of(self.wishes.url) in REMOTE:
            store = Retrying(
                Stirred(store, self._motion),
                self.clock,
                self._hears,
                answered=self.answered,
                attempts=attempts,
                patience_s=patience_s,
            )
        return store if self._pace is None else Throttled(store, self._pace)

    def _part(self) -> Store:
        if isinstance(self._inner, LocalStore):  # which can give files a second name
            return self._inner.below(self.home)
        return Within(self._inner, self.home)

    def _hears(self, error: Unreachable, wait_s: float) -> None:
        if self._since_s is None:
            self._since_s = self.clock.monotonic()


def open_sites(wishes: Sequence[Tier], root: Path, *, clock: Clock, network: float | None = None) -> tuple[Site, ...]:
    """The tiers of a run. Nothing is asked of them yet. UsageError if one cannot be, or lies in the root. `network`:
    bytes a second that may go to each of those beyond the network, if they say no less."""
    sites: list[Site] = []
    seen: dict[str, str] = {}
    for tier in wishes:
        url = absolute(tier.url)
        if kind_of(url) == "folder":
            folder = Path(url).resolve()
            if folder == root or root in folder.parents:
                raise UsageError(
                    f"tier {tier.called}: {folder} lies in the root {root}, and is lost with it",
                    next_command="give a folder of another disk, or leave this tier out",
                )
            url = str(folder)
        same = next((called for other, called in seen.items() if is_same(other, url)), None)
        if same is not None:
            raise UsageError(f"tiers {same} and {tier.called} are the same place: {shown(url)}")
        seen[url] = tier.called
        tier = tier.model_copy(update={"url": url, "name": tier.called})  # where it is, and what it is called
        options = dict(tier.options)
        if tier.storage_class is not None:
            options["storage_class"] = tier.storage_class
        if network is not None and kind_of(url) in REMOTE:
            tier = tier.model_copy(update={"rate": min(network, tier.rate or network)})
        sites.append(Site(tier, _open_behind(url, options), clock=clock))
    return tuple(sites)


def _open_behind(url: str, options: Mapping[str, str]) -> Store:
    """On a thread that steps back for the training, since the threads that a client begins there inherit its
    priority for as long as they live: they send all that is ever sent."""
    with ThreadPoolExecutor(1, "mementum-open", initializer=priority.lower) as behind:
        return behind.submit(open_store, url, options).result()


class Places:
    """The tiers of a task at a start."""

    def __init__(self, sites: Sequence[Site], *, emit: Emit) -> None:
        self.sites, self._emit = tuple(sites), emit

    def find_home(self, task: str) -> str | None:
        """The folder that the task has on a tier, for a root that does not know it. All are asked at once: those that
        do not answer are waited for together, and not asked again at this start."""

        def find(site: Site) -> None:
            with self._told(site):
                site.find_home(task)

        asked = self._asked()
        with ThreadPoolExecutor(max(1, len(asked)), "mementum-ask") as pool:
            list(pool.map(find, asked))
        return next((site.home for site in asked if site.home), None)

    def newest(self) -> int:
        """The highest number of an attempt that a tier knows: the one that is claimed next is above it."""
        found = [0]
        for site in self._asked():
            with self._told(site):
                found.append(site.newest())
        return max(found)

    def bring_attempts(self, near: Home, own: int) -> None:
        """Those before `own` that tiers know. A StoreError of the home itself."""
        for site in self._asked():
            noted = Noted(near)
            with self._told(site, noted):
                site.bring_attempts(noted, own)

    def join(self, near: Home, home: str, *, task: str, own: int) -> None:
        """Take the tiers for this attempt. One that does not answer is told, and joined when it does. A StoreError of
        the home itself."""
        for site in self._asked():
            noted = Noted(near)
            with self._told(site, noted):
                site.join(noted, home, task=task, own=own, hurry=True)

    def joined(self) -> tuple[Site, ...]:
        """Those that are ours, as far as this start has found out."""
        return tuple(site for site in self._asked() if site.joined)

    def entries(self, near: Home) -> tuple[Entry, ...]:
        """What lies on all that are ours; a checkpoint may be there several times."""
        return tuple(entry for site in self.joined() for entry in site.entries(near))

    def _asked(self) -> list[Site]:
        """All but those of which was told that they are not asked any more at this start."""
        return [site for site in self.sites if not site.missed and site.lost is None]

    @contextmanager
    def _told(self, site: Site, near: Noted | None = None) -> Iterator[None]:
        """What is wrong with a tier is told, and keeps no training from its start; what is wrong with the root does."""
        try:
            yield
        except Superseded as superseded:
            lose(site, superseded, self._emit)
        except MementumError as error:
            if near is not None and error is near.raised and not isinstance(error, KeyMissing | KeyTaken):
                raise
            site.missed = True
            site.failed()
            self._emit(trouble(f"asking the tier {site.name}", error))


def trouble(what: str, error: MementumError) -> Failed:
    """What is told of a tier that cannot be used, with what can be done."""
    following = "" if error.next_command is None else f"; next: {error.next_command}"
    return Failed(what=what, error=f"{error.message}{following}", kept="all checkpoints; the training goes on")


def lose(site: Site, superseded: Superseded, emit: Emit) -> None:
    """Another attempt has the tier: nothing more is brought there."""
    site.lost = superseded
    kept = "all checkpoints, there and in the root; the training goes on and brings nothing more there"
    emit(Failed(what=f"holding the tier {site.name}", error=superseded.message, kept=kept))
