"""The only door to the file system: the few calls that local stores are built from."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

from mementum.records import Usage
from mementum.storage.descriptor import Descriptor
from mementum.storage.direct import DirectFile, OpenFile
from mementum.storage.store import Buffer

CREATE_ATTEMPTS = 3  # each lost one needs another sweeper to arrive within the microseconds between open and flock
READ_SIZE_MAX = 1 << 30  # Linux moves at most 2 GiB a call; smaller pieces keep one read from holding that much twice
PROBE_SIZE = 64 << 10  # asked for once the size known at opening is read, to learn whether the file has grown

AT_FDCWD = -100
RENAME_NOREPLACE = 1

NO_RENAMEAT2 = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF})
NOT_A_LEFTOVER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EACCES})


class NewFile(Protocol):
    """A file that is being written. Its bytes are durable after `fsync`; its name is not (see `Disk.fsync_dir`)."""

    def write(self, chunk: Buffer) -> None:
        """Write all of `chunk` (C-contiguous) at the end. When this raises, the file is lost, as after a failed
        fsync."""
        ...

    def fsync(self) -> None:
        """Make the bytes durable. When this raises, the file is lost: the kernel may have dropped the dirty pages and
        would call a second fsync a success, so it is never tried again. Write a new file."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class DiskLock(Protocol):
    """A lock that ends when it is released or its process is gone, even by kill -9."""

    def release(self) -> None: ...


class Disk(Protocol):
    """File calls on absolute paths. They raise OSError as the operating system does."""

    def create(self, path: str) -> NewFile:
        """Make a new file, marked as in use until it is closed. FileExistsError if the name is taken."""
        ...

    def append(self, path: str) -> NewFile:
        """Open at the end; made if missing."""
        ...

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes of a regular file, to its end where `size` is None. A symbolic link is not followed."""
        ...

    def size(self, path: str) -> int:
        """Bytes in a regular file; an OSError for anything else."""
        ...

    def rename_new(self, old: str, new: str) -> None:
        """Rename at once or not at all. FileExistsError if `new` exists: nothing is ever replaced."""
        ...

    def rename_over(self, old: str, new: str) -> None:
        """Rename at once or not at all, in the place of the file `new` if there is one. IsADirectoryError for a
        folder."""
        ...

    def link(self, old: str, new: str) -> None:
        """Make `new` another name of the file `old`. FileExistsError if it exists; one of NO_LINKS where the file
        system cannot."""
        ...

    def unlink(self, path: str) -> None: ...

    def unlink_unused(self, path: str) -> bool:
        """Remove a regular file that nobody has in use; False if it stays, or is not there."""
        ...

    def mkdir(self, folder: str) -> None: ...

    def rmdir(self, folder: str) -> None:
        """Remove an empty folder."""
        ...

    def has_folder(self, folder: str) -> bool:
        """Whether it is a folder itself; a symbolic link to one is not."""
        ...

    def fsync_dir(self, folder: str) -> None:
        """Make the names in the folder durable: new ones, removed ones, those of sub-folders too."""
        ...

    def listdir(self, folder: str) -> list[str]:
        """Sorted names, sub-folders with a trailing slash. Nothing for a folder that does not exist."""
        ...

    def lock(self, path: str) -> DiskLock | None:
        """Lock an existing file; None if anyone holds it already, this process included."""
        ...

    def locate(self, path: str) -> Path | None:
        """The regular file, where other code may open it by path."""
        ...

    def usage(self, folder: str) -> Usage:
        """How full the file system of a folder is, for this user: quotas count where the file system tells of them."""
        ...


def folder_of(path: str) -> str:
    """The folder that holds the name. The root is its own: `/` of absolute paths, the empty word of relative ones."""
    return path.rstrip("/").rpartition("/")[0] or path[: path.startswith("/")]


class PosixDisk:
    """The real one. Paths are absolute; folders and files get their modes from the umask."""

    _cached_only: Mapping[int, str] = MappingProxyType({})  # by device: the first path where it showed

    @property
    def refused_direct(self) -> str | None:
        """The first file whose file system took no direct write. It was written all the same, at a higher cost."""
        return next(iter(self._cached_only.values()), None)

    def create(self, path: str) -> NewFile:
        for _ in range(CREATE_ATTEMPTS):
            file = self._made(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path)
            try:
                if _mark_in_use(file.descriptor, path):
                    return file
            except BaseException:
                file.close()
                os.unlink(path)
                raise
            file.close()
        raise OSError(errno.EAGAIN, "removed by a sweeper each time it was made", path)

    def _made(self, descriptor: int, path: str) -> OpenFile:
        device = os.fstat(descriptor).st_dev
        if device in self._cached_only:
            return OpenFile(descriptor)

        def refused() -> None:
            if device not in self._cached_only:  # another file may have been refused meanwhile
                self._cached_only = MappingProxyType({**self._cached_only, device: path})

        return DirectFile(descriptor, refused)

    def append(self, path: str) -> NewFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return OpenFile(os.open(path, flags, 0o666))

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        descriptor = _open_regular(path, os.O_RDONLY)
        try:
            return _read_all(descriptor, start, size)
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        status = os.lstat(path)
        _refuse_irregular(status, path)
        return status.st_size

    def rename_new(self, old: str, new: str) -> None:
        try:
            _renameat2(old, new)
        except OSError as error:
            if error.errno not in NO_RENAMEAT2:
                raise
            _rename_by_link(old, new)

    def rename_over(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def unlink_unused(self, path: str) -> bool:
        try:
            descriptor = _open_regular(path, os.O_RDWR)
        except OSError as error:
            if error.errno in NOT_A_LEFTOVER:
                return False
            raise
        try:
            if not _try_lock(descriptor) or not os.path.samestat(os.lstat(path), os.fstat(descriptor)):
                return False
            # Unlinked while locked: a writer that made the file but has not locked it yet waits for us, then sees
            # that its name is gone. It makes another of that name, which must not be taken for the one we locked.
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in NO_LOCKS:  # it cannot be known who writes here, so nothing is taken away
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def mkdir(self, folder: str) -> None:
        os.mkdir(folder)

    def rmdir(self, folder: str) -> None:
        os.rmdir(folder)

    def has_folder(self, folder: str) -> bool:
        assert folder.startswith("/"), f"{folder!r} is not an absolute path"
        try:
            return stat.S_ISDIR(os.lstat(folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def fsync_dir(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network and FUSE file systems have no fsync of folders and say EINVAL: their names are durable by
            # other means, or by none that a program could ask for.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)

    def listdir(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(f"{each.name}/" if each.is_dir(follow_symlinks=False) else each.name for each in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def lock(self, path: str) -> DiskLock | None:
        lock = _PosixLock(_open_regular(path, os.O_RDWR))
        try:
            if not _try_lock(lock.descriptor):
                lock.release()
                return None
            os.lstat(path)  # FileNotFoundError if it was removed before we had it: that lock would exclude nobody
        except BaseException:
            lock.release()
            raise
        return lock

    def locate(self, path: str) -> Path | None:
        try:
            self.size(path)
        except OSError:
            return None
        return Path(path)

    def usage(self, folder: str) -> Usage:
        told = os.statvfs(folder)
        used = (told.f_blocks - told.f_bfree) * told.f_frsize
        # What is kept back for root is neither used nor free, as `df` counts too: nobody here may write it.
        return Usage(used=used, size=used + told.f_bavail * told.f_frsize)


class _PosixLock(Descriptor):
    """A DiskLock on a descriptor. It is released by closing: an unlock by a child would take the parent's lock too."""

    def release(self) -> None:
        self.close()


