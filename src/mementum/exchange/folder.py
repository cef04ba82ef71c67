"""A new folder of files: built beside its place, and there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mementum.errors import UsageError
from mementum.records import Buffer
from mementum.storage.disk import Disk, NewFile, folder_of
from mementum.storage.local import LocalStore

PARTIAL = ".partial"  # ends the name of a folder that is being built, or that a killed process left


class NewFolder:
    """The folder while it is built. Every file is durable when its writing has ended."""

    def __init__(self, path: str, final: str, disk: Disk) -> None:
        self.path = path
        self.final = final  # the name that it gets at the end
        self._disk = disk
        self._store = LocalStore(disk, path)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        """Stream `chunks` into a new file. The first file makes the folder itself."""
        self._store.put(name, chunks)

    def create(self, name: str) -> NewFile:
        """A new file for a writer that pushes its bytes; the caller fsyncs it. The folder must be made already."""
        return self._disk.create(f"{self.path}/{name}")

    def place(self, name: str) -> Path:
        """Where a file lies while the folder is built."""
        return Path(self.path, name)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self._disk.listdir(self.path))


@contextlib.contextmanager
def new_folder(to: str, disk: Disk) -> Iterator[NewFolder]:
    """Build in a folder beside `to`, then rename it. A body that raises leaves nothing; a kill leaves nothing under
    the final name. UsageError if `to` is taken by then: nothing is ever replaced, but for an empty folder."""
    final = free_place(to)
    parent, name = folder_of(final), os.path.basename(final)
    temp = f"{parent.rstrip('/')}/.{name}.{os.urandom(4).hex()}{PARTIAL}"
    try:
        yield NewFolder(temp, final, disk)
        disk.fsync_dir(temp)
        _move(temp, final, disk)
        disk.fsync_dir(parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk may not answer any more; the name says what it is
            _remove(temp, disk)
        raise


def free_place(to: str) -> str:
    """The absolute path of a folder that can be made. UsageError if something is there already."""
    if not to or "\0" in to or "://" in to:
        raise UsageError(f"{to!r} is no path of a folder", next_command="give a folder that is not there yet")
    path = Path(os.path.abspath(os.path.expanduser(to)))
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        what = "is not empty" if path.is_dir() and not path.is_symlink() else "is there already and is no folder"
        raise UsageError(
            f"{path} {what}; nothing is ever overwritten", next_command="give a folder that is not there yet"
        )
    return str(path)


def _move(temp: str, final: str, disk: Disk) -> None:
    try:
        if disk.has_folder(final):
            disk.rmdir(final)  # refuses if it is not empty any more
        disk.rename_new(temp, final)
    except OSError as cause:
        if not os.path.lexists(final):
            raise
        raise UsageError(
            f"{final} was filled by somebody else meanwhile; nothing is ever overwritten",
            next_command="give a folder that is not there yet",
        ) from cause


def _remove(folder: str, disk: Disk) -> None:
    for name in disk.listdir(folder):
        if name.endswith("/"):
            _remove(f"{folder}/{name.rstrip('/')}", disk)
        else:
            disk.unlink(f"{folder}/{name}")
    if disk.has_folder(folder):
        disk.rmdir(folder)
