"""Rebuild: brings a catalog to what the manifests and journals say, from wherever it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Protocol, runtime_checkable

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.errors import AccessRefused, KeyMissing, MementumError, NotReadableHere, StoreError, Unreachable
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import CLEARS, Damage, Fact, Manifest, Start, record
from mementum.storage.store import Stat, Store

FOLDER = re.compile(r"step_\d{10,}(?:-\d+)?")
ATTEMPT = re.compile(r"attempts/(\d{4,18})\.json")
LOOKS = 3  # for a manifest that is replaced while we read: each generation takes seconds to make
FEW = 64  # checkpoints that are looked at one after the other: threads take longer to start than a disk to answer
READERS = 8  # of more: a network file system answers in milliseconds, and most of a reader's time is waiting
BATCH = 500  # checkpoints that are entered at once
SOURCES, SOURCES_SIZE = 2000, 16 << 20  # files of facts that are taken in at once, and their bytes
PID_END = 1 << 31

Progress = Callable[[int, int], None]  # how many checkpoints were looked at, and of how many


@runtime_checkable
class TakesTexts(Protocol):
    """A catalog that keeps manifests as they stand in their files: then none has to be rendered again."""

    def add_texts(self, home: str, found: Iterable[tuple[Manifest, str, str]]) -> None:
        """Enter many, each with its folder and its file's text."""
        ...


@runtime_checkable
class TakesWhole(Protocol):
    """A catalog that takes in many sources at once: what follows from them is made anew once, and not for each."""

    def learn_whole(self, home: str, found: Iterable[tuple[str, Sequence[Fact], int]]) -> None:
        """All that each says, with its size, in the place of what it was known to say."""
        ...


@record
class _Known:
    """What lies there is what the catalog means."""


@record
class _Read:
    """A manifest that the catalog does not know, and the text of its file."""

    manifest: Manifest
    text: str


def refresh(
    catalog: Catalog, home: str, store: Store, *, strict: bool = False, progress: Progress | None = None
) -> tuple[Damage, ...]:
    """Enter what is missing, drop what is gone, take in attempts and longer journals. Manifests that cannot be read
    come back as damage: they are not entered, and nothing of theirs is deleted. With `strict`, one that only a newer
    mementum can read is raised as NotReadableHere: who goes on from an older checkpoint should know."""
    damage = enter(catalog, home, store, strict=strict, progress=progress)
    begin(catalog, home, store)
    learn(catalog, home, store)
    return damage


def enter(
    catalog: Catalog,
    home: str,
    store: Store,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    few: int = FEW,
) -> tuple[Damage, ...]:
    """The checkpoints alone. More than `few` are looked at by several threads."""
    damage: list[Damage] = []
    known = {entry.folder: entry.manifest for entry in catalog.entries(home)}
    sizes = {stat.key: stat.size for stat in store.list("step_")}
    keys = list(sizes)
    present = holding(keys)
    gone: set[str] = set()
    done = 0
    for looks in _looks(store, present, sizes, known, few):
        found: list[tuple[Manifest, str, str]] = []
        for folder, look in looks:
            if isinstance(look, _Read):
                found.append((look.manifest, folder, look.text))
            elif look is None:
                gone.add(folder)
            elif isinstance(look, MementumError):
                if isinstance(look, Unreachable | AccessRefused) or (strict and isinstance(look, NotReadableHere)):
                    raise look  # the first say nothing of what lies there
                damage.append(Damage(key=present[folder], what=look.message))
        if isinstance(catalog, TakesTexts):
            catalog.add_texts(home, found)
        else:
            catalog.add_all(home, [(manifest, folder) for manifest, folder, _ in found])
        done += len(looks)
        if progress is not None:
            progress(done, len(present))
    damage += obstructed(store, keys)
    for folder in known.keys() - (present.keys() - gone):
        catalog.forget(home, folder)
    return tuple(damage)


