"""The shared catalog: what a run enters in its own catalog is told, beside it, to one that many share."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from blake3 import blake3

from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import learn, learn_whole, refresh
from mementum.errors import AccessRefused, StoreError, UsageError
from mementum.events import Emit, Failed, Note
from mementum.records import Entry, Fact, Manifest, Start, record
from mementum.storage.store import Store

WAITING_MAX = 1000  # messages; where there are more, both are compared, which costs no memory
RETRY_S = 1.0  # after a failure; doubled each time
RETRY_S_MAX = 60.0  # a server that is gone for a day is asked 1440 times
LOOK_S = 10.0  # without a word of ours, after which it hears what other processes have entered here meanwhile
CLOSE_S = 5.0  # that a run's end waits for what is still to be told; the next start tells the rest
ATTEMPT = re.compile(r"attempts/\d{4,}\.json")
MARK_LENGTH = 12  # hex digits; two of a billion homes of one name and day are the same with a chance of 1 in 10^5


@record
class Added:
    """Checkpoints were entered."""

    found: tuple[tuple[Manifest, str], ...]


@record
class Forgotten:
    """A checkpoint is about to be removed, or gone."""

    folder: str


@record
class Learnt:
    """A journal says more."""

    source: str
    facts: tuple[Fact, ...]
    size: int
    begin: int


@record
class Begun:
    """An attempt was entered."""

    start: Start


Message = Added | Forgotten | Learnt | Begun


class SharedCatalog:
    """A `Catalog` that answers from `local`, and tells another one all that it enters of one task.

    Nobody waits for the other one: a thread of its own tells it, in the order in which it happened. When it was gone,
    when it has lost what it knew, and at the beginning, it is compared with the task's folder. This is told once.

    What other processes enter in the local one, as a command does that pins or removes, comes by no call here: after
    each save, and while nothing happens from time to time, it is told all that the local one has and it has not."""

    def __init__(
        self,
        local: Catalog,
        connect: Callable[[], Catalog],
        *,
        name: str,
        home: str,
        store: Store,
        emit: Emit,
        retry_s: float = RETRY_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`connect` opens the other one; `name` says in messages which one that is. `store` is the task's folder."""
        self._local, self._connect, self._name = local, connect, name
        self._home, self._store, self._emit = home, store, emit
        self._retry_s, self._look_s = retry_s, look_s
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._behind = True  # whether the other one has to be compared with the folder
        self._removing: deque[str] = deque(maxlen=WAITING_MAX)  # folders that went while it was behind
        self._idle = self._stopping = self._given_up = False
        self._failures = 0  # in a row
        self._lost_told = self._found_told = False
        self._other: Catalog | None = None
        self._told: dict[str, int] = {}  # how much of each journal the other one knows
        self._held: dict[str, tuple[str, int]] = {}  # which checkpoint, and generation of it, it has of each folder
        self._last_looked = False  # at the end
        self._is_due = False  # whether to look at what other processes have entered
        self._thread = threading.Thread(target=self._run, name="mementum-catalog", daemon=True)
        self._thread.start()

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self._local.add(home, manifest, folder)
        self._tell(home, Added(found=((manifest, folder),)))

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        every = tuple(found)
        self._local.add_all(home, every)
        self._tell(home, Added(found=every))

    def forget(self, home: str, folder: str) -> None:
        self._local.forget(home, folder)
        self._tell(home, Forgotten(folder=folder))

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        every = tuple(facts)
        known = self._local.learn(home, source, every, size=size, begin=begin)
        if known >= begin:
            self._tell(home, Learnt(source=source, facts=every, size=size, begin=begin))
        return known

    def learn_whole(self, home: str, found: Iterable[tuple[str, Sequence[Fact], int]]) -> None:
        every = tuple(found)
        learn_whole(self._local, home, every)
        for source, told, size in every:
            self._tell(home, Learnt(source=source, facts=tuple(told), size=size, begin=0))

    def begin(self, home: str, start: Start) -> None:
        self._local.begin(home, start)
        self._tell(home, Begun(start=start))

    def read_sizes(self, home: str) -> dict[str, int]:
        return self._local.read_sizes(home)

    def entries(self, home: str) -> Sequence[Entry]:
        return self._local.entries(home)

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        return self._local.recovery_point(home, before_step=before_step)

    def starts(self, home: str) -> Sequence[Start]:
        return self._local.starts(home)

    def homes(self) -> tuple[str, ...]:
        return self._local.homes()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the other one knows all; False if that took longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle and not self._behind and not self._waiting, timeout_s)

    def close(self) -> None:
        """End the thread, which tells what it can within seconds, and close the local one."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)
        self._local.close()

    def _tell(self, home: str, message: Message) -> None:
        if home != self._home:
            return
        with self._changed:
            if self._given_up:
                return
            if self._behind:  # what it misses is found when both are compared
                if isinstance(message, Forgotten):
                    self._removing.append(message.folder)
                return
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.clear()
                self._behind = True
            else:
                self._waiting.append(message)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._may_go_on():
                self._work()
        except (Exception, SystemExit) as error:  # the thread's end: told; the run goes on with its own catalog
            self._give_up(repr(error))
        finally:
            if self._other is not None:
                self._other.close()

    def _may_go_on(self) -> bool:
        """Wait until there is something to tell, after a failure for a while; False at the end."""
        with self._changed:
            if self._failures:
                pause_s = min(self._retry_s * 2.0 ** (self._failures - 1), RETRY_S_MAX)
                self._changed.wait_for(lambda: self._stopping, pause_s)
                return not self._stopping
            self._idle = True
            self._changed.notify_all()
            happened = self._changed.wait_for(
                lambda: self._stopping or self._behind or bool(self._waiting), self._look_s
            )
            self._idle = False
            self._is_due = self._is_due or not happened
            if self._stopping and not self._last_looked:  # what became known after the last save
                self._last_looked = self._is_due = True
                return not self._given_up
            return not self._given_up and (self._behind or bool(self._waiting) or not happened)

    def _work(self) -> None:
        try:
            if self._other is None:
                self._other = self._connect()
            where = shared_name(self._home, self._store)
            if self._behind:
                self._compare(self._other, where)
            self._send(self._other, where)
        except (UsageError, AccessRefused) as error:  # trying again would not help
            self._give_up(error.message)
        except StoreError as error:
            self._lose(error)

    def _compare(self, other: Catalog, where: str) -> None:
        with self._changed:
            self._behind = False  # from here on what happens is told again
        refresh(other, where, self._store)
        if self._removing:  # what is about to go may have been found once more
            present = {entry.folder for entry in self._local.entries(self._home)}
            while self._removing:
                if (folder := self._removing.popleft()) not in present:
                    other.forget(where, folder)
        self._told, self._held = other.read_sizes(where), _held(other, where)
        self._failures = 0
        if self._lost_told and not self._found_told:
            self._found_told = True
            self._emit(Note(text=f"the catalog {self._name} answers again: it was told what it had missed"))

    def _send(self, other: Catalog, where: str) -> None:
        """All that waits. A server that was started anew may know nothing more, and says so by what it has read."""
        known = other.read_sizes(where)
        with self._changed:
            if any(known.get(source, -1) < size for source, size in self._told.items()):
                self._behind = True
        while (message := self._next()) is not None:
            match message:
                case Added(found=found):
                    other.add_all(where, found)
                    self._held |= {folder: _which(manifest) for manifest, folder in found}
                    self._is_due = True
                case Forgotten(folder=folder):
                    other.forget(where, folder)
                    self._held.pop(folder, None)
                case Begun(start=start):
                    other.begin(where, start)
                case Learnt(source=source) if message.begin > self._told.get(source, 0):
                    with self._changed:
                        self._behind = True  # it does not know what comes before
                case Learnt(source=source, begin=begin):
                    self._told[source] = other.learn(where, source, message.facts, size=message.size, begin=begin)
                    with self._changed:
                        self._behind = self._behind or self._told[source] < begin
        if self._is_due:
            self._look(other, where)

    def _look(self, other: Catalog, where: str) -> None:
        """Tell what the local one has and the other one has not, and the reverse. What is about to be removed is out of
        the local one already, though it lies in its folder still."""
        present = {entry.folder: entry.manifest for entry in self._local.entries(self._home)}
        for folder in self._held.keys() - present.keys():
            other.forget(where, folder)
        which = {folder: _which(manifest) for folder, manifest in present.items()}
        other.add_all(where, [(present[folder], folder) for folder in which if self._held.get(folder) != which[folder]])
        learn(other, where, self._store)
        self._told, self._held, self._is_due = other.read_sizes(where), which, False

    def _next(self) -> Message | None:
        with self._changed:
            if self._behind:
                self._waiting.clear()
            return self._waiting.popleft() if self._waiting else None

    def _lose(self, error: StoreError) -> None:
        with self._changed:
            self._behind = True
            self._waiting.clear()
            self._failures += 1
        if self._other is not None:
            self._other.close()
            self._other = None  # another server may stand in its place when it answers again
        if not self._lost_told:
            self._lost_told = True
            kept = "all checkpoints, and the run's own catalog; what it misses is told when it answers again"
            self._emit(Failed(what=f"telling the catalog {self._name}", error=error.message, kept=kept))

    def _give_up(self, why: str) -> None:
        with self._changed:
            self._given_up = True
            self._waiting.clear()
            self._changed.notify_all()
        kept = "all checkpoints, and the run's own catalog; this run tells the other one nothing more"
        self._emit(Failed(what=f"telling the catalog {self._name}", error=why, kept=kept))


def _held(catalog: Catalog, home: str) -> dict[str, tuple[str, int]]:
    return {entry.folder: _which(entry.manifest) for entry in catalog.entries(home)}


def _which(manifest: Manifest) -> tuple[str, int]:
    return manifest.id, manifest.generation


def shared_name(home: str, store: Store) -> str:
    """What a task's folder is called among those of all roots: `20261130/byte-gpt_3fa9c1@5d41402abc4b`.

    Behind the `@` stands the beginning of the blake3 of its first attempt's file, which says who began the task and
    when. So it is the same whatever host reads the folder, wherever it is mounted or moved to, and on every tier; two
    tasks that were begun apart never share it. StoreError if there is no attempt."""
    for stat in store.list("attempts/"):
        if ATTEMPT.fullmatch(stat.key):
            return f"{home}@{blake3(store.get(stat.key)).hexdigest()[:MARK_LENGTH]}"
    raise StoreError(home, f"{home} holds no attempt", next_command="open the task with mementum.open_run")
