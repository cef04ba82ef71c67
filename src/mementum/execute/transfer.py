"""Transfer: the bytes of a checkpoint on their way from one store to another, each proved as it passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from mementum.errors import KeyMissing, KeyTaken
from mementum.execute.compress import GaveUp, Pause
from mementum.execute.halves import Half
from mementum.format import blocks
from mementum.format.manifest import digest
from mementum.records import Block, Buffer, Damage, DataFile, StoredFile
from mementum.storage.reading import LocalFile, aligned_buffer
from mementum.storage.store import Stat, Store, size_of

DIRECT_MIN = 1 << 20  # bytes: a smaller file is read through the cache, since opening it twice costs more than it saves
GONE = "it is missing"
OWNERS_MAX = 4096  # files of frozen weights that are remembered: a run has a few


class NotWhole(Exception):
    """Bytes of the source are not what was written: they go nowhere."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"{damage.key}: {damage.what}")
        self.damage = damage


class Proved:
    """The stored bytes of a data file, block by block, each compared with its digest. It may be gone through again. The
    next block comes into the same memory."""

    def __init__(self, store: Store, key: str, file: DataFile, pause: Pause) -> None:
        """GaveUp where `pause` has a reason; NotWhole where a block is not what was written."""
        self._store, self._key, self._file, self._pause = store, key, file, pause

    def __iter__(self) -> Iterator[Buffer]:
        for block, stored in self._read():
            go_on(self._pause)
            wrong = blocks.damage(block, stored)
            if wrong is not None:
                raise NotWhole(Damage(key=self._key, what=wrong))
            yield stored

    def _read(self) -> Iterator[tuple[Block, memoryview]]:
        """Past the page cache, where it lies on a disk of ours: what training reads next must stay in it."""
        path = self._store.locate(self._key) if self._file.size >= DIRECT_MIN else None
        if path is None:
            yield from ((block, self._get(block)) for block in self._file.blocks)
            return
        buffer = aligned_buffer(max(block.size for block in self._file.blocks))
        try:
            opened = LocalFile(path)
        except OSError:  # the store says what is wrong
            yield from ((block, self._get(block)) for block in self._file.blocks)
            return
        with opened:
            for block in self._file.blocks:
                try:
                    stored = opened.read(block.offset, block.size, buffer)
                except OSError:
                    stored = self._get(block)
                yield block, stored

    def _get(self, block: Block) -> memoryview:
        try:
            return self._store.get(self._key, block.offset, block.size)
        except KeyMissing as error:
            raise NotWhole(Damage(key=self._key, what=GONE)) from error


def small(store: Store, folder: str, file: StoredFile) -> memoryview:
    """An index or a context, proved. NotWhole if it is not what was written."""
    key = f"{folder}/{file.name}"
    try:
        data = store.get(key)
    except KeyMissing as error:
        raise NotWhole(Damage(key=key, what=GONE)) from error
    if digest(data) != file.digest:
        raise NotWhole(Damage(key=key, what="it does not match its digest"))
    return data


def go_on(pause: Pause) -> None:
    """GaveUp if there is a reason not to."""
    reason = pause()
    if reason is not None:
        raise GaveUp(reason)


class Copy:
    """A copy that is being made. What an earlier try has left of it is not sent again, where it is the same."""

    def __init__(self, half: Half, there: Mapping[str, int], tell: Callable[[int], None] | None = None) -> None:
        """`there`: sizes of what lies in the folder already, all of it of this checkpoint. `tell` hears of each file
        that was sent how many bytes it has."""
        self.half, self.target, self.folder = half, half.store, half.folder
        self._there, self._tell = dict(there), tell
        self.sent = 0  # bytes

    @property
    def names(self) -> frozenset[str]:
        """Of what lay there when it began."""
        return frozenset(self._there)

    @property
    def links(self) -> bool:
        """Whether the place may give a file a second name."""
        return hasattr(self.target, "link")

    def put(self, name: str, chunks: Iterable[Buffer], size: int | None = None) -> Stat:
        """Make it durable there. `size`: of a file that has been under its name since the checkpoint was saved, so that
        one of that size is this one: nothing appears under its name before it is whole. None of one that was coded
        anew: another try may have had another codec or another base, and it is sent again."""
        key = f"{self.folder}/{name}"
        if size is not None and self._there.get(name) == size:
            return Stat(key=key, size=size)
        if name in self._there:
            self.half.remove([name])
        try:
            stat = self.target.put(key, chunks)
        except KeyTaken:  # by ourselves, where an answer was lost: the folder has our mark
            if size is None or size_of(self.target, key) != size:
                raise
            return Stat(key=key, size=size)
        self._count(stat.size)
        return stat

    def put_small(self, name: str, content: bytes) -> None:
        """Make an index or a context durable there. One that is there is compared: two codecs may give indexes of one
        size."""
        key = f"{self.folder}/{name}"
        if name in self._there:
            if self._there[name] == len(content) and bytes(self.target.get(key)) == content:
                return
            self.half.remove([name])
        try:
            self.target.put(key, [content])
        except KeyTaken:
            if bytes(self.target.get(key)) != content:
                raise
            return
        self._count(len(content))

    def _count(self, size: int) -> None:
        self.sent += size
        if self._tell is not None:
            self._tell(size)

    def link(self, owner: str, name: str, size: int) -> bool:
        """Let the file of another checkpoint there be this one's too; False where the place cannot, or has it not."""
        link = getattr(self.target, "link", None)
        if link is None:
            return False
        try:
            return bool(link(f"{owner}/{name}", f"{self.folder}/{name}"))
        except KeyMissing:
            return False
        except KeyTaken:
            return self._there.get(name) == size


class Owners:
    """Which checkpoint in a store has a file of frozen weights, by the digests of its blocks."""

    def __init__(self) -> None:
        self._folders: dict[tuple[object, ...], str] = {}

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self._folders)

    def find(self, file: DataFile) -> str | None:
        """The folder of the checkpoint that owns a file of these very bytes under this name."""
        return self._folders.get(_content(file))

    def know(self, file: DataFile, folder: str) -> None:
        """It lies there, as a file of its own or by a hard link."""
        if len(self._folders) < OWNERS_MAX:
            self._folders[_content(file)] = folder

    def forget(self, folder: str) -> None:
        """The checkpoint was removed, or is not what it was."""
        self._folders = {content: owner for content, owner in self._folders.items() if owner != folder}


def _content(file: DataFile) -> tuple[object, ...]:
    return (file.name, file.size, *(block.digest for block in file.blocks))
