"""Faults that are no power cut: bytes that rot, two writers, a sweep beside a save, a rebuild that is cut."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from crash_promises import BrokenPromise, broken, leftovers
from crash_saves import FOLDER, HOME, Process
from plain_catalog import PlainCatalog

from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.errors import KeyTaken, MementumError, StoreError
from mementum.format import manifest as manifests
from mementum.records import Damage
from mementum.recover.verify import read_manifest, verify
from mementum.rewriting import Unsettled
from mementum.storage.local import LocalStore
from mementum.storage.store import Buffer, Stat, Store
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

STRIDE = 41  # bytes between the places where a file rots: a prime, so that no structure is always missed
BITS = (0x01, 0x80)  # the one makes another digit of a digit, the other is no ASCII


class Rotten:
    """A store in which one object has other bytes, as far as verification looks."""

    def __init__(self, inner: Store, key: str, data: bytes) -> None:
        self._inner, self._key, self._data = inner, key, data

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        if key != self._key:
            return self._inner.get(key, start, size)
        return memoryview(self._data)[start : None if size is None else start + size]

    def list(self, prefix: str = "") -> Iterator[Stat]:
        for stat in self._inner.list(prefix):
            yield Stat(key=stat.key, size=len(self._data)) if stat.key == self._key else stat

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"verification does not {name}")


def rot() -> int:
    """Every kind of file, changed at many places, cut short, grown: verification must tell each."""
    catalog = open_sqlite(None)
    process = Process(SimDisk(), set(), catalog=catalog)
    process.save(1, step=10)
    process.save(2, step=20)  # of the other codec
    tried = 0
    for entry in catalog.entries(HOME):
        for stat in tuple(process.store.list(f"{entry.folder}/")):
            for what, data in changed(bytes(process.store.get(stat.key)), every=1 if stat.size < 200 else STRIDE):
                tried += 1
                if not noticed(Rotten(process.store, stat.key, data), entry.folder):
                    raise BrokenPromise(f"damage not noticed: {stat.key}, {what}")
    return tried


def changed(data: bytes, *, every: int) -> Iterator[tuple[str, bytes]]:
    yield "cut short by a byte", data[:-1]
    yield "a byte longer", data + b"\0"
    for at in (*range(0, len(data), every), len(data) - 1):
        for bit in BITS:
            yield f"bit {bit:#x} at {at}", data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def noticed(store: Store, folder: str) -> bool:
    manifest = read_manifest(store, folder)
    return isinstance(manifest, Damage) or bool(verify(store, folder, manifest, deep=True))


def shallow() -> int:
    """A data file of another size is told without reading it."""
    catalog = open_sqlite(None)
    process = Process(SimDisk(), set(), catalog=catalog)
    manifest = process.save(1, step=10)
    tried = 0
    for file in manifest.files:
        key = f"step_0000000010/{file.name}"
        data = bytes(process.store.get(key))
        for other in (data[:-1], data + b"\0"):
            tried += 1
            if not verify(Rotten(process.store, key, other), "step_0000000010", manifest, deep=False):
                raise BrokenPromise(f"damage not noticed: {key} has {len(other)} bytes")
    return tried


def two_writers() -> int:
    """Of two puts that run at once one is told that the key is taken, and the other's bytes stay."""
    disk = SimDisk()
    first, second = LocalStore(disk, FOLDER), LocalStore(disk, FOLDER)
    key = f"step_0000000010/{manifests.NAME}"

    def chunks() -> Iterator[Buffer]:
        yield b"first"
        second.put(key, [b"second"])

    taken = False
    try:
        first.put(key, chunks())
    except KeyTaken:
        taken = True
    if not taken or bytes(first.get(key)) != b"second":
        raise BrokenPromise("acknowledged and lost: a second writer has overwritten an object")
    return 1


def a_sweep_beside_a_put() -> int:
    """A sweep by another process leaves the file alone that is being written."""
    disk = SimDisk()
    key = f"step_0000000010/{manifests.NAME}"

    def chunks() -> Iterator[Buffer]:
        yield b"first"
        LocalStore(disk, FOLDER).sweep()
        yield b"second"

    try:
        LocalStore(disk, FOLDER).put(key, chunks())
    except MementumError as error:
        raise BrokenPromise(f"a sweep took a file in use: {error.message}") from error
    if bytes(LocalStore(disk, FOLDER).get(key)) != b"firstsecond":
        raise BrokenPromise("a sweep took a file in use")
    return 1


