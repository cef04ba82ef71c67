"""A disk in memory that knows what is not yet durable, so that a power cut can lose it.

The fault model, stricter than any one file system on purpose:

- Bytes become durable by `fsync` of their file only. At a power cut the bytes that were written since are lost, or torn
  (half of them, then zeros to the full length), or whole; what an earlier fsync covered stays.
- A name, a folder's own too, becomes durable by `fsync_dir` of the folder that holds it only. Until then each change
  of names (made, removed, renamed) survives or does not: any subset of them (POSIX), or the first so many
  (`journaled=True`, as ext4 and xfs do it). A rename is one change, hence atomic. Two names of one file share its bytes
  and their fate; each name has its own.
- What lies in a folder whose own name is lost is lost with it.
- A cut comes before an operation: what it would find in the middle of one, such as half a write, is among the fates of
  the cut before the next one.
- Locks and open files end with the process.

Not modelled: a disk that lies about fsync, bits that rot (verification has its own tests), half a folder synced.

The simulated disk does not roll dice. It asks `choose`, which may visit every fate, follow a seed, or be Hypothesis.

Paths: a leading slash means nothing, so that `store/a` and `/store/a` are one file, and the root folder is "" or "/".
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, Self, TypeVar

from mementum.records import Usage
from mementum.storage.disk import DiskLock, NewFile
from mementum.storage.store import Buffer

T = TypeVar("T")


class Choose(Protocol):
    """Picks one of some fates: `EveryChoice()`, `random.Random(seed).choice`, or a draw of Hypothesis."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class PowerCut(BaseException):
    """Raised in place of the operation before which the power went, and of all later ones of that disk.

    No Exception, so that nothing in the product can survive it.
    """


