"""A store in a folder of a local disk: an object appears whole and durable, or not at all."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from mementum.errors import KeyMissing, KeyTaken, StoreError
from mementum.records import Usage
from mementum.storage.disk import NO_LINKS, Disk, NewFile, folder_of
from mementum.storage.keys import TEMP_SUFFIX as TEMP_SUFFIX
from mementum.storage.keys import check_key, check_prefix, check_range, fault_of
from mementum.storage.store import Buffer, Hold, Stat

T = TypeVar("T")
REMOVALS_MAX = 3  # of a new folder by other processes, each within microseconds; more means that it cannot be made

NOT_AN_OBJECT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})

ADVICE = {
    errno.ENOSPC: ("the disk is full", "free some space; `df -h {folder}` shows how much is left"),
    errno.EDQUOT: ("the disk quota is used up", "free some of your files, or ask for a larger quota ({folder})"),
    errno.EACCES: ("no permission", "`ls -ld {folder}` shows who may write there"),
    errno.EPERM: ("no permission", "`ls -ld {folder}` shows who may write there"),
    errno.EROFS: ("the file system is read-only", "`findmnt -T {folder}` shows how it is mounted"),
    errno.EIO: ("the disk reports an input/output error", "look at `dmesg` for the device under {folder}"),
    errno.ENOTDIR: ("a part of its path is not a folder", "look at {folder}; symbolic links are not followed in it"),
}

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: StoreError) -> bool:
    """Whether the place has no room left, or none for this user."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


