"""A store in a bucket of S3, or of what speaks like it, of Google Cloud Storage or of Azure."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from mementum.clock import Clock, SystemClock
from mementum.errors import AccessRefused, KeyMissing, KeyTaken, StoreError, Unreachable, UsageError
from mementum.storage.chunks import copied
from mementum.storage.keys import TEMP_SUFFIX, check_key, check_prefix, check_range, fault_of
from mementum.storage.objects_client import Clients, begin_threads, open_clients
from mementum.storage.objects_errors import KEPT, may_have_happened, status_of, told
from mementum.storage.objects_lists import before
from mementum.storage.objects_upload import upload
from mementum.storage.objects_uploads import give_up_old
from mementum.storage.store import Buffer, Stat
from mementum.storage.unsure import Unsure

PART_SIZE = 8 << 20  # bytes: S3 takes 10,000 parts, so 80 GB; smaller ones cost requests, larger ones memory
PIECE = 1 << 20  # bytes: smaller chunks are handed on together
PARTS_AT_ONCE = 4  # in flight, 32 MiB: more were no faster, and training wants its memory and its cores
KEY_BYTES_MAX = 1024  # of prefix and key together: S3's, GCS's and Azure's limit
CLASS_FROM = 128 << 10  # bytes: a cheaper class bills smaller objects as if they were this large
NUMBER = "mementum"  # the metadata by which a put knows its own object; Azure takes letters only
PROBE = "probe-"  # begins the name of an object that shows whether the store keeps conditions
LIST_SIZE = 1000  # what S3 answers at once
CONFLICT, RANGE_NOT_SATISFIABLE = 409, 416
ESCAPED = re.compile(r"[\x00-\x1f\x7f%]")  # what the client's paths cannot hold, and what stands for it


class ObjectStore:
    """A `Store` below a prefix of a bucket. Threads may share it.

    An object of up to `PART_SIZE` bytes is created by one conditional request, which exactly one of several writers
    wins. A larger one goes up in parts: its key is looked at before the first part and before the last request, and
    is not there before that one. Between this look and that request another writer of the same key could come; it is
    kept away by the small objects of a checkpoint, which are created first and last.

    A put whose answer was lost reads back the metadata of what is there, in which every put leaves a number of its
    own, so that it knows its object again, in a later call too. Keys with control characters are listed where a
    percent sign stands, which takes their place in the bucket.
    """

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._uploads, self._clock = clients.uploads, clock
        self._patient, self._once, self._place = clients.patient, clients.once, clients.place
        self._prefix_bytes = len(clients.prefix.encode()) + 1
        self._storage_class, self._sorted = clients.storage_class, clients.sorted
        self._conditional = False  # not known yet
        self._unsure = Unsure()

    def __repr__(self) -> str:
        return f"ObjectStore({self._place!r})"

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        path = self._path(key)
        self._need_conditions()
        rest = iter(chunks)
        begun, size = _first_part(rest)
        if size <= PART_SIZE:
            self._create(key, path, b"".join(begun))
            return Stat(key=key, size=size)
        return Stat(key=key, size=self._upload(key, path, begun, rest))

    def _create(self, key: str, path: str, body: bytes) -> None:
        """One request, sent once. An answer that is lost is looked for in the object's metadata."""
        number = _new_number()
        attributes = self._attributes(number, len(body))
        try:
            obstore.put(self._once, path, body, mode="create", attributes=attributes, use_multipart=False)
        except AlreadyExistsError as error:
            if not self._is_ours(key, path, body):
                if status_of(error) == CONFLICT and not self._is_there(key, path):
                    raise Unreachable(key, f"{self._place}: it was busy with {key}", kept=KEPT) from error
                raise KeyTaken(key) from error
        except (BaseError, FileNotFoundError) as error:
            if not may_have_happened(error) or not self._made_it(key, path, number, body):
                raise told(error, key, self._place) from error
        self._unsure.forget(key)

    def _upload(self, key: str, path: str, begun: list[Buffer], rest: Iterator[Buffer]) -> int:
        """In parts. What is raised before the last request, here or by `rest`, makes the client give the upload up."""
        if self._is_there(key, path):
            if not self._is_ours(key, path):
                raise KeyTaken(key)
            return sum(map(len, _copies(begun, rest)))
        number, size, ended = _new_number(), 0, False

        def parts() -> Iterator[Buffer]:
            nonlocal size, ended
            for part in _copies(begun, rest):
                size += len(part)
                yield part
            self._need_free(key, path)
            ended = True

        try:
            self._send_parts(path, parts(), number)
        except (BaseError, FileNotFoundError) as error:  # the latter: what a second try of the last request is told
            if not ended or not self._made_it(key, path, number):
                raise told(error, key, self._place) from error
        self._unsure.forget(key)
        return size

    def _send_parts(self, path: str, parts: Iterator[Buffer], number: str) -> None:
        def send(handed: Iterator[Buffer]) -> None:
            obstore.put(
                self._patient,
                path,
                handed,
                attributes=self._attributes(number, PART_SIZE),
                use_multipart=True,
                chunk_size=PART_SIZE,
                max_concurrency=PARTS_AT_ONCE,
            )

        upload(send, parts)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        path = self._path(key)
        rest = iter(chunks)
        begun, size = _first_part(rest)
        number = _new_number()
        with self._told(key):
            if size <= PART_SIZE:
                attributes = self._attributes(number, size)
                obstore.put(self._patient, path, b"".join(begun), attributes=attributes, use_multipart=False)
                return Stat(key=key, size=size)
            size = 0

            def parts() -> Iterator[Buffer]:
                nonlocal size
                for part in _copies(begun, rest):
                    size += len(part)
                    yield part

            self._send_parts(path, parts(), number)
        return Stat(key=key, size=size)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_range(key, start, size)
        path = self._path(key)
        if size == 0:
            if not self._is_there(key, path):
                raise KeyMissing(key)
            return memoryview(b"")
        try:
            if size is not None:
                return memoryview(obstore.get_range(self._patient, path, start=start, length=size))
            if start:
                return memoryview(obstore.get(self._patient, path, options={"range": {"offset": start}}).bytes())
            return memoryview(obstore.get(self._patient, path).bytes())
        except (BaseError, FileNotFoundError) as error:
            if status_of(error) == RANGE_NOT_SATISFIABLE:
                return memoryview(b"")  # it begins at the object's end, or behind it
            raise told(error, key, self._place) from error

    def list(self, prefix: str = "") -> Iterator[Stat]:
        folder, _, begun = prefix.rpartition("/")
        if prefix.startswith("/") or (folder and fault_of(folder) is not None):
            return
        path = _escaped(prefix)
        # The client takes whole folders only: of a part of a name we say where to begin, and leave when it is past.
        offset = before(path) if begun and self._sorted else None
        with self._told(prefix):
            for batch in obstore.list(self._patient, _escaped(folder) or None, offset=offset, chunk_size=LIST_SIZE):
                for found in batch:
                    if offset is not None and found["path"] > path and not found["path"].startswith(path):
                        return
                    key = unquote(found["path"])
                    if key.startswith(prefix) and fault_of(key) is None:
                        yield Stat(key=key, size=found["size"])

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        check_prefix(prefix)
        with self._told(prefix):
            found = obstore.list_with_delimiter(self._patient, _escaped(prefix[:-1]) or None)
        names = (unquote(path.rpartition("/")[2]) for path in found["common_prefixes"])
        return tuple(sorted(name for name in names if fault_of(name) is None))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(KeyMissing), self._told(key):
            obstore.delete(self._patient, path)

    def locate(self, key: str) -> Path | None:
        self._path(key)
        return None

    def sweep(self) -> tuple[str, ...]:
        """Uploads that killed processes began, a day after that, where their list can be asked for; on other stores a
        rule of the bucket has to take them away (`docs/object_stores.md`). And probes of killed processes."""
        with self._told(""):
            found = obstore.list_with_delimiter(self._patient)
            left = tuple(one["path"] for one in found["objects"] if _is_probe(one["path"]))
            for path in left:
                obstore.delete(self._patient, path)
        if self._uploads is not None:
            with contextlib.suppress(AccessRefused):  # keys that may not do this do for all else
                left += tuple(unquote(path) for path in give_up_old(self._uploads, self._clock))
        return tuple(sorted(left))

    def _path(self, key: str) -> str:
        check_key(key)
        path = _escaped(key)
        if self._prefix_bytes + len(path.encode()) > KEY_BYTES_MAX:
            raise UsageError(f"{key!r} is too long below {self._place}: together they may have {KEY_BYTES_MAX} bytes")
        return path

    def _attributes(self, number: str, size: int) -> dict[str, str]:
        attributes = {NUMBER: number}
        if self._storage_class is not None and size >= CLASS_FROM:
            attributes["Storage-Class"] = self._storage_class
        return attributes

    def _is_there(self, key: str, path: str) -> bool:
        try:
            with self._told(key):
                obstore.head(self._patient, path)
        except KeyMissing:
            return False
        return True

    def _need_free(self, key: str, path: str) -> None:
        if self._is_there(key, path):
            raise KeyTaken(key)

    def _made_it(self, key: str, path: str, number: str, body: bytes | None = None) -> bool:
        """Whether the object is that of a put whose answer was lost. False where none is there, yet: its request may
        still be on its way. That is remembered, and also where not even this look succeeds."""
        self._unsure.note(key, number)
        if self._is_ours(key, path, body):
            return True
        self._need_free(key, path)
        return False

    def _is_ours(self, key: str, path: str, body: bytes | None = None) -> bool:
        """Whether a put of ours made the object; and of these bytes, where they are few enough to compare."""
        numbers = self._unsure.of(key)
        if not numbers:
            return False
        with contextlib.suppress(KeyMissing), self._told(key):
            there = obstore.get(self._patient, path)
            return there.attributes.get(NUMBER) in numbers and (body is None or there.bytes() == body)
        return False

    def _need_conditions(self) -> None:
        """Once, before the first object: a store that ignores the condition would let two writers take one key."""
        if self._conditional:
            return
        probe = f"{PROBE}{_new_number()}{TEMP_SUFFIX}"  # no key ends so, hence no list shows it
        with self._told(""):
            obstore.put(self._once, probe, b"first", mode="create")
            try:
                obstore.put(self._once, probe, b"second", mode="create")
            except AlreadyExistsError:
                self._conditional = True
            finally:
                with contextlib.suppress(BaseError, FileNotFoundError):  # then a sweep removes it
                    obstore.delete(self._patient, probe)
        if not self._conditional:
            raise StoreError(
                "",
                f"{self._place}: it overwrites an object although it was asked not to, so that two writers of one key "
                "would both believe that they have it",
                kept=KEPT,
                next_command="use a store that keeps If-None-Match (docs/object_stores.md), or a folder",
            )

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise told(error, key, self._place) from error


