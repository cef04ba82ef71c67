"""Scrubbing: one checkpoint is read back and proved, in a share of the time, while the training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mementum.clock import Clock
from mementum.errors import MementumError
from mementum.execute.compress import GaveUp
from mementum.execute.transfer import DIRECT_MIN
from mementum.records import Damage, Entry, Manifest, record
from mementum.recover.verify import read_manifest, verify
from mementum.storage.around import Around
from mementum.storage.reading import LocalFile, aligned_buffer
from mementum.storage.store import Store

LOOKS = 3  # at a checkpoint that is rewritten while it is read: each generation takes seconds to make
WORK_S_MAX = 10.0  # of one piece of work: a block takes milliseconds, and a machine that slept has not worked

Wait = Callable[[float], str | None]  # for so many seconds; why the work is to end, or None


@record
class Sound:
    """All of it that was read is as it was written."""

    manifest: Manifest


@record
class Unsound:
    """What is wrong with it, found twice."""

    damage: tuple[Damage, ...]


@record
class Unproved:
    """Why nothing can be said of it."""

    reason: str


class Share:
    """Lets work take no more than a share of the time: after each piece it waits for what that has earned. What the
    thread waited for a processor counts as work, so that a busy machine is read from even less."""

    def __init__(self, share: float, *, clock: Clock, wait: Wait) -> None:
        self._share, self._clock, self._wait = share, clock, wait
        self.begin()

    def begin(self) -> None:
        """From now on it is work."""
        self._since_s = self._clock.monotonic()

    def rest(self) -> None:
        """GaveUp where the waiting says so."""
        worked_s = min(WORK_S_MAX, self._clock.monotonic() - self._since_s)
        reason = self._wait(worked_s * (1 / self._share - 1))
        if reason is not None:
            raise GaveUp(reason)
        self.begin()


class Paced(Around):
    """A store that is read within a share of the time, and whose large files are read past the page cache: what the
    training reads next must stay in it."""

    def __init__(self, inner: Store, share: Share) -> None:
        super().__init__(inner)
        self._share = share
        self._buffer: memoryview | None = None

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        self._share.rest()
        near = None if size is None or size < DIRECT_MIN else self._past_the_cache(key, start, size)
        return super().get(key, start, size) if near is None else near

    def _past_the_cache(self, key: str, start: int, size: int) -> memoryview | None:
        """None where that cannot be done: the store says what is wrong. The next read uses the same memory."""
        try:
            path = self._inner.locate(key)
            if path is None:
                return None
            if self._buffer is None or len(self._buffer) < size + 2 * DIRECT_MIN:
                self._buffer = aligned_buffer(size + 2 * DIRECT_MIN)
            with LocalFile(path) as file:
                return file.read(start, size, self._buffer)
        except (OSError, MementumError):
            return None


def scrub(entry: Entry, *, store: Store, deep: bool, share: Share) -> Sound | Unsound | Unproved:
    """Prove a checkpoint: with `deep` every byte, else sizes, indexes and contexts. What is found once is looked at
    once more, through the store as it is. GaveUp from `share` is raised; what a place cannot say is no damage."""
    paced = Paced(store, share)
    try:
        found = _damage(entry, paced, deep=deep)
        if isinstance(found, Unsound):
            share.rest()
            found = _damage(entry, store, deep=deep)
    except MementumError as error:  # it does not answer, or this process cannot read what may be whole
        return Unproved(reason=error.message)
    return found


def _damage(entry: Entry, store: Store, *, deep: bool) -> Sound | Unsound | Unproved:
    for _ in range(LOOKS):
        manifest = read_manifest(store, entry.folder)
        if isinstance(manifest, Damage):
            return Unsound(damage=(manifest,))
        if manifest.id != entry.manifest.id:
            return Unproved(reason=f"checkpoint {manifest.id} lies in its folder now")
        damage = verify(store, entry.folder, manifest, deep=deep)
        if not damage:
            return Sound(manifest=manifest)
        if read_manifest(store, entry.folder) == manifest:
            return Unsound(damage=damage)
    return Unproved(reason="it is rewritten again and again")


def due(entries: Sequence[Entry], *, before: str, looked: Mapping[str, float], since_s: float) -> Entry | None:
    """Which checkpoint of a place is to be read next: the newest, then the one whose proof is the oldest, of those
    without one the newest. None if all were proved after `before` (a time as in facts), or looked at after `since_s` by
    `looked`, by id. What is damaged is known to be."""
    open_ = [
        entry
        for entry in entries
        if entry.damaged is None
        and (entry.verified is None or entry.verified < before)
        and looked.get(entry.manifest.id, since_s) <= since_s
    ]
    if not open_:
        return None
    newest = max(entries, key=lambda entry: entry.order)
    if newest in open_:
        return newest
    oldest = min(entry.verified or "" for entry in open_)
    return max((entry for entry in open_ if (entry.verified or "") == oldest), key=lambda entry: entry.order)