class LocalStore:
    """A `Home` in `folder`, which is made when first needed. Symbolic links inside of it are not followed.

    Threads may share it, and processes may share the folder, each with a store of its own.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder.rstrip("/") or "/"
        self._prefix = folder.rstrip("/") + "/"
        self._folders = threading.Lock()  # so that no delete takes a folder away between its making and its first file
        self._outside = _deepest_existing(disk, self._folder)
        self._durable: set[str] = set()  # folders whose names this instance has itself made durable
        self._grown: set[str] = set()  # journals likewise

    @property
    def refused_direct(self) -> str | None:
        """The first file that the file system would not write past the page cache; None if there was none."""
        refused: str | None = getattr(self._disk, "refused_direct", None)
        return refused

    @property
    def folder(self) -> str:
        """Where it lies."""
        return self._folder

    def usage(self) -> Usage:
        """How full the file system is on which it lies, or will lie."""
        with self._told(""):
            return self._disk.usage(_deepest_existing(self._disk, self._folder))

    def below(self, folder: str) -> LocalStore:
        """What lies in a folder of it, as a store."""
        check_key(folder)
        return LocalStore(self._disk, self._prefix + folder)

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        path = self._path(key)
        with self._told(key):
            if self._is_taken(path):
                raise KeyTaken(key)
            size = self._put(key, path, chunks)
        return Stat(key=key, size=size)

    def _put(self, key: str, path: str, chunks: Iterable[Buffer]) -> int:
        """The order of durable effects: folders, bytes, name. Whatever line we die on, the key is whole or absent."""
        parent = folder_of(path)
        temp = f"{path}.{os.urandom(4).hex()}{TEMP_SUFFIX}"
        ours = temp
        file = self._open(temp, self._disk.create)
        try:
            size = _write_all(file, chunks)
            file.fsync()
            try:
                self._disk.rename_new(temp, path)
            except FileExistsError as error:
                raise KeyTaken(key) from error
            ours = path
            self._disk.fsync_dir(parent)
        except BaseException:
            with contextlib.suppress(OSError):  # the disk may not answer any more; then a sweep removes it later
                self._disk.unlink(ours)
            raise
        finally:
            file.close()  # last, since an open file is in use: until it has its name, or is gone, no sweep may take it
        return size

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_range(key, start, size)
        with self._told(key):
            path = self._object(key)
            if path is not None:
                with contextlib.suppress(FileNotFoundError):  # removed since we looked
                    return memoryview(self._disk.read(path, start, size))
        raise KeyMissing(key)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        with self._told(prefix):
            yield from self._walk("", prefix)

    def _walk(self, inside: str, prefix: str) -> Iterator[Stat]:
        """In key order, as the slash after a folder's name takes part in the sorting of names."""
        for name in self._disk.listdir(self._prefix + inside):
            key = inside + name
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key, prefix)
            elif key.startswith(prefix) and fault_of(key) is None:
                size = self._size(self._prefix + key)
                if size is not None:
                    yield Stat(key=key, size=size)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        check_prefix(prefix)
        folder = self._prefix + prefix[:-1] if prefix else self._folder
        with self._told(prefix):
            if not self._has_inside(folder):
                return ()
            names = tuple(name[:-1] for name in self._disk.listdir(folder) if name.endswith("/"))
            return tuple(sorted(name for name in names if fault_of(name) is None))

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        path = self._path(key)
        with self._told(key):
            if self._object(key) is None and self._is_taken(path):
                raise KeyTaken(key)
            size = self._replace(path, chunks)
        return Stat(key=key, size=size)

    def _replace(self, path: str, chunks: Iterable[Buffer]) -> int:
        """As a put, but the name passes from the old bytes to the new ones. They stay even when the last line fails:
        the old ones are gone by then, and the new ones are whole."""
        folder = folder_of(path)
        new = f"{path}.{os.urandom(4).hex()}{TEMP_SUFFIX}"
        file = self._open(new, self._disk.create)
        try:
            size = _write_all(file, chunks)
            file.fsync()
            self._disk.rename_over(new, path)
        except BaseException:
            with contextlib.suppress(OSError):  # as above
                self._disk.unlink(new)
            raise
        finally:
            file.close()
        self._disk.fsync_dir(folder)
        return size

    def delete(self, key: str) -> None:
        with self._told(key):
            path = self._object(key)
            if path is not None:
                with contextlib.suppress(FileNotFoundError):  # removed since we looked
                    self._disk.unlink(path)
            folder = folder_of(self._path(key))
            if self._has_inside(folder):
                with contextlib.suppress(FileNotFoundError):  # another delete found it empty
                    # Also when there was nothing to unlink: an earlier delete may have died before its own fsync.
                    self._disk.fsync_dir(folder)
                self._remove_if_empty(folder)

    def locate(self, key: str) -> Path | None:
        with self._told(key):
            path = self._object(key)
            return None if path is None else self._disk.locate(path)

    def sweep(self) -> tuple[str, ...]:
        with self._told(""):
            return tuple(sorted(self._sweep("", beside_files=False)))

    def unfinished(self) -> tuple[Stat, ...]:
        """What puts have left that did not end, or are under way: no list shows it."""
        with self._told(""):
            return tuple(self._unfinished(""))

    def _unfinished(self, inside: str) -> Iterator[Stat]:
        for name in self._disk.listdir((self._prefix + inside).rstrip("/") or "/"):
            if name.endswith("/"):
                yield from self._unfinished(inside + name)
            elif name.endswith(TEMP_SUFFIX):
                size = self._size(self._prefix + inside + name)
                if size is not None:
                    yield Stat(key=inside + name, size=size)

    def _sweep(self, inside: str, *, beside_files: bool) -> tuple[str, ...]:
        """An empty folder beside files stays: it may stand where somebody had an object, whose key is then not free."""
        folder = (self._prefix + inside).rstrip("/") or "/"
        names = self._disk.listdir(folder)
        has_files = any(not name.endswith(("/", TEMP_SUFFIX)) for name in names)
        folders = [name for name in names if name.endswith("/")]
        below = tuple(key for name in folders for key in self._sweep(inside + name, beside_files=has_files))
        left = [name for name in names if name.endswith(TEMP_SUFFIX)]
        here = tuple(inside + name for name in left if self._disk.unlink_unused(self._prefix + inside + name))
        if here:
            with contextlib.suppress(FileNotFoundError):  # another sweep found it empty
                self._disk.fsync_dir(folder)
        if not beside_files:
            self._remove_if_empty(folder)
        return below + here

    def taken(self, key: str) -> bool:
        with self._told(key):
            return self._is_taken(self._path(key))

    def link(self, key: str, new_key: str) -> bool:
        path, new = self._path(key), self._path(new_key)
        with self._told(new_key):
            if self._object(key) is None:
                raise KeyMissing(key)
            if self._is_taken(new):
                raise KeyTaken(new_key)
            try:
                self._open(new, functools.partial(self._disk.link, path))
            except FileExistsError as error:
                raise KeyTaken(new_key) from error
            except FileNotFoundError as error:  # removed since we looked
                raise KeyMissing(key) from error
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                return False
            try:
                self._disk.fsync_dir(folder_of(new))
            except BaseException:
                with contextlib.suppress(OSError):
                    self._disk.unlink(new)
                raise
        return True

    def append(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._told(key):
            if self._object(key) is None:
                self._grown.discard(path)
            with self._open(path, self._disk.append) as file:
                file.write(data)
                file.fsync()
            if path not in self._grown:  # also when it existed: who made it may have died before the next line
                self._disk.fsync_dir(folder_of(path))
                self._grown.add(path)

    def hold(self, key: str) -> Hold | None:
        with self._told(key):
            path = self._object(key)
            if path is not None:
                with contextlib.suppress(FileNotFoundError):  # removed since we looked
                    return self._disk.lock(path)
        raise KeyMissing(key)

    def _open(self, path: str, open_file: Callable[[str], T]) -> T:
        """Open or make a file in a folder that is there and durable."""
        folder = folder_of(path)
        with self._folders:
            for _ in range(REMOVALS_MAX):
                try:
                    self._ensure_folder(folder)
                    return open_file(path)
                except FileNotFoundError:  # another process removed a folder that it found empty
                    self._durable.clear()
            self._ensure_folder(folder)
            return open_file(path)

    def _ensure_folder(self, folder: str) -> None:
        """Make the folder and make its name durable, which stands in the folder above it. That is done once by every
        instance, for folders it finds as well: who made one may have been killed before the fsync."""
        if folder in self._durable:
            return
        above = folder_of(folder)
        if folder == self._outside:
            if above != folder:
                with contextlib.suppress(PermissionError):  # not ours to read, so its names were not made by us either
                    self._disk.fsync_dir(above)
            self._durable.add(folder)
            return
        self._ensure_folder(above)
        if not self._disk.has_folder(folder):
            self._mkdir(folder)
        self._disk.fsync_dir(above)
        self._durable.add(folder)

    def _mkdir(self, folder: str) -> None:
        try:
            self._disk.mkdir(folder)
        except FileExistsError as error:
            if not self._disk.has_folder(folder):  # else another process was faster
                raise NotADirectoryError(errno.ENOTDIR, "is not a folder", folder) from error

    def _remove_if_empty(self, folder: str) -> None:
        """Remove a folder in which nothing is left; never the store's own."""
        with self._folders:
            if folder == self._folder or not self._disk.has_folder(folder) or self._disk.listdir(folder):
                return
            try:
                self._disk.rmdir(folder)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):  # another process was faster
                    return
                raise
            self._durable.discard(folder)
            with contextlib.suppress(FileNotFoundError):  # the folder above was empty then, and removed as well
                self._disk.fsync_dir(folder_of(folder))

    def _path(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _object(self, key: str) -> str | None:
        """The object's path, or None where there is none. What lies behind a symbolic link is not in the store."""
        path = self._path(key)
        return path if self._has_inside(folder_of(path)) and self._size(path) is not None else None

    def _has_inside(self, folder: str) -> bool:
        """Whether each part of the folder's path inside the store is a folder itself."""
        while folder != self._folder:
            if not self._disk.has_folder(folder):
                return False
            folder = folder_of(folder)
        return True

    def _size(self, path: str) -> int | None:
        try:
            return self._disk.size(path)
        except OSError as error:
            if error.errno in NOT_AN_OBJECT:
                return None
            raise

    def _is_taken(self, path: str) -> bool:
        try:
            self._disk.size(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno not in NOT_AN_OBJECT:
                raise
        return True  # by an object, or by a folder or link that is none

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Tell errors of the operating system as errors of the store."""
        try:
            yield
        except OSError as error:
            unknown = (error.strerror or str(error), "see whether a file can be written in {folder}")
            reason, advice = ADVICE.get(error.errno or 0, unknown)
            next_command = advice.format(folder=self._folder)
            raise StoreError(
                key, f"{key or self._folder}: {reason}", kept="older checkpoints", next_command=next_command
            ) from error


def _write_all(file: NewFile, chunks: Iterable[Buffer]) -> int:
    """How many bytes there were."""
    size = 0
    for chunk in chunks:
        file.write(chunk)
        size += memoryview(chunk).nbytes
    return size


def _deepest_existing(disk: Disk, folder: str) -> str:
    while not disk.has_folder(folder) and folder != folder_of(folder):
        folder = folder_of(folder)
    return folder