def open_objects(url: str, options: Mapping[str, str], clock: Clock | None = None) -> ObjectStore:
    """The store in s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Nothing is sent yet; UsageError
    says what is wrong with url or options."""
    begin_threads()
    return ObjectStore(open_clients(url, options), clock or SystemClock())


def _first_part(chunks: Iterator[Buffer]) -> tuple[list[Buffer], int]:
    """Copies of the first chunks, until they are more than a part, or all."""
    begun: list[Buffer] = []
    size = 0
    for chunk in chunks:
        begun.append(copied(chunk))
        size += len(begun[-1])
        if size > PART_SIZE:
            break
    return begun, size


def _copies(begun: list[Buffer], rest: Iterator[Buffer]) -> Iterator[Buffer]:
    """Copies of the chunks, which their owner may use again; one at a time, and none kept."""
    gathered: list[Buffer] = []
    size = 0
    for chunk in itertools.chain(_popped(begun), map(copied, rest)):
        gathered.append(chunk)
        size += len(gathered[-1])
        if size >= PIECE:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


def _popped(begun: list[Buffer]) -> Iterator[Buffer]:
    while begun:
        yield begun.pop(0)


def _new_number() -> str:
    return os.urandom(8).hex()


def _escaped(key: str) -> str:
    return ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", key)


def _is_probe(path: str) -> bool:
    return path.startswith(PROBE) and path.endswith(TEMP_SUFFIX)