class SimDisk:
    """A `Disk`. Each call that changes something is an operation, counted; the one numbered `cut_at` is cut."""

    def __init__(self, *, cut_at: int | None = None) -> None:
        self.cut_at = cut_at
        self.capacity = 1 << 40  # bytes that it says it has
        self.operations = 0
        self._dead = False
        self._root = _Folder()
        self._changes: list[_Change] = []  # of names, not yet durable, oldest first
        self._turn = threading.RLock()  # an operation is atomic for the threads of a test, as it is in a kernel

    def create(self, path: str) -> NewFile:
        with self._turn:
            self._tick()
            folder, name = self._place(path)
            if name in folder.live:
                _fail(errno.EEXIST, path)
            file = _File()
            self._change(folder, added=(name, file))
            return _SimFile(self, file, holds=True)

    def append(self, path: str) -> NewFile:
        with self._turn:
            folder, name = self._place(path)
            if name in folder.live:
                return _SimFile(self, self._file(path), holds=False)
            self._tick()
            file = _File()
            self._change(folder, added=(name, file))
            return _SimFile(self, file, holds=False)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with self._turn:
            return self._file(path).content[start : None if size is None else start + size]

    def size(self, path: str) -> int:
        with self._turn:
            return self._file(path).size

    def rename_new(self, old: str, new: str) -> None:
        with self._turn:
            self._tick()
            folder, name = self._place(new)
            if name in folder.live:
                self._file(old)
                _fail(errno.EEXIST, new)
            self._rename(old, new)

    def rename_over(self, old: str, new: str) -> None:
        with self._turn:
            self._tick()
            folder, name = self._place(new)
            if name in folder.live:
                self._file(new)
            self._rename(old, new)

    def _rename(self, old: str, new: str) -> None:
        file = self._file(old)
        (folder, old_name), (new_folder, new_name) = self._place(old), self._place(new)
        assert folder is new_folder, "what makes a rename between two folders durable is not modelled"
        self._change(folder, dropped=old_name, added=(new_name, file))

    def link(self, old: str, new: str) -> None:
        with self._turn:
            self._tick()
            file = self._file(old)
            folder, name = self._place(new)
            if name in folder.live:
                _fail(errno.EEXIST, new)
            self._change(folder, added=(name, file))

    def unlink(self, path: str) -> None:
        with self._turn:
            self._tick()
            self._file(path)
            folder, name = self._place(path)
            self._change(folder, dropped=name)

    def unlink_unused(self, path: str) -> bool:
        with self._turn:
            try:
                file = self._file(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return False
            if file.holder is not None:
                return False
            self.unlink(path)
            return True

    def mkdir(self, folder: str) -> None:
        with self._turn:
            self._tick()
            parent, name = self._place(folder)
            if name in parent.live or not name:
                _fail(errno.EEXIST, folder)
            self._change(parent, added=(name, _Folder()))

    def rmdir(self, folder: str) -> None:
        with self._turn:
            self._tick()
            if self._folder(folder).live:
                _fail(errno.ENOTEMPTY, folder)
            parent, name = self._place(folder)
            self._change(parent, dropped=name)

    def has_folder(self, folder: str) -> bool:
        with self._turn:
            try:
                self._folder(folder)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def fsync_dir(self, folder: str) -> None:
        with self._turn:
            self._tick()
            here = self._folder(folder)
            here.durable = dict(here.live)
            self._changes = [change for change in self._changes if change.folder is not here]

    def listdir(self, folder: str) -> list[str]:
        with self._turn:
            if not self.has_folder(folder):
                return []
            entries = self._folder(folder).live.items()
            return sorted(f"{name}/" if isinstance(node, _Folder) else name for name, node in entries)

    def lock(self, path: str) -> DiskLock | None:
        with self._turn:
            file = self._file(path)
            return _SimLock(file) if file.holder is None else None

    def locate(self, path: str) -> Path | None:
        return None

    def usage(self, folder: str) -> Usage:
        with self._turn:  # of all of it; nothing is refused where that is more than the capacity
            return Usage(used=sum(file.size for file in self._root.files()), size=self.capacity)

    def after_power_cut(self, choose: Choose, *, journaled: bool = False) -> SimDisk:
        """One disk that could be found after the power went now. This one stays as it is."""
        names: dict[_Folder, dict[str, _Node]] = {}
        for change in self._surviving_changes(choose, journaled):
            entries = names.get(change.folder)
            if entries is None:
                entries = names[change.folder] = dict(change.folder.durable)
            change.apply(entries)
        files: dict[_File, _File] = {}

        def survivor(node: _Node) -> _Node:
            if isinstance(node, _Folder):
                folder = _Folder()
                folder.durable = {name: survivor(each) for name, each in names.get(node, node.durable).items()}
                folder.live = dict(folder.durable)
                return folder
            if node not in files:
                fate = choose(("lost", "torn", "whole")) if node.fresh else "whole"
                files[node] = _File(node.after(fate))
            return files[node]

        found = SimDisk()
        root = survivor(self._root)
        assert isinstance(root, _Folder)
        found._root = root
        return found

    def after_process_death(self) -> SimDisk:
        """The disk as the next process finds it after kill -9: all that was written is there, and what was not durable
        still is not. Locks and open files are gone."""
        copies: dict[_Node, _Node] = {}

        def copied(node: _Node) -> _Node:
            if node not in copies:
                if isinstance(node, _Folder):
                    copies[node] = folder = _Folder()
                    folder.live = {name: copied(each) for name, each in node.live.items()}
                    folder.durable = {name: copied(each) for name, each in node.durable.items()}
                else:
                    copies[node] = file = _File(node.durable)
                    file.fresh = list(node.fresh)
            return copies[node]

        def copied_folder(folder: _Folder) -> _Folder:
            copy = copied(folder)
            assert isinstance(copy, _Folder)
            return copy

        found = SimDisk()
        found._root = copied_folder(self._root)
        for folder, dropped, added in self._changes:
            copy = None if added is None else (added[0], copied(added[1]))
            found._changes.append(_Change(copied_folder(folder), dropped, copy))
        return found

    def _tick(self) -> None:
        if self._dead or self.operations == self.cut_at:
            self._dead = True
            raise PowerCut
        self.operations += 1

    def _surviving_changes(self, choose: Choose, journaled: bool) -> list[_Change]:
        if not self._changes:
            return []
        if journaled:
            return self._changes[: choose(range(len(self._changes) + 1))]
        return [change for change in self._changes if choose((False, True))]

    def _change(self, folder: _Folder, *, dropped: str | None = None, added: tuple[str, _Node] | None = None) -> None:
        change = _Change(folder, dropped, added)
        change.apply(folder.live)
        self._changes.append(change)

    def _folder(self, path: str) -> _Folder:
        if self._dead:
            raise PowerCut
        here = self._root
        for name in path.split("/"):
            if name:
                node = here.live.get(name)
                if node is None:
                    _fail(errno.ENOENT, path)
                if not isinstance(node, _Folder):
                    _fail(errno.ENOTDIR, path)
                here = node
        return here

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._folder(parent), name

    def _file(self, path: str) -> _File:
        folder, name = self._place(path)
        node = folder.live.get(name, folder if not name else None)
        if node is None:
            _fail(errno.ENOENT, path)
        if not isinstance(node, _File):
            _fail(errno.EISDIR, path)
        return node


class _File:
    """An inode: the bytes that are durable, those written since, and who holds its lock."""

    __slots__ = ("durable", "fresh", "holder")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.fresh: list[bytes] = []
        self.holder: object | None = None

    @property
    def content(self) -> bytes:
        return b"".join((self.durable, *self.fresh)) if self.fresh else self.durable

    @property
    def size(self) -> int:
        return len(self.durable) + sum(map(len, self.fresh))

    def after(self, fate: str) -> bytes:
        if fate == "whole":
            return self.content
        if fate == "lost":
            return self.durable
        fresh = b"".join(self.fresh)
        half = len(fresh) // 2
        return self.durable + fresh[:half] + bytes(len(fresh) - half)


class _Folder:
    """Names as processes see them and as the platter has them."""

    __slots__ = ("durable", "live")

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}

    def files(self) -> set[_File]:
        """All below it, each once, whatever names it has."""
        return set[_File]().union(*(n.files() if isinstance(n, _Folder) else {n} for n in self.live.values()))


_Node = _File | _Folder


class _Change(NamedTuple):
    """One pending change of a folder: a name that goes, a name that comes, or both at once for a rename."""

    folder: _Folder
    dropped: str | None
    added: tuple[str, _Node] | None

    def apply(self, names: dict[str, _Node]) -> None:
        if self.dropped is not None:
            names.pop(self.dropped, None)
        if self.added is not None:
            names[self.added[0]] = self.added[1]


class _SimFile:
    """A NewFile on a simulated inode."""

    def __init__(self, disk: SimDisk, file: _File, *, holds: bool) -> None:
        self._disk = disk
        self._file = file
        self._open = True
        if holds:
            file.holder = self

    def write(self, chunk: Buffer) -> None:
        assert self._open, "used after it was closed"
        with self._disk._turn:
            self._disk._tick()
            if memoryview(chunk).nbytes:
                self._file.fresh.append(memoryview(chunk).tobytes())

    def fsync(self) -> None:
        assert self._open, "used after it was closed"
        with self._disk._turn:
            self._disk._tick()
            self._file.durable, self._file.fresh = self._file.content, []

    def close(self) -> None:
        self._open = False
        if self._file.holder is self:
            self._file.holder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SimLock:
    """A DiskLock on a simulated inode."""

    def __init__(self, file: _File) -> None:
        self._file = file
        file.holder = self

    def release(self) -> None:
        if self._file.holder is self:
            self._file.holder = None


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