def begin(catalog: Catalog, home: str, store: Store) -> None:
    """Enter attempts that are not known. The newest is read again: a start that gave way to another has taken its file
    with it, and the next one has its number."""
    numbers = {int(match[1]): stat.key for stat in store.list("attempts/") if (match := ATTEMPT.fullmatch(stat.key))}
    known = {start.number: start for start in catalog.starts(home)}
    newest = max(numbers, default=0)
    for number, key in numbers.items():
        if number in known and number != newest:
            continue
        start = _start(store, key, number)
        before = known.get(number)
        if start is not None and (before is None or (before.time, before.host, before.pid) != _who(start)):
            catalog.begin(home, start)


def learn(catalog: Catalog, home: str, store: Store) -> None:
    """Take in what journals say that they did not say before. A journal of many days is not read from its beginning at
    every save; its last line, if that is torn, is read again. A part of a journal that is here itself says nothing new.
    """
    read = catalog.read_sizes(home)
    for prefix in ("journal/", "facts/"):
        stats = list(store.list(prefix))
        sizes = {stat.key: stat.size for stat in stats}
        news = [stat for stat in stats if read.get(stat.key) != stat.size and not _is_of(stat, sizes)]
        for stat in news:
            if _grows(stat.key):
                known = read.get(stat.key, 0)
                _learn_from(catalog, home, store, stat.key, known if known < stat.size else 0)
        for some in _some([stat for stat in news if not _grows(stat.key)]):
            found: list[tuple[str, Sequence[Fact], int]] = []
            try:
                for stat in some:
                    data = bytes(store.get(stat.key))
                    found.append((stat.key, facts.parse(data), len(data)))
            finally:  # also where one of them cannot be read
                learn_whole(catalog, home, found)


def learn_whole(catalog: Catalog, home: str, found: Iterable[tuple[str, Sequence[Fact], int]]) -> None:
    """Take in many sources at once, each with its size, as far as the catalog can."""
    if isinstance(catalog, TakesWhole):
        catalog.learn_whole(home, found)
        return
    for source, told, size in found:
        catalog.learn(home, source, told, size=size)


def _some(stats: Iterable[Stat]) -> Iterator[Sequence[Stat]]:
    """As many at a time as are entered at once, of no more bytes than a machine has to spare."""
    some: list[Stat] = []
    size = 0
    for stat in stats:
        if some and (len(some) == SOURCES or size + stat.size > SOURCES_SIZE):
            yield some
            some, size = [], 0
        some.append(stat)
        size += stat.size
    if some:
        yield some


def _learn_from(catalog: Catalog, home: str, store: Store, key: str, begin: int) -> None:
    """Take in what a journal says from a byte on, and from an earlier one if the catalog turns out to know less of it:
    it may have been made anew since it was asked."""
    for first in (begin, 0):  # whatever is known, nothing is before the beginning
        data = bytes(store.get(key, first))
        whole = data.rfind(b"\n") + 1
        if catalog.learn(home, key, facts.parse(data), size=first + whole, begin=first) >= first:
            return


def _grows(key: str) -> bool:
    """Whether it is a journal that is being written, and no part of one: such a part, and a file of facts, is whole."""
    return key.startswith("journal/") and _begin_of(key) is None


def holding(keys: Iterable[str]) -> dict[str, str]:
    """The key of the manifest that holds in every checkpoint's folder that has one."""
    return {folder: key for folder, key in generations.newest(keys).items() if FOLDER.fullmatch(folder)}


def obstructed(store: Store, keys: Iterable[str]) -> Iterator[Damage]:
    """Manifests that somebody made a link or a folder: no objects any more, and yet no sign of a save that was cut.
    `keys` are those of the task's checkpoints."""
    taken = getattr(store, "taken", None)
    if taken is None:  # no home: object stores have neither links nor folders
        return
    folders: dict[str, list[str]] = {}
    for key in keys:
        folder, _, name = key.partition("/")
        folders.setdefault(folder, []).append(name)
    for folder, names in sorted(folders.items()):
        if not FOLDER.fullmatch(folder) or generations.standing(names):
            continue
        for name in generations.possible(names):
            key = f"{folder}/{name}"
            if taken(key) and store.locate(key) is None:
                yield Damage(key=key, what="a link or a folder stands in its place")