def _mark_in_use(descriptor: int, path: str) -> bool:
    """Lock a file just made, so that sweepers leave it alone; False if one took it before that."""
    try:
        if not _try_lock(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # a sweeper holds it no longer than its unlink takes
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return True  # no locks here: sweepers cannot take one either, and take nothing away
    return os.path.lexists(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file and nothing else. O_NONBLOCK, as a pipe that slipped in would wait for its other end."""
    _refuse_irregular(os.lstat(path), path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _refuse_irregular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "is a symbolic link, and links are not followed", path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "is not a regular file", path)


def _read_all(descriptor: int, start: int, size: int | None) -> bytes:
    expected_end = os.fstat(descriptor).st_size
    pieces: list[bytes] = []
    at = start
    while True:
        wanted = min(max(expected_end - at, PROBE_SIZE), READ_SIZE_MAX)
        if size is not None:
            wanted = min(wanted, start + size - at)
        piece = os.pread(descriptor, wanted, at)
        if not piece:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)  # the one piece as it is: no second copy
        pieces.append(piece)
        at += len(piece)


@functools.cache
def _libc_renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found


def _renameat2(old: str, new: str) -> None:
    function = _libc_renameat2()
    if function is None:
        raise OSError(errno.ENOSYS, "the C library has no renameat2", old)
    if function(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old, None, new)


def _rename_by_link(old: str, new: str) -> None:
    """A hard link never replaces; then the old name goes. A death in between leaves both, and a sweep takes the old."""
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _rename_after_look(old, new)
        return
    try:
        os.unlink(old)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _rename_after_look(old: str, new: str) -> None:
    """The last resort of file systems with neither (FAT, some FUSE): between the look and the rename, a second writer
    of the same name would be replaced. A task has one writer and uses no name twice, so this beats no checkpoint at
    all. Reserving the name by O_EXCL first would be worse: a death after it would leave an empty object."""
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new)
