"""Eviction: which checkpoints go where room is needed, beyond what retention removes. It only speaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from statistics import median

from mementum.decide.protection import NOTHING, folders_named, is_clean, is_exact, protected
from mementum.decide.retain import value_of
from mementum.decide.spacing import ages
from mementum.records import LEVELS, Blob, Entry, Health, Verdict, record

COPIED = 0.1  # what is left of a checkpoint's worth where a tier has all of it: coming back costs a transfer, no work
EASE_MAX = 2.0  # how much a restore that was measured counts, up and down: it is seconds, where lost steps are hours
GAIN_MAX = 1.0  # a loss that halved between two checkpoints and one that fell to nothing count alike
GB = 1e9
METRIC = "loss"


@record
class Eviction:
    """A verdict on each checkpoint, newest first; bytes that come free; and how many are missing after that, since all
    that is left is protected."""

    verdicts: tuple[Verdict, ...]
    freed: int
    missing: int


Holdings = Mapping[str, Sequence[Blob]]  # by folder


def evict(
    entries: Sequence[Entry], *, need: int, holdings: Holdings | None = None, waiting: Mapping[str, str] = NOTHING
) -> Eviction:
    """Choose what goes until `need` bytes come free, what is worth least for its bytes first; never what is protected,
    and none whose files another one that stays needs.

    Diverged ones go before suspect ones, then those that are not exact, then clean exact ones. Among equals of these
    kinds a checkpoint i is worth the work that is lost without it: a trouble that began t steps ago costs the way back
    to the newest checkpoint from before it. Nothing is known of t, so that every order of magnitude is as likely (a
    density of 1/t, Jeffreys' prior of a scale). Without i those whose t lies between its age and that of the next newer
    one have to go on to the next older one:

        worth_i = ln(age_i / age_(i-1)) * (age_(i+1) - age_i)        steps; behind the oldest stands the run's beginning

    which is least where neighbours are close for their age, so that those that stay are spaced by ratios, as `spread`
    of the retention spaces them. It is multiplied by 1 + the part by which the loss fell since the checkpoint before it
    (the documents' `loss_improvement`, at most GAIN_MAX), by how much faster than the median its restore was measured
    to be (their `recovery_cost_ms`, within EASE_MAX), and by COPIED if a tier has all of it. The least worth for each
    byte that comes free goes first, and neighbours are judged anew after each."""
    held = holdings or {entry.folder: entry.blobs for entry in entries}
    work = _Room(entries, held, protected(entries, waiting=waiting))
    work.make(need)
    newest_first = sorted(entries, key=lambda entry: entry.order, reverse=True)
    return Eviction(
        verdicts=tuple(work.verdict(entry) for entry in newest_first),
        freed=work.freed,
        missing=max(need - work.freed, 0),
    )


class _Line:
    """The checkpoints of one kind, newest first, from which one after the other is taken."""

    def __init__(self, newest_first: Sequence[Entry], back: Mapping[str, int]) -> None:
        self._back = back
        folders = [entry.folder for entry in newest_first]
        self.newer: dict[str, str | None] = dict(zip(folders, [None, *folders], strict=False))
        self.older: dict[str, str | None] = dict(zip(folders, [*folders[1:], None], strict=True))

    def worth(self, entry: Entry) -> float:
        """Steps that are lost, on average, for want of it."""
        back, newer, older = self._age(entry.folder), self.newer[entry.folder], self.older[entry.folder]
        before = 1 if newer is None else self._age(newer)
        gap = entry.manifest.step if older is None else self._age(older) - back
        return math.log(max(back / before, 1.0)) * max(gap, 0)

    def take(self, folder: str) -> tuple[str, ...]:
        """Take it out; its neighbours, whose worth is another one now."""
        newer, older = self.newer.pop(folder), self.older.pop(folder)
        if newer is not None:
            self.older[newer] = older
        if older is not None:
            self.newer[older] = newer
        return tuple(one for one in (newer, older) if one is not None)

    def _age(self, folder: str) -> int:
        return max(self._back[folder], 1)


class _Room:
    """The search, and what it has found so far."""

    def __init__(self, entries: Sequence[Entry], holdings: Holdings, safe: Mapping[str, str]) -> None:
        self.freed = 0
        self._safe, self._holdings = safe, holdings
        self._entries = {entry.folder: entry for entry in entries}
        self._went: dict[str, str] = {}  # reasons by folder
        self._holders: dict[str, set[str]] = {}
        for folder in self._entries:
            for blob in holdings.get(folder, ()):
                self._holders.setdefault(blob.key, set()).add(folder)
        self._namers: dict[str, set[str]] = {}
        for entry in entries:
            for folder in folders_named(entry):
                self._namers.setdefault(folder, set()).add(entry.folder)
        newest_first = sorted(entries, key=lambda entry: entry.order, reverse=True)
        back = dict(zip((entry.folder for entry in newest_first), ages(newest_first), strict=True))
        self._lines = {
            rank: _Line([entry for entry in newest_first if _rank(entry) == rank], back)
            for rank in {_rank(entry) for entry in entries}
        }
        self._factors = _factors(newest_first)

    def make(self, need: int) -> None:
        heap = [place for folder in self._entries if (place := self._place(folder)) is not None]
        heapify(heap)
        while heap and self.freed < need:
            place = heappop(heap)
            folder = place[-1]
            if folder in self._went or self._place(folder) != place:
                continue  # it was judged anew since
            for touched in self._take(folder):
                again = self._place(touched)
                if again is not None:
                    heappush(heap, again)

    def verdict(self, entry: Entry) -> Verdict:
        if entry.folder in self._went:
            return Verdict(id=entry.manifest.id, keep=False, reason=self._went[entry.folder])
        why = self._safe.get(entry.manifest.id)
        return Verdict(id=entry.manifest.id, keep=True, reason=why or "there is room enough with it")

    def _place(self, folder: str) -> tuple[int, float, tuple[int, int, str], str] | None:
        """Where it stands among those that may go; None if it may not, or would free nothing."""
        entry = self._entries[folder]
        size = self._own(folder)
        if folder in self._went or entry.manifest.id in self._safe or self._namers.get(folder) or not size:
            return None
        return _rank(entry), self._worth(entry) / size, entry.order, folder

    def _worth(self, entry: Entry) -> float:
        return self._lines[_rank(entry)].worth(entry) * self._factors[entry.folder]

    def _own(self, folder: str) -> int:
        return sum(blob.size for blob in self._holdings.get(folder, ()) if len(self._holders[blob.key]) == 1)

    def _take(self, folder: str) -> set[str]:
        """Let it go; those that are to be judged anew."""
        entry, size = self._entries[folder], self._own(folder)
        kind = "clean and full" if _rank(entry) == CLEAN_EXACT else _kind(entry)
        worth = f"worth {self._worth(entry):.3g} steps of work" + (", a tier has it" if _is_copied(entry) else "")
        self._went[folder] = f"room is needed: {kind}, {worth}, for {size / GB:.3g} GB"
        self.freed += size
        touched = set(self._lines[_rank(entry)].take(folder))
        for blob in self._holdings.get(folder, ()):
            holders = self._holders[blob.key]
            holders.discard(folder)
            touched |= holders if len(holders) == 1 else set()
        for other in folders_named(entry):
            namers = self._namers[other]
            namers.discard(folder)
            touched |= {other} & self._entries.keys()
        return touched


CLEAN_EXACT = 3


def _rank(entry: Entry) -> int:
    """What goes first has the lowest."""
    if not is_clean(entry):
        return 0 if entry.health is Health.DIVERGED else 1
    return CLEAN_EXACT if is_exact(entry) else 2


def _kind(entry: Entry) -> str:
    return entry.health.value if not is_clean(entry) else "not full"


def _is_copied(entry: Entry) -> bool:
    return any(place.levels == LEVELS and place.damaged is None for place in entry.places)


def _factors(newest_first: Sequence[Entry]) -> dict[str, float]:
    """What each one's lost steps are multiplied by, by folder."""
    known = [entry.restore_s for entry in newest_first if entry.restore_s]
    usual_s = median(known) if known else None
    found: dict[str, float] = {}
    before: float | None = None
    for entry in reversed(newest_first):
        loss = value_of(entry, METRIC)
        factor = COPIED if _is_copied(entry) else 1.0
        if loss is not None and before is not None and before > 0:
            factor *= 1 + min(max((before - loss) / before, 0.0), GAIN_MAX)
        if entry.restore_s and usual_s:
            factor *= min(max(usual_s / entry.restore_s, 1 / EASE_MAX), EASE_MAX)
        found[entry.folder] = factor
        before = loss if loss is not None else before
    return found