class CutCatalog:
    """A catalog whose process dies before its call number `cut_at`."""

    def __init__(self, inner: Catalog, cut_at: int) -> None:
        self._inner, self._left = inner, cut_at

    def __getattr__(self, name: str) -> Any:
        if self._left == 0:
            raise PowerCut
        self._left -= 1
        return getattr(self._inner, name)


def a_rebuild_is_cut() -> int:
    """From an empty catalog and from one that is wrong, a refresh cut before every call, then done again."""
    catalog = open_sqlite(None)
    process = Process(SimDisk(), set(), catalog=catalog)
    process.save(1, step=10)
    process.save(2, step=20)
    stale = catalog.entries(HOME)
    process.keep(1)
    process.save(3, step=30)
    process.save(4, step=10)  # where the first one was
    process.note(1)
    tried = 0
    for known in ((), stale):
        for cut_at in itertools.count():
            home = f"{HOME} rebuilt {tried}"
            for entry in known:
                catalog.add(home, entry.manifest, entry.folder)
            tried += 1
            try:
                refresh(CutCatalog(catalog, cut_at), home, process.store)
            except PowerCut:
                finished = False
            else:
                finished = True
            what = broken(process.disk, frozenset(process.told), catalog=catalog, home=home)
            if what is not None:
                raise BrokenPromise(f"rebuild cut before call {cut_at}: {what}")
            if finished:
                break
    return tried


def an_error_leaves_nothing() -> int:
    """Every operation of a save fails once; the error is told, and what the save wrote is gone at once."""
    for fail_at in itertools.count():
        disk = SimDisk()
        told: set[str] = set()
        Process(disk, told, catalog=PlainCatalog()).save(1, step=10)
        failing = FailingDisk(disk, fail_at)
        catalog = PlainCatalog()
        with contextlib.suppress(StoreError):
            Process(failing, told, catalog=catalog).save(2, step=20)
        if failing.failed and "saved 2" in told:
            raise BrokenPromise(f"operation {fail_at} failed and the save was acknowledged")
        left = leftovers(disk)
        if left:
            raise BrokenPromise(f"left after an error of operation {fail_at}: {', '.join(left)}")
        what = broken(disk, frozenset(told), catalog=catalog)
        if what is not None:
            raise BrokenPromise(f"operation {fail_at} failed: {what}")
        if not failing.failed:
            return fail_at
    raise AssertionError("unreachable")


def a_failed_settling_leaves_nothing() -> int:
    """Every operation of a settling fails once: the checkpoint stays as it was, and nothing is left beside it. Only
    what cannot be removed any more, once the compressed form holds, waits for the next sweep."""
    for fail_at in itertools.count():
        disk = SimDisk()
        told: set[str] = set()
        Process(disk, told, catalog=PlainCatalog()).save(1, step=10)
        failing = FailingDisk(disk, fail_at)
        catalog = PlainCatalog()
        settled = Process(failing, told, catalog=catalog).settle(1)
        left = leftovers(disk)
        if left and isinstance(settled, Unsettled):
            raise BrokenPromise(f"left after a settling that failed at operation {fail_at}: {', '.join(left)}")
        what = broken(disk, frozenset(told), catalog=catalog)
        if what is not None:
            raise BrokenPromise(f"operation {fail_at} failed: {what}")
        if not failing.failed:
            return fail_at
    raise AssertionError("unreachable")


CHECKS: Mapping[str, Callable[[], int]] = {
    "rot": rot,
    "shallow": shallow,
    "two_writers": two_writers,
    "a_sweep_beside_a_put": a_sweep_beside_a_put,
    "a_rebuild_is_cut": a_rebuild_is_cut,
    "an_error_leaves_nothing": an_error_leaves_nothing,
    "a_failed_settling_leaves_nothing": a_failed_settling_leaves_nothing,
}
