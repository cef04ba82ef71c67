"""Stills: files of frozen tensors that are durable already, so that a later checkpoint only names them again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from mementum.errors import KeyMissing, MementumError
from mementum.execute.head import Still
from mementum.execute.plan import FROZEN, RAW
from mementum.execute.snapshot import Image
from mementum.format.blocks import Raw
from mementum.format.generations import key_of
from mementum.records import DataFile, Index
from mementum.storage.store import Home, Store

CHANGES_MAX = 2  # saves in a row that find a file of frozen tensors changed; then these count as moving


@runtime_checkable
class Steady(Raw, Protocol):
    """The raw stream of a file of frozen tensors, that can tell whether it is still what it was."""

    @property
    def names(self) -> tuple[tuple[str, str], ...]: ...
    def digests(self) -> tuple[str, ...]: ...
    def changed(self) -> str | None: ...


class Unsteady(MementumError):
    """Tensors that were taken to be frozen were written while they were saved. `names`: component and name."""

    def __init__(self, name: str, names: Sequence[tuple[str, str]]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"{name} seemed frozen, and was changed while it was saved",
            kept="older checkpoints",
            next_command="nothing: the next save copies it like everything else",
        )


def owned(still: Still) -> Still:
    """The same, told of the checkpoint whose file it is: a reference to it never names another one that refers."""
    if still.file.folder is None:
        return still
    return replace(still, folder=still.file.folder, file=replace(still.file, folder=None))


def _is_there(still: Still, store: Store) -> bool:
    key = key_of(still.folder, still.file)
    return any(stat.key == key and stat.size == still.file.size for stat in store.list(key))


class Stills:
    """The newest durable file of frozen tensors of each name."""

    def __init__(self) -> None:
        self.linked = 0  # bytes of the last save's own files that were durable already
        self._known: dict[str, Still] = {}
        self._written: dict[str, Still] = {}
        self._changes: dict[str, int] = {}
        self._unfrozen: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def know(self, stills: Mapping[str, Still]) -> None:
        """What is durable, from elsewhere."""
        with self._lock:
            self._known |= {name: owned(still) for name, still in stills.items()}

    def wrote(self, folder: str, index: Index) -> None:
        """What a checkpoint will have made durable, once it is committed."""
        self._written = {}
        for file in index.files:
            if file.name.endswith(FROZEN):
                tensors = tuple(tensor for tensor in index.tensors if tensor.file == file.name)
                self._written[file.name] = owned(Still(folder=folder, file=file, tensors=tensors))

    def committed(self) -> None:
        """It is."""
        with self._lock:
            self._known |= self._written

    def take_unfrozen(self) -> tuple[tuple[str, str], ...]:
        """Component and name of what is to be copied at every save from now on; each is told once."""
        with self._lock:
            unfrozen, self._unfrozen = tuple(self._unfrozen), []
        return unfrozen

    def unfreeze(self, names: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            self._unfrozen += names

    def proved(self, images: Sequence[Image]) -> Mapping[str, Still] | None:
        """The durable file of each frozen one of `images`; None if one has none, or has changed since."""
        found: dict[str, Still] = {}
        for image in images:
            if image.steady:
                still = self._same(image)
                if still is None:
                    return None
                found[image.layout.name] = still
        return found

    def link(self, images: Sequence[Image], store: Home, folder: str) -> dict[str, DataFile]:
        """Give every durable file of frozen tensors a name in `folder` too, or where there are no hard links name the
        folder that has it; those that need not be written, by name."""
        self.linked = 0
        found = {image.layout.name: self._link(image, store, folder) for image in images if image.steady}
        return {name: file for name, file in found.items() if file is not None}

    def _link(self, image: Image, store: Home, folder: str) -> DataFile | None:
        """The durable file, if the tensors are still what it holds. None if it must be written: that is so at the first
        time, and when they have changed."""
        name = image.layout.name
        still = self._same(image)
        if still is None:
            self._count_change(image)
            return None
        self._changes.pop(name, None)
        if still.folder == folder:
            return None
        try:
            linked = store.link(f"{still.folder}/{name}", f"{folder}/{name}")
        except KeyMissing:  # the checkpoint that had it was removed, by hand
            return None
        if not linked and not _is_there(still, store):
            return None
        if not linked:
            return replace(still.file, folder=still.folder)
        self.linked += still.file.size
        return still.file

    def require_steady(self, images: Sequence[Image], files: Sequence[DataFile]) -> None:
        """Unsteady if a file that was read from live tensors is not of them as they were at the snapshot's step."""
        for image, file in zip(images, files, strict=True):
            raw = image.raw
            if isinstance(raw, Steady):
                name = raw.changed()
                if name is None and image.steady and raw.digests() != tuple(block.digest for block in file.blocks):
                    name = image.layout.name
                if name is not None:
                    self.unfreeze(raw.names)
                    raise Unsteady(name, raw.names)

    def _same(self, image: Image) -> Still | None:
        with self._lock:
            still = self._known.get(image.layout.name)
        raw = image.raw
        if still is None or not isinstance(raw, Steady) or still.tensors != image.layout.tensors:
            return None
        if any(block.codec != RAW for block in still.file.blocks):
            return None
        return still if raw.digests() == tuple(block.digest for block in still.file.blocks) else None

    def _count_change(self, image: Image) -> None:
        name = image.layout.name
        raw = image.raw
        with self._lock:
            known = name in self._known
        if known and isinstance(raw, Steady):
            self._changes[name] = self._changes.get(name, 0) + 1
            if self._changes[name] >= CHANGES_MAX:
                self.unfreeze(raw.names)
