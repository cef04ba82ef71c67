"""Names of keys in a Redis, with what is written into them so that Redis sorts it as it is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from mementum.catalog import facts
from mementum.catalog.branch import Link
from mementum.catalog.recovery import rank
from mementum.records import Entry, Fact, Manifest, record

COUNT_MAX = (1 << 64) - 1  # of what is sorted as a number of so many digits; larger ones are all as large
DIGITS = 20
TIME_DIGITS = 16  # of a float in hex
NO_TIME = "0" * TIME_DIGITS  # of a restore that was never measured: before all that were
ID_AT = 1 + 2 * DIGITS + TIME_DIGITS  # where the id begins in a member of `ranked`
BAND_LENGTH = 1 + DIGITS - 3  # of what begins a member: those of one health and of a thousand sequence numbers
METRICS = "metrics"


@record
class Keys:
    """Of one task. Everything that a task has is below one name."""

    prefix: str
    home: str

    @property
    def below(self) -> str:
        return f"{self.prefix}:{quote(self.home, safe='/@.')}"  # no colon, so that no home's keys are another's

    @property
    def folders(self) -> str:
        """Set of all checkpoints' folders."""
        return f"{self.below}:folders"

    @property
    def ranked(self) -> str:
        """Sorted set of those that one can come back to, the best last."""
        return f"{self.below}:ranked"

    def band(self, ranked: str) -> str:
        """Sorted set of a band's members by step: where even the least is too late, the band is passed over."""
        return f"{self.below}:band:{ranked[:BAND_LENGTH]}"

    @property
    def lines(self) -> str:
        """Sorted set of all checkpoints by id, each with what it comes from."""
        return f"{self.below}:lines"

    @property
    def sizes(self) -> str:
        """Hash: how much of each journal was read."""
        return f"{self.below}:sizes"

    @property
    def starts(self) -> str:
        """Hash of all attempts by number."""
        return f"{self.below}:starts"

    @property
    def outcomes(self) -> str:
        """Hash of facts of attempts."""
        return f"{self.below}:outcomes"

    def row(self, folder: str) -> str:
        """Hash: a checkpoint's manifest, and where it stands in the sorted sets."""
        return f"{self.below}:row:{folder}"

    def folders_of(self, id: str) -> str:
        """Set of the folders that hold the checkpoint `id`: a copy of a folder has the id of its original."""
        return f"{self.below}:is:{id}"

    def told_of(self, id: str) -> str:
        """Hash of facts of one checkpoint."""
        return f"{self.below}:of:{id}"

    def told_at(self, step: int) -> str:
        """Hash of facts of one step."""
        return f"{self.below}:at:{step:0{DIGITS}d}"

    def said(self, source: str) -> str:
        """Sorted set of what a journal says, by the place where it says it."""
        return f"{self.below}:said:{source}"

    def ids_in(self, places: Iterable[str]) -> list[str]:
        """The checkpoints whose hashes are among these."""
        mark = self.told_of("")
        return [place[len(mark) :] for place in dict.fromkeys(places) if place.startswith(mark)]

    def places_of(self, fact: Fact, source: str) -> list[str]:
        """The hashes that a fact belongs into; none for one that says nothing of an entry or an attempt."""
        places: list[str] = []
        if fact.kind == METRICS and fact.step is not None:
            places.append(self.told_at(fact.step))
        if fact.kind in facts.JUDGING and fact.checkpoint is not None:
            places.append(self.told_of(fact.checkpoint))
        if fact.kind in facts.OF_ATTEMPTS and facts.attempt_of(source) is not None:
            places.append(self.outcomes)
        return places


def ranked_as(entry: Entry) -> str | None:
    """How an entry sorts among those that one can come back to, as `recovery.best` has it; behind its id come its step
    and its folder."""
    best = rank(entry.manifest.granularity, entry.health, entry.damaged)
    if best is None:
        return None
    new = "".join(f"{min(count, COUNT_MAX):0{DIGITS}d}" for count in (entry.manifest.seq, entry.manifest.attempt))
    return f"{best}{new}{_sooner(entry.restore_s)}{entry.manifest.id}\0{entry.manifest.step:0{DIGITS}d}{entry.folder}"


def by_step(ranked: str) -> str:
    """The step and the folder of a member of `ranked`."""
    return ranked[ranked.rindex("\0") + 1 :]


def folder_in(ranked: bytes) -> str:
    """The folder of a member of `ranked`."""
    return by_step(ranked.decode())[DIGITS:]


def _sooner(restore_s: float | None) -> str:
    """The sooner, the greater: floats that are not negative sort as their bits do."""
    if restore_s is None:
        return NO_TIME
    (bits,) = struct.unpack(">Q", struct.pack(">d", abs(restore_s)))
    return f"{COUNT_MAX - bits:0{TIME_DIGITS}x}"


def line_of(manifest: Manifest, folder: str) -> str:
    """How a checkpoint sorts among all by id. A zero sorts before whatever an id may go on with."""
    return f"{manifest.id}\0{manifest.seq}\0{manifest.parent or ''}\0{folder}"


def link_of(line: bytes) -> Link:
    id, seq, parent, _ = line.decode().split("\0")
    return Link(id=id, seq=int(seq), parent=parent or None)


def place_in(source: str, number: int) -> str:
    """The field of a fact: no other has it."""
    return f"{source}\0{number}"


def source_in(field: bytes) -> str:
    return field.decode().rpartition("\0")[0]


def pointer(number: int, place: str) -> str:
    """What says of a fact in which hash it is."""
    return f"{number}\0{place}"


def pointed(member: bytes) -> tuple[int, str]:
    number, _, place = member.decode().partition("\0")
    return int(number), place


def told(found: Mapping[bytes, bytes]) -> list[Fact]:
    """Facts of a hash, in the order in which they became known. What cannot be read says nothing."""
    every: list[tuple[str, int, Fact]] = []
    for field, line in found.items():
        source, _, number = field.decode().rpartition("\0")
        every += ((source, int(number), fact) for fact in facts.parse(line))
    return facts.in_order(every)
