"""Lately: which checkpoints people have said must stay, since somebody began to judge what goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mementum.catalog import facts, plans
from mementum.errors import KeyMissing
from mementum.records import Entry, Fact
from mementum.storage.store import Stat, Store

PLANNED = "a rollback that is planned goes back to it"
OF_ALL_COPIES = ("pin", "unpin", "health")  # kinds of facts that change what must stay, wherever it lies
OF_THE_ROOTS = (*OF_ALL_COPIES, "damaged", "verified")  # and those that say something of the copy in the root
PREFIXES = ("journal/", plans.FOLDER)


class Lately:
    """What a task's facts say that they did not say when this was made, which is before the judging begins. It asks the
    facts themselves: whoever writes one may have told the catalog of it, or not."""

    def __init__(self, store: Store, *, kinds: Sequence[str] = OF_THE_ROOTS) -> None:
        self._store, self._kinds = store, kinds
        self._read = {stat.key: stat.size for stat in self._listed()}
        self._told: dict[str, list[tuple[str, int, Fact]]] = {}  # by checkpoint: source, place in that, fact
        self._targets: dict[str, str] = {}

    def stays(self) -> dict[str, str]:
        """Reasons by id, of what was pinned, or made the target of a rollback, and is so still. StoreError if the place
        does not say."""
        pinned = {id: f"pinned: {one.pinned}" for id, one in self._known().items() if one.pinned is not None}
        return {**self._targets, **pinned}

    def worse(self, entries: Sequence[Entry]) -> tuple[Entry, ...] | None:
        """The checkpoints as they are known by now, where some of them have turned out to be damaged, or not clean:
        what must stay for that is to be judged again. None where nothing is worse."""
        known = self._known()
        late = {id for id, one in known.items() if one.damaged is not None or one.judged is not None}
        if not late & {entry.manifest.id for entry in entries}:
            return None
        return tuple(_as_known(entry, known.get(entry.manifest.id)) for entry in entries)

    def _known(self) -> dict[str, facts.Known]:
        for stat in self._listed():
            if self._read.get(stat.key) != stat.size:
                self._take_in(stat)
        return {id: facts.known(facts.in_order(told)) for id, told in self._told.items()}

    def _listed(self) -> list[Stat]:
        return [stat for prefix in PREFIXES for stat in self._store.list(prefix)]

    def _take_in(self, stat: Stat) -> None:
        known = self._read.get(stat.key, 0)
        begin = known if known < stat.size else 0
        try:
            data = bytes(self._store.get(stat.key, begin))
        except KeyMissing:  # somebody tidied up since it was listed
            return
        whole = data.rfind(b"\n") + 1  # the rest of a line that is being written comes with the next look
        self._read[stat.key] = begin + whole
        for number, fact in enumerate(facts.parse(data[:whole])):
            if fact.checkpoint is None:
                continue
            if fact.kind in self._kinds and not fact.values.get("tier"):  # else it is of a copy on that tier
                self._told.setdefault(fact.checkpoint, []).append((stat.key, begin + number, fact))
            elif fact.kind == plans.KIND:
                self._targets[fact.checkpoint] = PLANNED


def _as_known(entry: Entry, late: facts.Known | None) -> Entry:
    if late is None:
        return entry
    damaged = late.damaged or (entry.damaged if late.verified is None else None)
    return replace(entry, damaged=damaged, judged=late.judged or entry.judged)