def _newest(store: Store, folder: str, key: str, size: int) -> _Read | None:
    """The manifest that holds in a folder, or None where it was removed since it was listed. A training that is under
    way may also have put the next generation in its place. `size`: as it was listed: who asks for no more need not be
    asked whether the answer was cut."""
    for _ in range(LOOKS):
        try:
            data = bytes(store.get(key, 0, min(size, manifests.READ_MAX)))
            return _Read(manifest=generations.parse(data, key), text=data.decode())
        except KeyMissing:
            key = holding(stat.key for stat in store.list(f"{folder}/meta")).get(folder, "")
            size = manifests.READ_MAX
            if not key:
                return None
    raise StoreError(folder, f"{folder}: its manifest is replaced faster than it can be read", next_command="try again")


def _is_known(store: Store, key: str, known: Manifest) -> bool:
    """Whether the catalog means this manifest: a step that is saved again after its removal takes the old folder, and
    of a catalog that lost its last words in a power cut, or lies on another host, nobody took the old entry out."""
    if key.rpartition("/")[2] != generations.manifest_name(known.generation):
        return False
    try:
        return manifests.has_id(store.get(key, 0, manifests.HEAD), known.id)
    except KeyMissing:
        return False


def _looks(
    store: Store, present: Mapping[str, str], sizes: Mapping[str, int], known: Mapping[str, Manifest], few: int
) -> Iterator[Sequence[tuple[str, _Read | _Known | MementumError | None]]]:
    """What lies in each folder, many at a time: in the order of `present`."""

    def look(folder: str) -> tuple[str, _Read | _Known | MementumError | None]:
        try:
            if folder in known and _is_known(store, present[folder], known[folder]):
                return folder, _Known()
            return folder, _newest(store, folder, present[folder], sizes[present[folder]])
        except MementumError as error:
            return folder, error

    folders = list(present)
    many = len(folders) > few
    with ThreadPoolExecutor(READERS, thread_name_prefix="mementum-read") if many else nullcontext() as pool:
        for first in range(0, len(folders), BATCH):
            some = folders[first : first + BATCH]
            yield list(map(look, some) if pool is None else pool.map(look, some))


def _begin_of(key: str) -> int | None:
    """The byte at which a part of a journal begins; None for a whole one, and for what is none."""
    journal = facts.JOURNAL.fullmatch(key)
    return None if journal is None or journal[2] is None else int(journal[2])


def _is_of(part: Stat, sizes: Mapping[str, int]) -> bool:
    """Whether it is a part of a journal that is here as well, at least as long."""
    begin, attempt = _begin_of(part.key), facts.attempt_of(part.key)
    if begin is None or attempt is None:
        return False
    return sizes.get(facts.journal_key(attempt), -1) >= begin + part.size


def _start(store: Store, key: str, number: int) -> Start | None:
    """An attempt as its file tells; None where it cannot be read: it is looked at again. The same for who only clears
    the task or fetches a checkpoint, and is gone, file and all, in a while."""
    try:
        fields = json.loads(bytes(store.get(key)))
        if fields.get(CLEARS) is True or fields.get("purpose") == "fetch":
            return None
        time, host, pid = fields["time"], fields.get("host"), fields.get("pid")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MementumError):
        return None
    return Start(
        number=number,
        time=time if isinstance(time, str) else "",
        host=host if isinstance(host, str) else "",
        pid=pid if type(pid) is int and 0 <= pid < PID_END else 0,
    )


def _who(start: Start) -> tuple[str, str, int]:
    return start.time, start.host, start.pid
